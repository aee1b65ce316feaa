"""Runs emitted kernels in this process: JIT, a `dlc_host` made of callbacks, NumPy arrays."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.load import load
from dlc.core.machine import may_use_tiles
from dlc.core.target import Target
from dlc.schedule.interpret import numpy_dtype, run_func
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.text import parse_func
from dlc.te.expr import Const, Expr, Var
from dlc.te.simplify import simplify
from dlc.te.transform import substitute

_LIBC = ctypes.CDLL(None)
_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, _BODY, ctypes.c_void_p, ctypes.c_int64)
_SCRATCH = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_FAIL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)


class _HostStruct(ctypes.Structure):
    _fields_ = (
        ("self", ctypes.c_void_p),
        ("parallel", _PARALLEL),
        ("scratch", _SCRATCH),
        ("fail", _FAIL),
    )


class Host:
    """What kernels see of the runtime: backwards chunks of loops, scratch memory, failures.

    As in the runtime, scratch memory inside of a loop is not that around it.
    """

    def __init__(self, *, memory: bool = True) -> None:
        self.messages: list[str] = []
        self.scratch_sizes: list[int] = []
        self.parallel_extents: list[int] = []
        self.memory = memory
        self._scratch: list[np.ndarray | None] = [None, None]
        self._inside = 0
        self._old: list[Any] = []
        self._callbacks = (
            _PARALLEL(self._parallel), _SCRATCH(self._get_scratch), _FAIL(self._fail),
        )  # fmt: skip
        self.struct = _HostStruct(None, *self._callbacks)

    def _parallel(self, _: int, body: Any, closure: int, extent: int) -> None:
        self.parallel_extents.append(extent)
        self._inside = 1
        for begin in range(0, extent, 3)[::-1]:
            body(closure, begin, min(begin + 3, extent))
        self._inside = 0

    def _get_scratch(self, _: int, size: int) -> int | None:
        self.scratch_sizes.append(size)
        if not self.memory:
            return None
        memory = self._scratch[self._inside]
        if memory is None or size > len(memory):  # as the runtime does: grow, else the same memory
            self._old.append(memory)
            memory = self._scratch[self._inside] = _guarded(-(-size // 64) * 64, 0xA5)[0]
        return memory.ctypes.data

    def _fail(self, _: int, message: bytes) -> None:
        self.messages.append(message.decode())


def native_target(*without: str) -> Target:
    """This machine, less some features, and less a matrix engine that nobody may use."""
    found = llvm.get_host_cpu_features()
    names = {name for name, on in found.items() if on and name not in without}
    if "amx-tile" in names and not may_use_tiles():
        names = {name for name in names if not name.startswith("amx")}
    features = frozenset(names)
    return Target(features=features, thread_operations=0)  # small loops run parallel, too


NATIVE = native_target()
BASELINE = Target(features=frozenset({"sse2"}))  # no FMA, no masks, no half floats
_WIDE = [n for n in NATIVE.features if n.startswith(("avx512", "avx10")) or n == "evex512"]
AVX2 = native_target(*_WIDE)
TARGETS = {"native": NATIVE, "avx2": AVX2, "baseline": BASELINE}


class Kernel:
    """A compiled kernel."""

    def __init__(self, func: Func | str, target: Target = NATIVE) -> None:
        self.func = parse_func(func) if isinstance(func, str) else func
        self.ir = emit_func(self.func, target)
        self.code = load(compile_ir(self.ir, target), self.func.name)
        self.address = self.code[self.func.name]
        assert self.address

    def __call__(
        self,
        sizes: Mapping[str, int],
        arrays: Mapping[str, np.ndarray],
        host: Host | None = None,
    ) -> dict[str, np.ndarray]:
        """Outputs for inputs; nothing is aligned beyond its element type.

        Arrays may have the shape that they had before `collapse` made dimensions one.
        """
        host = host or Host()
        shared = dict(self.func.in_place)
        buffers: dict[str, np.ndarray] = {}
        guards: list[tuple[np.ndarray, int, int]] = []
        for buffer in self.func.params:
            if (source := shared.get(buffer.name)) is not None:
                buffers[buffer.name] = buffers[source]
                continue
            shape = array_shape(buffer, sizes)
            array, raw, first, last = _unaligned(shape, numpy_dtype(buffer.type.dtype))
            guards.append((raw, first, last))
            if buffer.name in arrays:
                array[...] = np.reshape(arrays[buffer.name], shape)
            buffers[buffer.name] = array
        kinds = [ctypes.c_void_p, *[ctypes.c_int64] * len(sizes), *[ctypes.c_void_p] * len(buffers)]
        pointers = [buffers[b.name].ctypes.data for b in self.func.params]
        values = [sizes[name] for name in self.func.sizes]
        ctypes.CFUNCTYPE(None, *kinds)(self.address)(ctypes.byref(host.struct), *values, *pointers)
        for raw, first, _ in guards:
            assert (raw[:first] == 0x5B).all(), "a write before a buffer"
        return {b.name: buffers[b.name] for b in self.func.outputs}


def _unaligned(shape: tuple[int, ...], dtype: Any) -> tuple[np.ndarray, np.ndarray, int, int]:
    """An array that no read may overrun: it ends where a page that cannot be touched begins.

    In front of it lie guard bytes. It is aligned to its elements and to nothing more.
    """
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    used, raw, first, last = _guarded(count, 0)
    return used.view(dtype).reshape(shape), raw, first, last


def _guarded(count: int, value: int) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Bytes of one value that end at a page nobody may touch, and all that lies before the page.

    Also the first and the last place of those bytes in it; the places before are guard bytes.
    """
    pages = -(-(count + 256) // mmap.PAGESIZE)
    raw = np.frombuffer(mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE), np.uint8)
    last = pages * mmap.PAGESIZE
    assert _LIBC.mprotect(ctypes.c_void_p(raw.ctypes.data + last), mmap.PAGESIZE, 0) == 0
    first = last - count
    raw[:first] = 0x5B
    if value:
        raw[first:last] = value
    return raw[first:last], raw, first, last


def array_shape(buffer: Buffer, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a buffer for some sizes."""
    return tuple(_value(s, sizes) for s in buffer.type.shape)


def _value(size: Expr, sizes: Mapping[str, int]) -> int:
    env = {name: Const(value, Var("x").dtype) for name, value in sizes.items()}
    found = simplify(substitute(size, env))
    assert isinstance(found, Const)
    return int(found.value)


def random_arrays(func: Func, sizes: Mapping[str, int], seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs for a function: floats with NaN among them, small integers, bools."""
    rng = np.random.default_rng(seed)
    result = {}
    for buffer in func.inputs:
        shape = array_shape(buffer, sizes)
        dtype = buffer.type.dtype
        data: np.ndarray
        if dtype.is_float:
            data = rng.standard_normal(shape) * 3
        elif dtype.is_int:
            data = rng.integers(0 if not dtype.is_signed else -50, 100, shape)
        else:
            data = rng.integers(0, 2, shape)
        result[buffer.name] = np.asarray(data).astype(numpy_dtype(dtype))
    return result


def check(
    text: str | Func,
    *all_sizes: Mapping[str, int],
    target: Target = NATIVE,
    arrays: Mapping[str, np.ndarray] | None = None,
    rtol: float = 1e-5,
) -> Kernel:
    """Compare a kernel with the interpreter, for each set of sizes."""
    kernel = Kernel(text, target)
    for n, sizes in enumerate(all_sizes or ({},)):
        data = arrays if arrays is not None else random_arrays(kernel.func, sizes, seed=n)
        with np.errstate(all="ignore"):
            expected = run_func(kernel.func, sizes, data)
        got = kernel(sizes, data)
        for name, array in expected.items():
            if array.dtype.kind in "fV":
                a, b = got[name].astype(np.float64), array.astype(np.float64)
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol, err_msg=f"{name}, {sizes}")
            else:
                np.testing.assert_array_equal(got[name], array, err_msg=f"{name}, {sizes}")
    return kernel
