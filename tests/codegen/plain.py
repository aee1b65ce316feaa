"""Kernels for processors that this one is not, run here: their own instructions become plain IR.

Wide vectors need nothing: LLVM parts them. What a target alone has is called by name, `llvm.x86.*`,
and a function of plain IR takes the place of each. Denormals are kept, which some instructions take
for 0. Tiles are memory of the module, so one thread at a time may run it.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: LDTILECFG,
TDPBF16PS, TDPBUSD, TILELOADD, TILESTORED, TILEZERO, VCVTNE2PS2BF16, VCVTNEPS2BF16, VDPBF16PS,
VPDPBUSD, VPERMI2B, VPERMPS, VPMADDWD, VSCALEFPS.
"""

from __future__ import annotations

import re

from dlc.core.target import Target

_OWN = r"@llvm\.x86\.((?:avx512|tile|tdp|ldtile)[\w.]*)"
_TO_BF16 = re.compile(r"fptrunc (?:<(\d+) x )?(float>?) (.*) to (?:<\d+ x )?(bfloat>?)")
_TILES = "@own.tiles = internal global [8 x [16 x <16 x i32>]] zeroinitializer, align 64\n"


def plain(text: str, target: Target) -> str:
    """The IR of a kernel for some machine, for `target`."""
    text = _TO_BF16.sub(_rounded, text)
    names = set(re.findall(_OWN, text))
    names |= {vectors for tiles, (vectors, _) in _PRODUCTS.items() if tiles in names}
    text = re.sub(rf"^declare .*{_OWN}.*\n", "", text, flags=re.M)
    text = re.sub(_OWN, r"@own.\1", text).replace("bfloat", "i16")
    features = ",".join(f"+{name}" for name in sorted(target.features))
    text = re.sub('"target-features"="[^"]*"', f'"target-features"="{features}"', text)
    text = re.sub("^target triple = .*", f'target triple = "{target.triple}"', text, flags=re.M)
    return text + _TILES + "".join(map(_function, sorted(names)))


def _rounded(found: re.Match[str]) -> str:
    kind = f"<{found[1]} x " if found[1] else ""
    name = f"@llvm.x86.avx512bf16.cvtneps2bf16.x{found[1] or 0}"
    return f"call {kind}{found[4]} {name}({kind}{found[2]} {found[3]})"


def _function(name: str) -> str:
    """What does the work of an instruction; its name ends in the bits of a vector, or its lanes."""
    if name in _OF_TILES:
        params, body = _OF_TILES[name]
        return f"define internal void @own.{name}({params}) #0 {{\n{body}ret void\n}}\n"
    stem, _, size = name.rpartition(".")
    lanes = int(size.removeprefix("x")) if size.startswith("x") else int(size) // 32
    lanes = _LANES.get(stem, lanes)
    result, params, body = _OF_VECTORS[stem]
    text = (
        f"define internal v:{result} @own.{name}({params}) #0 {{\n{body}ret v:{result} %out\n}}\n"
    )
    text = re.sub(r"h:(\w+)", f"<{2 * lanes} x i16>", text)
    text = re.sub(r"v:(\w+)", rf"<{lanes} x \1>" if lanes else r"\1", text)
    return re.sub(r"c:(\w+) (\S+?)(?=[,\n])", r"splat (\1 \2)" if lanes else r"\2", text)


# `v:T` is a vector of the lanes, or a number, `c:T N` a constant in each, `h` the halves of lanes.
_ROUND = """\
%b = bitcast v:float %x to v:i32
%size = and v:i32 %b, c:i32 2147483647
%up = lshr v:i32 %b, c:i32 16
%odd = and v:i32 %up, c:i32 1
%half = add v:i32 %odd, c:i32 32767
%near = add v:i32 %b, %half
%quiet = or v:i32 %b, c:i32 4194304
%sign = and v:i32 %b, c:i32 -2147483648
%nan = icmp ugt v:i32 %size, c:i32 2139095040
%tiny = icmp ult v:i32 %size, c:i32 8388608
%one = select v:i1 %nan, v:i32 %quiet, v:i32 %near
%two = select v:i1 %tiny, v:i32 %sign, v:i32 %one
%low = lshr v:i32 %two, c:i32 16
%out = trunc v:i32 %low to v:i16
"""
_WORDS = "%a = bitcast h:i16 %p to v:i32\n%b = bitcast h:i16 %q to v:i32\n"


def _sum(count: int, left: str) -> str:
    """The sum of products of `count` whole numbers in each lane, the left ones moved by `left`."""
    lines, bits = [], 32 // count
    for k in range(count):
        for name, right in (("a", left), ("b", "ashr")):
            lines.append(f"%{name}u{k} = shl v:i32 %{name}, c:i32 {32 - bits * (k + 1)}")
            lines.append(f"%{name}{k} = {right} v:i32 %{name}u{k}, c:i32 {32 - bits}")
        lines.append(f"%p{k} = mul v:i32 %a{k}, %b{k}")
        lines.append(f"%s{k + 1} = add v:i32 %s{k}, %p{k}")
    return "\n".join([*lines, f"%out = or v:i32 %s{count}, %s{count}", ""])


_PAIRS = """\
%au = and v:i32 %a, c:i32 -65536
%bu = and v:i32 %b, c:i32 -65536
%al = shl v:i32 %a, c:i32 16
%bl = shl v:i32 %b, c:i32 16
%auf = bitcast v:i32 %au to v:float
%buf = bitcast v:i32 %bu to v:float
%alf = bitcast v:i32 %al to v:float
%blf = bitcast v:i32 %bl to v:float
%upper = fmul v:float %auf, %buf
%lower = fmul v:float %alf, %blf
%more = fadd v:float %s, %upper
%out = fadd v:float %more, %lower
"""  # products are exact, so the sum is rounded after each
_SCALE = """\
%few = fcmp olt v:double %nd, c:double -2000.0
%n1 = select v:i1 %few, v:double c:double -2000.0, v:double %nd
%many = fcmp ogt v:double %n1, c:double 2000.0
%n2 = select v:i1 %many, v:double c:double 2000.0, v:double %n1
%n3 = fptosi v:double %n2 to v:i64
%e0 = ashr v:i64 %n3, c:i64 1
%e1 = sub v:i64 %n3, %e0
%b0 = add v:i64 %e0, c:i64 1023
%b1 = add v:i64 %e1, c:i64 1023
%c0 = shl v:i64 %b0, c:i64 52
%c1 = shl v:i64 %b1, c:i64 52
%f0 = bitcast v:i64 %c0 to v:double
%f1 = bitcast v:i64 %c1 to v:double
%y0 = fmul v:double %xd, %f0
%y1 = fmul v:double %y0, %f1
"""  # in two steps, as 2 ** n alone may be no double


def _scale(kind: str, widen: str, narrow: str, lanes: int) -> tuple[str, str, str]:
    """A number times a power of two, where a bit of the mask is set."""
    body = f"%xd = {widen.format('%x')}\n%nd = {widen.format('%n')}\n{_SCALE}%y = {narrow}\n"
    body += f"%m = bitcast i{lanes} %k to v:i1\n%out = select v:i1 %m, v:{kind} %y, v:{kind} %z\n"
    return kind, f"v:{kind} %x, v:{kind} %n, v:{kind} %z, i{lanes} %k, i32 %mode", body


def _look_up() -> str:
    lines, found = [], "%t"
    for k in range(16):
        lines.append(f"%j{k} = extractelement v:i32 %n, i32 {k}")
        lines.append(f"%i{k} = and i32 %j{k}, 15")
        lines.append(f"%v{k} = extractelement v:float %t, i32 %i{k}")
        made = "%out" if k == 15 else f"%r{k}"
        lines.append(f"{made} = insertelement v:float {found}, float %v{k}, i32 {k}")
        found = made
    return "\n".join([*lines, ""])


def _pick() -> str:
    places = ", ".join(f"i32 {k}" for k in range(128))
    lines = [f"%t = shufflevector v:i8 %a, v:i8 %b, <128 x i32> <{places}>"]
    for k in range(64):
        lines.append(f"%j{k} = extractelement v:i8 %n, i32 {k}")
        lines.append(f"%i{k} = and i8 %j{k}, 127")
        lines.append(f"%v{k} = extractelement <128 x i8> %t, i8 %i{k}")
        made, found = "%out" if k == 63 else f"%r{k}", f"%r{k - 1}" if k else "%n"
        lines.append(f"{made} = insertelement v:i8 {found}, i8 %v{k}, i32 {k}")
    return "\n".join([*lines, ""])


_ZERO = "%s0 = xor v:i32 %a, %a\n"
_SAME = "fmul v:double {}, c:double 1.0"
_JOIN = (
    "%x = shufflevector <16 x float> %lower, <16 x float> %upper, "
    f"<32 x i32> <{', '.join(f'i32 {k}' for k in range(32))}>\n"
)
_LANES = {  # if not of 32 bits each
    "avx512.mask.scalef.pd": 8,
    "avx512.vpermi2var.qi": 64,
    "avx512bf16.cvtne2ps2bf16": 32,
}
_OF_VECTORS = {  # of each: the type of a lane, the operands and the body
    "avx512bf16.cvtneps2bf16": ("i16", "v:float %x", _ROUND),
    "avx512bf16.cvtne2ps2bf16": ("i16", "<16 x float> %upper, <16 x float> %lower", _JOIN + _ROUND),
    "avx512bf16.dpbf16ps": ("float", "v:float %s, h:i16 %p, h:i16 %q", _WORDS + _PAIRS),
    "avx512.vpdpbusd": ("i32", "v:i32 %s0, v:i32 %a, v:i32 %b", _sum(4, "lshr")),
    "avx512.pmaddw.d": ("i32", "h:i16 %p, h:i16 %q", _WORDS + _ZERO + _sum(2, "ashr")),
    "avx512.permvar.sf": ("float", "v:float %t, v:i32 %n", _look_up()),
    "avx512.vpermi2var.qi": ("i8", "v:i8 %a, v:i8 %n, v:i8 %b", _pick()),
    "avx512.mask.scalef.ps": _scale(
        "float", "fpext v:float {} to v:double", "fptrunc v:double %y1 to v:float", 16
    ),
    "avx512.mask.scalef.pd": _scale("double", _SAME, _SAME.format("%y1"), 8),
}


def _rows(body: str) -> str:
    """A loop over the rows of a tile, which `%r` numbers."""
    head = f"br label %loop\nloop:\n%r = phi i64 [ 0, %0 ], [ %next, %loop ]\n{body}"
    test = "%next = add i64 %r, 1\n%more = icmp ult i64 %next, 16\n"
    return f"{head}{test}br i1 %more, label %loop, label %done\ndone:\n"


def _row(to: str, tile: str, row: str = "%r") -> str:
    """The address of a row of a tile."""
    tiles = "[8 x [16 x <16 x i32>]], ptr @own.tiles"
    return f"{to} = getelementptr {tiles}, i64 0, i8 {tile}, i64 {row}\n"


_PRODUCTS = {  # of tiles: that of vectors, and the types of their lanes and factors
    "tdpbf16ps": ("avx512bf16.dpbf16ps.512", ("float", "<32 x i16>")),
    "tdpbusd": ("avx512.vpdpbusd.512", ("i32", "<16 x i32>")),
}


def _multiply(name: str) -> str:
    """Sums of a tile and of products of words: one of a row, in all lanes, by a whole row."""
    vectors, (lane, factors) = _PRODUCTS[name]
    text = _row("%to", "%c") + _row("%from", "%a") + f"%s0 = load <16 x {lane}>, ptr %to\n"
    first = "<16 x i32> poison, <16 x i32> zeroinitializer"
    for k in range(16):
        text += (
            f"%p{k} = getelementptr i32, ptr %from, i64 {k}\n%w{k} = load i32, ptr %p{k}\n"
            f"%o{k} = insertelement <16 x i32> poison, i32 %w{k}, i32 0\n"
            f"%l{k} = shufflevector <16 x i32> %o{k}, {first}\n"
            f"%x{k} = bitcast <16 x i32> %l{k} to {factors}\n{_row(f'%q{k}', '%b', str(k))}"
            f"%y{k} = load {factors}, ptr %q{k}\n"
            f"%s{k + 1} = call <16 x {lane}> @own.{vectors}"
            f"(<16 x {lane}> %s{k}, {factors} %x{k}, {factors} %y{k})\n"
        )
    return text + f"store <16 x {lane}> %s16, ptr %to\n"


_WIPE = "".join(
    _row(f"%t{t}", str(t)) + f"store <16 x i32> splat (i32 -1), ptr %t{t}\n" for t in range(8)
)
_LINE = _row("%at", "%t") + "%o = mul i64 %r, %stride\n%m = getelementptr i8, ptr %p, i64 %o\n"
_OF_TILES = {
    "ldtilecfg": ("ptr %config", _rows(_WIPE)),
    "tilerelease": ("", _rows(_WIPE)),
    "tilezero": ("i8 %t", _rows(_row("%at", "%t") + "store <16 x i32> zeroinitializer, ptr %at\n")),
    "tileloadd64": (
        "i8 %t, ptr %p, i64 %stride",
        _rows(_LINE + "%v = load <16 x i32>, ptr %m, align 1\nstore <16 x i32> %v, ptr %at\n"),
    ),
    "tilestored64": (
        "i8 %t, ptr %p, i64 %stride",
        _rows(_LINE + "%v = load <16 x i32>, ptr %at\nstore <16 x i32> %v, ptr %m, align 1\n"),
    ),
    **{name: ("i8 %c, i8 %a, i8 %b", _rows(_multiply(name))) for name in _PRODUCTS},
}
