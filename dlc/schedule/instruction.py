"""Hardware instructions as data: a name and a meaning.

The meaning is loop IR text over small buffers of constant shape. `tensorize` replaces a nest that
equals it by one `Invoke`; the interpreter runs the text; a backend has an emitter of that name.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from dlc.core.errors import InternalError
from dlc.schedule.loop import Func


@dataclass(frozen=True)
class Instruction:
    """One instruction. Operands are the parameters of the meaning, inputs first.

    An operand of rank r covers the last r dimensions of the buffer it is applied to.
    """

    name: str
    meaning: str
    lanes: tuple[tuple[str, int, int, int], ...] = ()
    """Of what all threads of a warp run together: which dimensions of which operand number the
    threads, as (operand, dimension, stride, extent). Each thread has such an operand's other
    dimensions in its registers; other operands are shared memory."""

    @functools.cached_property
    def func(self) -> Func:
        """The meaning, parsed; its parameters give the shapes of the operands."""
        from dlc.schedule.text import parse_func  # the registry is imported by the verifier

        return parse_func(self.meaning)


INSTRUCTIONS: dict[str, Instruction] = {}


def declare(
    name: str, meaning: str, lanes: tuple[tuple[str, int, int, int], ...] = ()
) -> Instruction:
    """Add an instruction to the registry."""
    if name in INSTRUCTIONS:
        raise InternalError(detail=f"instruction '{name}' is declared twice")
    INSTRUCTIONS[name] = Instruction(name, meaning, lanes)
    return INSTRUCTIONS[name]


# Four products of unsigned and signed bytes added to a 32-bit sum, as `vpdpbusd` does per lane.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VPDPBUSD.
DOT_4XI8_I32 = declare(
    "dot_4xi8_i32",
    """
def dot_4xi8_i32(a: u8[4], b: i8[4], *, c: i32[1]):
    for k in range(4):
        c[0] += i32(a[k]) * i32(b[k])
""",
)

# Two products of whole numbers added to a 32-bit sum, as `vpmaddwd` and an addition do per lane;
# the right operand may be bytes, which `vpmovsxbw` widens.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, PMADDWD.
DOT_2XI16_I32, DOT_2XI16_2XI8_I32 = (
    declare(
        name,
        f"""
def {name}(a: i16[2], b: {right}[2], *, c: i32[1]):
    for k in range(2):
        c[0] += i32(a[k]) * i32(b[k])
""",
    )
    for name, right in (("dot_2xi16_i32", "i16"), ("dot_2xi16_2xi8_i32", "i8"))
)
ADDED_APART = (DOT_2XI16_I32, DOT_2XI16_2XI8_I32)  # by an instruction of its own


def _word(bits: int) -> Instruction:
    """Products with all numbers of a word: each quad of them the same bits of its four bytes."""
    quads, mask = 8 // bits, (1 << bits) - 1
    loops, column, number = "    for k in range(4):\n        ", "k", "b[0]"
    if quads > 1:
        loops = f"    for q in range({quads}):\n        for k in range(4):\n            "
        column, number = "q * 4 + k", f"b[0] >> u32(q * {bits})"
    product = f"i32(a[{column}]) * i32({number} >> u32(k * 8) & u32({mask}))"
    name = f"dot_word_of_{bits}_bits"
    head = f"def {name}(a: i8[{4 * quads}], b: u32[1], *, c: i32[1]):\n"
    return declare(name, f"{head}{loops}c[0] += {product}\n")


# Unsigned numbers of a few bits times signed bytes, as `vpdpbusd` does for the bytes of a word.
DOT_WORDS = {bits: _word(bits) for bits in (2, 4, 8)}

# Two products of bf16 added to a float32 sum, as `vdpbf16ps` does per lane. It rounds after each
# product to the nearest, ties to even, and takes denormals for 0.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VDPBF16PS.
DOT_2XBF16_F32 = declare(
    "dot_2xbf16_f32",
    """
def dot_2xbf16_f32(a: bf16[2], b: bf16[2], *, c: f32[1]):
    for k in range(2):
        c[0] += f32(a[k]) * f32(b[k])
""",
)

# All threads of a GPU's block wait for each other. Thread loops that follow each other have run
# one after the other anyway, so it computes nothing.
BARRIER = declare(
    "barrier",
    """
def barrier():
    pass
""",
)


@dataclass(frozen=True, slots=True)
class AsyncCopy:
    """Some neighbouring elements of a GPU's memory to that of a block, beside what its threads do.

    They arrive at the latest when the thread waits for the group that its next commit ends.
    """

    dtype: str
    count: int
    bytes: int  # of all of them

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"copy_async_{self.dtype}_{self.count}"

    @property
    def meaning(self) -> str:
        """What it does, at once."""
        kind = f"{self.dtype}[{self.count}]"
        head = f"def {self.name}(x: {kind}, *, y: {kind}):\n"
        return f"{head}    for i in range({self.count}):\n        y[i] = x[i]\n"


# Source: PTX ISA 9.0, "Data Movement and Conversion Instructions: cp.async": 4, 8 or 16 bytes, and
# both places aligned to as many.
COPY_BYTES = (16, 8, 4)
ASYNC_COPIES = {
    copy.name: copy
    for copy in (
        AsyncCopy(dtype, size // width, size)
        for dtype, width in (("f32", 4), ("f16", 2), ("bf16", 2), ("i8", 1), ("u8", 1))
        for size in COPY_BYTES
    )
}
for _copy in ASYNC_COPIES.values():
    declare(_copy.name, _copy.meaning)
# A thread's copies since its last commit become a group; a thread waits until no more than so many
# groups are on their way. Neither computes anything.
COMMIT = declare("commit_copies", "def commit_copies():\n    pass\n")
MAX_STAGES = 8
WAITS = tuple(
    declare(f"wait_copies_{n}", f"def wait_copies_{n}():\n    pass\n")
    for n in range(MAX_STAGES - 1)
)

# Ask for the line of memory at a place, for the first cache or the second. It may lie behind the
# end of its buffer: it is not read.
PREFETCH = {
    (dtype, level): declare(
        f"prefetch_{dtype}_l{level}",
        f"""
def prefetch_{dtype}_l{level}(line: {dtype}[1]):
    pass
""",
    )
    for dtype in ("f32", "bf16", "i8", "u8")
    for level in (1, 2)
}

# Tiles: 16 rows of 64 bytes in registers of their own. A row of factors has 16 words, of pairs of
# bf16 or of four bytes; the engine takes denormals for 0.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TILEZERO,
# TDPBF16PS, TDPBUSD and TILESTORED.
TILE_SUMS = ("f32", "i32")
for _sums in TILE_SUMS:
    _zero = "0.0" if _sums == "f32" else "i32(0)"
    declare(
        f"tile_zero_{_sums}",
        f"""
def tile_zero_{_sums}(*, c: {_sums}[16, 16]):
    for i in range(16):
        for j in range(16):
            c[i, j] = {_zero}
""",
    )
    declare(
        f"tile_store_{_sums}",
        f"""
def tile_store_{_sums}(c: {_sums}[16, 16], *, d: {_sums}[16, 16]):
    for i in range(16):
        for j in range(16):
            d[i, j] = c[i, j]
""",
    )


@dataclass(frozen=True, slots=True)
class TileProduct:
    """A product of tiles: of which types rows and columns are, and sums."""

    rows: str
    columns: str
    sums: str
    feature: str  # that a target has it by

    @property
    def each(self) -> int:
        """How many factors a word has."""
        return 2 if self.rows == "bf16" else 4

    def name(self, *, one_row: bool) -> str:
        """The instruction, where all rows of the left operand are the same or not."""
        kinds = self.rows if self.rows == self.columns else f"{self.rows}_{self.columns}"
        return f"tile_dot_row_{kinds}" if one_row else f"tile_dot_{kinds}"

    def meaning(self, *, one_row: bool) -> str:
        """Each sum takes in the products of 16 words."""
        shape, row = (
            (f"1, {16 * self.each}", "0") if one_row else (f"16, 1, {16 * self.each}", "i, 0")
        )
        a, b = f"a: {self.rows}[{shape}]", f"b: {self.columns}[16, 16, {self.each}]"
        factors = f"a[{row}, k * {self.each} + part]", "b[k, j, part]"
        return f"""
def {self.name(one_row=one_row)}({a}, {b}, *, c: {self.sums}[16, 16]):
    for i in range(16):
        for j in range(16):
            for k in range(16):
                for part in range({self.each}):
                    c[i, j] += {self.sums}({factors[0]}) * {self.sums}({factors[1]})
"""


TILE_PRODUCTS = (
    TileProduct("bf16", "bf16", "f32", "amx-bf16"),
    TileProduct("u8", "i8", "i32", "amx-int8"),
)
for _tiles in TILE_PRODUCTS:
    for _one in (False, True):
        declare(_tiles.name(one_row=_one), _tiles.meaning(one_row=_one))


def _plane(element: str, count: int) -> str:
    """Plane `p` of an element: each is the rounding of what the ones before leave over."""
    rest, planes = element, []
    for _ in range(count):
        planes.append(f"bf16({rest})")
        rest = (
            f"({rest} - f32({planes[-1]}))" if len(planes) == 1 else f"{rest} - f32({planes[-1]})"
        )
    value = planes[-1]
    for n in range(count - 1, 0, -1):
        value = f"({planes[n - 1]} if p < {n} else {value})"
    return value


def split_name(planes: int, lanes: int) -> str:
    """The instruction that splits so many floats."""
    return f"split_bf16_{planes}_of_{lanes}"


def _split(count: int, lanes: int) -> str:
    """The meaning of a split."""
    return f"""
def {split_name(count, lanes)}(x: f32[{lanes}], *, planes: bf16[{count}, {lanes}]):
    for p in range({count}):
        for i in range({lanes}):
            planes[p, i] = {_plane("x[i]", count)}
"""


def _pack(name: str, count: int, shape: str, element: str) -> str:
    """The meaning of packing a tile: 16 lines of 16 columns, each of a pair of summands."""
    return f"""
def {name}_{count}(x: f32[{shape}], *, planes: bf16[{count}, 1, 16, 16, 2]):
    for p in range({count}):
        for pair in range(16):
            for j in range(16):
                for half in range(2):
                    planes[p, 0, pair, j, half] = {_plane(f"x[{element}]", count)}
"""


# The planes of floats side by side. Denormals become 0, in the operand and in the planes.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VCVTNEPS2BF16 and
# VCVTNE2PS2BF16, which converts two vectors in the time of one.
SPLIT_LANES = (32, 16, 8)
SPLITS = tuple(
    declare(split_name(count, lanes), _split(count, lanes))
    for lanes in SPLIT_LANES
    for count in (1, 2, 3)
)
# The planes of a tile as the right operand of a product, of a matrix whose summands are rows, and
# of one whose columns are (a transposed one); "apart": rows of other matrices stand in between.
# Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, VCVTNE2PS2BF16.
PACKS = tuple(
    declare(f"{name}_{count}", _pack(name, count, shape, element))
    for name, shape, element in (
        ("pack_rows_bf16", "32, 16", "pair * 2 + half, j"),
        ("pack_rows_apart_bf16", "32, 1, 16", "pair * 2 + half, 0, j"),
        ("pack_columns_bf16", "16, 32", "j, pair * 2 + half"),
        ("pack_columns_apart_bf16", "16, 1, 32", "j, 0, pair * 2 + half"),
    )
    for count in (1, 2, 3)
)


BYTE_PAIRS = tuple(f"{a}_{b}" for a in ("i8", "u8") for b in ("i8", "u8"))


@dataclass(frozen=True, slots=True)
class WarpProduct:
    """The product that a warp computes: tiles of 16 x 8 sums, each of as many summands as fill 32
    bytes. Factors are 16-bit floats, or float32 that it rounds: `tf32`; or bytes, `u8_i8` and so
    on, whose columns lie in lines.
    """

    dtype: str
    rows: int  # of tiles
    columns: int

    @property
    def depth(self) -> int:
        """The summands."""
        return 32 if self.of_bytes else 8 if self.dtype == "tf32" else 16

    @property
    def of_bytes(self) -> bool:
        """Whether the factors are whole numbers of eight bits."""
        return self.dtype in BYTE_PAIRS

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"warp_product_{self.dtype}_{self.rows}x{self.columns}"

    @property
    def meaning(self) -> str:
        """Dimensions of `c`: tile row and column, unless there is one; then the row in a tile as
        half and line; then the column as pair and place in the pair.
        """
        loops = [("m", self.rows), ("n", self.columns), ("h", 2), ("g", 8), ("t", 4), ("p", 2)]
        loops = [(v, n) for v, n in loops if n > 1]
        shape, at = ", ".join(str(n) for _, n in loops), ", ".join(v for v, _ in loops)
        row = "m * 16 + h * 8 + g" if self.rows > 1 else "h * 8 + g"
        column = "n * 8 + t * 2 + p" if self.columns > 1 else "t * 2 + p"
        wide = "tf32" if self.dtype == "tf32" else "i32" if self.of_bytes else "f32"
        kinds = [{"tf32": "f32"}.get(self.dtype, self.dtype)] * 2
        if self.of_bytes:
            kinds = self.dtype.split("_")
        sizes = (8 * self.columns, self.depth) if self.of_bytes else (self.depth, 8 * self.columns)
        a = f"a: {kinds[0]}[{16 * self.rows}, {self.depth}]"
        b = f"b: {kinds[1]}[{sizes[0]}, {sizes[1]}]"
        total = "i32" if self.of_bytes else "f32"
        right = f"{column}, k" if self.of_bytes else f"k, {column}"
        lines = [f"def {self.name}({a}, {b}, *, c: {total}[{shape}]):"]
        for depth, (var, count) in enumerate((*loops, ("k", self.depth)), 1):
            lines.append("    " * depth + f"for {var} in range({count}):")
        product = f"{wide}(a[{row}, k]) * {wide}(b[{right}])"
        lines.append("    " * (len(loops) + 2) + f"c[{at}] += {product}")
        return "\n".join(lines) + "\n"

    @property
    def lanes(self) -> tuple[tuple[str, int, int, int], ...]:
        """The line and the pair number the threads."""
        lead = (self.rows > 1) + (self.columns > 1)
        return (("c", lead + 1, 4, 8), ("c", lead + 2, 1, 4))


# Source: PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16 with floating point type", "for
# mma.m16n8k8" and "for mma.m16n8k32".
WARP_PRODUCTS = {
    product.name: product
    for product in (
        WarpProduct(dtype, rows, columns)
        for dtype in ("bf16", "f16", "tf32", *BYTE_PAIRS)
        for rows in (1, 2, 4)
        for columns in (1, 2, 4, 8)
    )
}
for _product in WARP_PRODUCTS.values():
    declare(_product.name, _product.meaning, _product.lanes)


@dataclass(frozen=True, slots=True)
class WarpReduction:
    """What a warp makes of one value of each of its threads, and of what is there already."""

    kind: str  # "add", "mul", "min" or "max"
    dtype: str

    @property
    def name(self) -> str:
        """The name of the instruction."""
        return f"warp_{self.kind}_{self.dtype}"

    @property
    def meaning(self) -> str:
        """One element takes all values in."""
        symbol = {"add": "+", "mul": "*"}.get(self.kind)
        step = f"y[0] {symbol}= x[k]" if symbol else f"y[0] = {self.kind}(y[0], x[k])"
        head = f"def {self.name}(x: {self.dtype}[32], *, y: {self.dtype}[1]):\n"
        return f"{head}    for k in range(32):\n        {step}\n"


# In pairs of threads whose numbers differ in one bit: 16 apart, then 8, and so on to neighbours.
# Source: CUDA C++ Programming Guide, "Warp Shuffle Functions".
WARP_REDUCTIONS = {
    reduction.name: reduction
    for reduction in (
        WarpReduction(kind, dtype)
        for kind in ("add", "mul", "min", "max")
        for dtype in ("f32", "f64", "i32", "i64")
    )
}
for _reduction in WARP_REDUCTIONS.values():
    declare(_reduction.name, _reduction.meaning, (("x", 0, 1, 32),))
