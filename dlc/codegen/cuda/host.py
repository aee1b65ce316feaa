"""The host's side of kernels on a GPU, as LLVM IR: a stub for each, and the tables of `dlc/abi.h`.

A stub has the signature of a kernel on the CPU, so the host program calls both alike. It computes
how many blocks there are and hands the parameters to `launch` of the `dlc_gpu_host`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dlc.codegen.cuda.emit import Kernel
from dlc.codegen.cuda.explain import EXPLAIN, REPORT_BYTES
from dlc.codegen.llvm.host import ABI_VERSION
from dlc.codegen.llvm.host_expr import DECLARATIONS, HostBuilder, emit_messages
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.program import ALIGNMENT, Program
from dlc.te.expr import ONE, ZERO, Expr, Load, ceil_div
from dlc.te.simplify import canonical

GPU = 0x40000000  # DLC_GPU of dlc/abi.h
DATA = 0x10000000  # DLC_GPU_DATA: what a runtime that cannot be asked for data does not ask for
CHECKED = 0x08000000  # DLC_GPU_CHECKED: what a runtime without memory for reports does not ask for
OFFSETS = {"launch": 56, "stage": 64, "fetch": 72, "send": 80, "reports": 96}  # in dlc_gpu_host
TABLE = "dlc_gpu_model"
KINDS = {"cubin": 0, "ptx": 1, "fatbin": 2}


@dataclass(frozen=True, slots=True)
class Image:
    """Compiled kernels, for one architecture: `arch` is 90 for sm_90, 0 for any."""

    unit: int  # which kernels: those whose `unit` it is
    kind: str  # "cubin", "ptx" or "fatbin"
    arch: int
    data: bytes


def emit_stubs(kernels: Mapping[str, Kernel], target: Target) -> str:
    """A hidden function for each kernel, under its symbol."""
    messages: dict[str, str] = {}
    functions = [_stub(n, k, messages) for n, k in enumerate(kernels.values())]
    parts = [f'target triple = "{target.triple}"\n', DECLARATIONS, *functions]
    return "".join([*parts, emit_messages(messages), "attributes #0 = { nounwind }\n"])


def _stub(number: int, kernel: Kernel, messages: dict[str, str]) -> str:
    func = kernel.func
    out = HostBuilder(kernel.symbol, messages, _no_element)
    for position, size in enumerate(func.sizes):
        out.bind(size, f"%s{position}")
    blocks: Expr = ONE
    for extent in kernel.grid:
        blocks = blocks * extent
    count = out.expr(blocks)
    values = [f"ptr %b{n}" for n in range(len(func.params))]
    values += [f"i64 %s{n}" for n in range(len(func.sizes))]
    if kernel.reports:
        at = out.value(f"getelementptr i8, ptr %host, i64 {OFFSETS['reports']}")
        values.append("ptr " + out.value(f"load ptr, ptr {at}, align 8"))
    table = out.slot(f"[{max(1, len(values))} x ptr]")
    for position, value in enumerate(values):
        place = out.slot("i64")
        out.line(f"store {value}, ptr {place}, align 8")
        at = out.value(f"getelementptr ptr, ptr {table}, i64 {position}")
        out.line(f"store ptr {place}, ptr {at}, align 8")
    lengths = out.slot(f"[{max(1, len(func.params))} x i64]")
    for position, buffer in enumerate(func.params):
        length = out.expr(_bytes_of(buffer))
        at = out.value(f"getelementptr i64, ptr {lengths}, i64 {position}")
        out.line(f"store i64 {length}, ptr {at}, align 8")
    itself = out.value("load ptr, ptr %host, align 8")
    at = out.value(f"getelementptr i8, ptr %host, i64 {OFFSETS['launch']}")
    launch = out.value(f"load ptr, ptr {at}, align 8")
    arguments = f"ptr {itself}, i32 {number}, i64 {count}, ptr {table}, ptr {lengths}"
    out.line(f"call void {launch}({arguments})")
    out.line("ret i32 0")
    sizes = [f"i64 %s{n}" for n in range(len(func.sizes))]
    buffers = [f"ptr %b{n}" for n in range(len(func.params))]
    head = f"define hidden i32 @{kernel.symbol}({', '.join(['ptr %host', *sizes, *buffers])}) #0 {{"
    return "\n".join([head, "entry:", *out.slots, *out.lines, *out.failures(), "}", ""])


def _bytes_of(buffer: Buffer) -> Expr:
    return canonical(buffer.type.elems * buffer.type.dtype.size_bytes)


def emit_host_stubs(funcs: Mapping[str, Func], target: Target) -> str:
    """For each symbol of a kernel on the host, a stub `<symbol>_fetched` that GPU programs call."""
    messages: dict[str, str] = {}
    functions = [_host_stub(symbol, func, messages) for symbol, func in funcs.items()]
    parts = [f'target triple = "{target.triple}"\n', DECLARATIONS, *functions]
    return "".join([*parts, emit_messages(messages), "attributes #0 = { nounwind }\n"])


def _host_stub(symbol: str, func: Func, messages: dict[str, str]) -> str:
    """Fetch all operands into staging memory, call the kernel, send its results."""
    out = HostBuilder(symbol, messages, _no_element)
    for position, size in enumerate(func.sizes):
        out.bind(size, f"%s{position}")
    itself = out.value("load ptr, ptr %host, align 8")

    def function(name: str) -> str:
        at = out.value(f"getelementptr i8, ptr %host, i64 {OFFSETS[name]}")
        return out.value(f"load ptr, ptr {at}, align 8")

    shared = dict(func.in_place)
    spans: dict[str, tuple[str, str]] = {}  # where a buffer begins, and its bytes
    end: Expr = ZERO
    for buffer in func.params:
        if buffer.name in shared:
            spans[buffer.name] = spans[shared[buffer.name]]
            continue
        bytes_ = _bytes_of(buffer)
        spans[buffer.name] = out.expr(end), out.expr(bytes_)
        end = canonical(end + ceil_div(bytes_, ALIGNMENT) * ALIGNMENT)
    memory = out.value(f"call ptr {function('stage')}(ptr {itself}, i64 {out.expr(end)})")
    out.require(out.value(f"icmp ne ptr {memory}, null"), "there is no memory to fetch data into")
    places = [out.value(f"getelementptr i8, ptr {memory}, i64 {spans[b.name][0]}")
              for b in func.params]  # fmt: skip
    fetch = function("fetch")
    for number, (buffer, place) in enumerate(zip(func.params, places, strict=True)):
        size_text = spans[buffer.name][1]
        out.line(f"call void {fetch}(ptr {itself}, ptr {place}, ptr %b{number}, i64 {size_text})")
    sizes = [f"i64 %s{n}" for n in range(len(func.sizes))]
    arguments = ", ".join(["ptr %host", *sizes, *(f"ptr {p}" for p in places)])
    out.line(f"call void @{symbol}({arguments})")
    send = function("send")
    for number, (buffer, place) in enumerate(zip(func.params, places, strict=True)):
        if number >= len(func.inputs):
            size_text = spans[buffer.name][1]
            out.line(
                f"call void {send}(ptr {itself}, ptr %b{number}, ptr {place}, i64 {size_text})"
            )
    out.line("ret i32 0")
    kinds = ", ".join(["ptr", *["i64"] * len(func.sizes), *["ptr"] * len(func.params)])
    buffers = [f"ptr %b{n}" for n in range(len(func.params))]
    head = (
        f"define hidden i32 @{symbol}_fetched({', '.join(['ptr %host', *sizes, *buffers])}) #0 {{"
    )
    body = [f"declare hidden void @{symbol}({kinds})", head, "entry:", *out.slots, *out.lines]
    return "\n".join([*body, *out.failures(), "}", ""])


def _no_element(load: Load) -> str:
    raise CodegenError(
        stage="the host emitter", unit=load.buffer, reason="a grid cannot depend on data"
    )


def emit_tables(
    program: Program,
    constants: Sequence[int],
    weight_bytes: int,
    kernels: Mapping[str, Kernel],
    units: Mapping[str, int],
    images: Sequence[Image],
    *,
    waits: bool,
    reports: int = 0,
) -> str:
    """The `dlc_gpu_model`, as LLVM IR that goes with the host program.

    Args:
        program: the program of launches.
        constants: where each constant lies in `dlc_weights`, in bytes.
        weight_bytes: the bytes of all constants.
        kernels: the kernels by name, in the order of their stubs.
        units: which images hold each kernel.
        images: what was compiled.
        waits: whether in some run the host waits for results, for kernels of its own or for data.
        reports: how many reports its launches may make; the table of some tells more.
    """
    lines: list[str] = []
    rows: list[str] = []
    kind = "{ ptr, i32, i32, i32, i32, i32, i32 }"
    for n, kernel in enumerate(kernels.values()):
        lines.append(_bytes(f"dlc_gpu_name_{n}", kernel.symbol.encode() + b"\0"))
        count = len(kernel.func.params) + len(kernel.func.sizes) + kernel.reports
        fields = (units[kernel.symbol], kernel.threads, count, kernel.shared_bytes,
                  len(kernel.func.params), len(kernel.func.inputs))  # fmt: skip
        numbers = ", ".join(f"i32 {f}" for f in fields)
        rows.append(f"{kind} {{ ptr @dlc_gpu_name_{n}, {numbers} }}")
    lines.append(_array("dlc_gpu_kernels", kind, rows))
    rows = []
    for n, image in enumerate(images):
        lines.append(_bytes(f"dlc_gpu_image_{n}", image.data))
        numbers = f"i32 {image.unit}, i32 {KINDS[image.kind]}, i32 {image.arch}, i32 0"
        kind = "{ ptr, i64, i32, i32, i32, i32 }"
        size = len(image.data)
        rows.append(f"{kind} {{ ptr @dlc_gpu_image_{n}, i64 {size}, {numbers} }}")
    lines.append(_array("dlc_gpu_images", "{ ptr, i64, i32, i32, i32, i32 }", rows))
    rows = [f"i64 {offset}" for offset in constants]
    lines.append(_array("dlc_gpu_constants", "i64", rows))
    counts = (ABI_VERSION, len(program.inputs), len(program.outputs), len(program.sizes))
    model = ", ".join(f"i32 {n}" for n in counts)
    kind = "{ { i32, i32, i32, i32, ptr, ptr }, i32, i32, i32, i32, ptr, ptr, ptr, ptr, i64 }"
    value = (
        f"{{ {{ i32, i32, i32, i32, ptr, ptr }} {{ {model}, ptr @dlc_plan, ptr @dlc_run }}, "
        f"i32 {len(kernels)}, i32 {len(images)}, i32 {len(constants)}, i32 {int(waits)}, "
        "ptr @dlc_gpu_kernels, ptr @dlc_gpu_images, ptr @dlc_gpu_constants, ptr @dlc_weights, "
        f"i64 {weight_bytes} }}"
    )
    if reports:
        lines.append(f"declare hidden i32 @{EXPLAIN}(ptr, ptr)\n")
        value = f"{{ {kind} {value}, i64 {reports * REPORT_BYTES}, ptr @{EXPLAIN} }}"
        kind = f"{{ {kind}, i64, ptr }}"
    lines.append(f"@{TABLE} = internal constant {kind} {value}, align 8\n")
    return "".join(lines)


def _array(name: str, kind: str, rows: Sequence[str]) -> str:
    if not rows:
        return f"@{name} = internal constant i64 0, align 8\n"
    items = ", ".join(r if r.startswith(kind) else f"{kind} {r}" for r in rows)
    return f"@{name} = internal constant [{len(rows)} x {kind}] [{items}], align 8\n"


def _bytes(name: str, data: bytes) -> str:
    body = "".join(chr(c) if 32 <= c < 127 and c not in b'"\\' else f"\\{c:02X}" for c in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{body}", align 64\n'
