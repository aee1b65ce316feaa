"""Run printed kernels on this CPU: their unmodified text, compiled over `emulate.h`.

It finds what is wrong rather than how fast it is: accesses outside of a buffer, races between
threads and between blocks, barriers that not all threads reach, values never stored.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlc.codegen.cuda.emit import Kernel
from dlc.codegen.cuda.expr import MEMORY_TYPES
from dlc.core.errors import CodegenError
from dlc.te.expr import Const, Expr, Var
from dlc.te.simplify import canonical
from dlc.te.transform import substitute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

FOLDER = Path(__file__).parent
ORDERS = {"forward": 0, "backward": 1, "shuffled": 2}
_TOUCH_BYTES = 24  # sizeof(dlc::Touch)


class EmulationError(Exception):
    """A kernel did what no kernel may do."""


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_int64), ("touches", ctypes.c_void_p))


def emulation_text(kernels: Sequence[Kernel]) -> str:
    """One C++ source with all kernels and an entry point for each."""
    parts = ["#define DLC_EMULATE", '#include "seam.cuh"', "static const i64 *dlc_sizes;"]
    parts += [f'extern "C" i64 dlc_{n}() {{ return dlc::{n}; }}' for n in ("loads", "conflicts")]
    parts.append('extern "C" void dlc_report_to(u64 *words, i64 n) { dlc::reports = {words, n}; }')
    for spans in ("touched", "fetched"):
        parts.append(f'extern "C" const dlc::Span *dlc_{spans}() {{ return dlc::{spans}; }}')
    for kernel in {k.symbol: k for k in kernels}.values():
        arguments = []
        for position, buffer in enumerate(kernel.func.params):
            const = "const " if position < len(kernel.func.inputs) else ""
            kind = MEMORY_TYPES[buffer.type.dtype]
            arguments.append(f'dlc::Global<{const}{kind}>("{buffer.name}", {position})')
        arguments += [f"dlc_sizes[{n}]" for n in range(len(kernel.func.sizes))]
        arguments += ["dlc::reports"] * kernel.reports
        name = kernel.symbol
        parts += [
            kernel.text,
            f"static void call_{name}() {{ {name}({', '.join(arguments)}); }}",
            f'extern "C" const char *run_{name}(dlc::Buffer *buffers, const i64 *sizes, int blocks,'
            " int order) {",
            "  dlc_sizes = sizes;",
            f'  dlc::launch("{name}", call_{name}, buffers, blocks, {kernel.threads}, order);',
            "  return dlc::failure;",
            "}",
            *_entry_for_driver(kernel),
        ]
    return "\n".join(parts) + "\n"


def _entry_for_driver(kernel: Kernel) -> list[str]:
    """What a driver needs to launch the kernel with the parameters of `cuLaunchKernel`.

    A buffer that shares the memory of an input comes after it, and takes its record of touches.
    """
    func, name = kernel.func, kernel.symbol
    names = [b.name for b in func.params]
    shared = dict(func.in_place)
    rows: list[str] = []
    for position, buffer in enumerate(func.params):
        size = buffer.type.dtype.size_bytes
        written = position >= len(func.inputs) or buffer.name in shared.values()
        same = names.index(shared[buffer.name]) if buffer.name in shared else -1
        rows.append(f"{{{size}, {int(written)}, {same}}}")
    sizes = [f"*(i64 *)params[{len(names) + n}]" for n in range(len(func.sizes))]
    count = len(sizes) + kernel.reports  # of what is passed behind the buffers
    reports = f"*(u64 **)params[{len(names) + len(sizes)}]"
    taken = [f"  dlc::reports = {{{reports}, behind({reports}) / 8}};"] * kernel.reports
    return [
        f"static const dlc::Param params_{name}[] = {{{', '.join(rows)}}};",
        f'extern "C" const dlc::Kernel kernel_{name} = {{"{name}", call_{name}, {kernel.threads}, '
        f"{kernel.shared_bytes}, {len(names)}, {count}, params_{name}}};",
        f'extern "C" const char *start_{name}(void **params, i64 (*behind)(const void *), '
        "int blocks, int order) {",
        f"  const i64 sizes[] = {{{', '.join([*sizes, '0'])}}};",
        "  dlc_sizes = sizes;",
        *taken,
        f"  return dlc::start(kernel_{name}, params, behind, blocks, order);",
        "}",
    ]


class Emulator:
    """Kernels compiled for emulation; `optimize` where they run longer than they compile.

    Raises:
        CodegenError: the C++ compiler rejects a kernel.
    """

    def __init__(
        self, kernels: Sequence[Kernel], *, folder: Path | None = None, optimize: bool = False
    ) -> None:
        text = emulation_text(kernels)
        digest = hashlib.sha256(text.encode())
        for header in sorted(FOLDER.glob("*.h")) + sorted(FOLDER.glob("*.cuh")):
            digest.update(header.read_bytes())
        self._folder = None if folder else tempfile.TemporaryDirectory(prefix="dlc-emulate-")
        where = folder or Path(self._folder.name if self._folder else "")
        library = where / f"{digest.hexdigest()[:24]}.so"
        if not library.exists():
            _compile(text, library, "-O2" if optimize else "-O0")
        self.path = library
        self.library = ctypes.CDLL(str(library))

    def run(
        self,
        kernel: Kernel,
        arrays: Mapping[str, Array],
        sizes: Mapping[str, int] | None = None,
        order: str = "forward",
        reports: Array | None = None,
    ) -> None:
        """Launch a kernel on arrays, by the names of its parameters; it writes into them.

        Words of 64 bits take its `reports`.

        Raises:
            EmulationError: the kernel is wrong; the message says where.
        """
        sizes = sizes or {}
        count = blocks(kernel, sizes)
        if not count:
            return
        func = kernel.func
        touches: dict[str, Any] = {}
        shared = dict(func.in_place)
        for buffer in func.outputs:
            array = arrays[buffer.name]
            touches[buffer.name] = ctypes.create_string_buffer(_TOUCH_BYTES * (array.size + 1))
            if buffer.name in shared:
                touches[shared[buffer.name]] = touches[buffer.name]
        buffers = (_Buffer * len(func.params))()
        for place, buffer in zip(buffers, func.params, strict=True):
            array = arrays[buffer.name]
            assert array.flags.c_contiguous, "buffers are dense"
            place.data, place.bytes = array.ctypes.data, array.nbytes
            touch = touches.get(buffer.name)
            place.touches = ctypes.addressof(touch) if touch is not None else None
        if reports is not None:
            words = ctypes.c_void_p(reports.ctypes.data)
            self.library["dlc_report_to"](words, ctypes.c_int64(reports.size))
        values = (ctypes.c_int64 * (len(func.sizes) + 1))(*(sizes[s] for s in func.sizes))
        run = self.library[f"run_{kernel.symbol}"]
        run.restype = ctypes.c_char_p
        if failure := run(buffers, values, count, ORDERS[order]):
            raise EmulationError(failure.decode())

    def conflicts(self) -> tuple[int, int]:
        """How often warps loaded matrices of 8 rows, and how many more turns the banks took."""
        loads, more = self.library["dlc_loads"], self.library["dlc_conflicts"]
        loads.restype = more.restype = ctypes.c_int64
        return int(loads()), int(more())


def blocks(kernel: Kernel, sizes: Mapping[str, int]) -> int:
    """How many blocks a launch has."""
    total: Expr = Const(1, Var("n").dtype)
    for extent in kernel.grid:
        total = total * extent
    env: dict[str, Expr] = {s: Const(v, Var(s).dtype) for s, v in sizes.items()}
    found = canonical(substitute(total, env))
    assert isinstance(found, Const), "a grid reads sizes only"
    return max(0, int(found.value))


def _compile(text: str, library: Path, level: str) -> None:
    source = library.with_suffix(".cc")
    source.write_text(text, encoding="utf-8")
    flags = ["-std=c++20", level, "-ffp-contract=off", "-fno-gnu-unique", "-w"]
    command = ["g++", *flags, "-shared", "-fPIC"]
    done = subprocess.run(
        [*command, f"-I{FOLDER}", "-o", str(library), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = "\n".join(done.stderr.splitlines()[:20])
        raise CodegenError(stage="the C++ compiler", unit=str(source), reason=reason)
