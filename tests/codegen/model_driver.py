"""Hand-made programs: kernels as LLVM IR text, built, exported and run through ctypes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from dlc.codegen.export import export_library
from dlc.codegen.llvm.host import emit_program
from dlc.core.manifest import ABI_VERSION, Manifest
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.core.types import DType
from dlc.schedule.loop import Block, Buffer, Func
from dlc.schedule.program import Program, SizeVar
from dlc.te.text import parse_expr
from dlc.te.types import TensorType

BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, BODY, ctypes.c_void_p, ctypes.c_int64)
SCRATCH = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
FAIL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
OUTPUT = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_int64)
)
I64 = ctypes.POINTER(ctypes.c_int64)
POINTERS = ctypes.POINTER(ctypes.c_void_p)
SELF = 4711


class Host(ctypes.Structure):
    _fields_ = (
        ("self", ctypes.c_void_p),
        ("parallel", PARALLEL),
        ("scratch", SCRATCH),
        ("fail", FAIL),
        ("allocate", ALLOCATE),
        ("release", RELEASE),
        ("output", OUTPUT),
    )


PLAN = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(Host), I64, I64, I64)
RUN = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.POINTER(Host), I64, POINTERS, POINTERS, ctypes.c_void_p
)


class Model(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("input_count", ctypes.c_uint32),
        ("output_count", ctypes.c_uint32),
        ("size_count", ctypes.c_uint32),
        ("plan", PLAN),
        ("run", RUN),
    )


class RunError(Exception):
    """A run that ended in `host->fail`."""


def buffer(name: str, *shape: str | int, dtype: DType = DType.F32) -> Buffer:
    dims = tuple(parse_expr(s) if isinstance(s, str) else s for s in shape)
    return Buffer(name, TensorType(dims, dtype))


def kernel(name: str, sizes: Sequence[str], inputs: int, outputs: int = 1) -> Func:
    """What a program has to know of a kernel: its name and its parameters."""
    ins = tuple(buffer(f"in{i}", 1) for i in range(inputs))
    outs = tuple(buffer(f"out{i}", 1) for i in range(outputs))
    return Func(name, tuple(sizes), ins, outs, Block(()))


def program(
    body: Sequence[object],
    *,
    sizes: Sequence[SizeVar] = (),
    inputs: Sequence[Buffer] = (),
    outputs: Sequence[Buffer] = (),
    constants: Sequence[Buffer] = (),
    kernels: Sequence[Func] = (),
    arena: Sequence[str] = (),
) -> Program:
    return Program(
        "main",
        tuple(sizes),
        tuple(inputs),
        tuple(outputs),
        tuple(constants),
        tuple(kernels),
        tuple(map(parse_expr, arena)),
        tuple(body),  # type: ignore[arg-type]
    )


def compile_text(ir: str, target: Target) -> bytes:
    """An object file from LLVM IR text."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(ir)
    module.verify()
    machine = llvm.Target.from_triple(target.triple).create_target_machine(opt=2, reloc="pic")
    return machine.emit_object(module)


def build(
    path: Path,
    prog: Program,
    kernels: Sequence[str] = (),
    constants: Mapping[str, np.ndarray] | None = None,
    target: Target | None = None,
) -> Path:
    """Export a program whose kernels are given as LLVM IR text."""
    target = target or parse_target("native")
    head = f'target triple = "{target.triple}"\n'
    objects = [compile_text(emit_program(prog, target), target)]
    objects += [compile_text(head + text, target) for text in kernels]
    manifest = Manifest("test", target.arch)
    export_library(prog, constants or {}, objects, manifest, path, target)
    return path


class Loaded:
    """A built model, run through its C interface."""

    def __init__(self, path: Path) -> None:
        query = ctypes.CDLL(str(path)).dlc_model_query
        query.restype = ctypes.POINTER(Model)
        query.argtypes = (ctypes.c_uint32,)
        self.query = query
        self.model = query(ABI_VERSION).contents
        self.messages: list[str] = []
        self.host = Host(
            SELF, PARALLEL(self._parallel), SCRATCH(lambda _s, _b: 0), FAIL(self._fail),
            ALLOCATE(self._allocate), RELEASE(self._release), OUTPUT(self._output),
        )  # fmt: skip
        self.ranks: dict[int, int] = {0: 2}  # of outputs whose shape depends on data
        self.allocated: list[int] = []  # bytes of each piece of memory asked for in the last run
        self.released = 0
        self.given: list[tuple[int, list[int], np.ndarray]] = []  # (output, shape, memory)
        self._memory: list[np.ndarray] = []

    def _allocate(self, host: int, size: int) -> int:
        assert host == SELF
        if size > 1 << 30:
            return 0
        self.allocated.append(size)
        self._memory.append(np.full(size + 64, 0xFF, np.uint8))
        return self._memory[-1].ctypes.data + -self._memory[-1].ctypes.data % 64

    def _release(self, host: int, memory: int) -> None:
        assert host == SELF
        assert any(0 <= memory - m.ctypes.data < 64 for m in self._memory)
        self.released += 1

    def _output(self, host: int, index: int, dims: Any) -> int:
        assert host == SELF
        shape = list(dims[: self.ranks[index]])
        self.given.append((index, shape, np.zeros(8 * math.prod(shape) + 8, np.uint8)))
        return self.given[-1][2].ctypes.data

    def _parallel(self, host: int, body: Callable[..., object], closure: int, extent: int) -> None:
        assert host == SELF
        body(closure, 0, extent)

    def _fail(self, host: int, message: bytes) -> None:
        assert host == SELF
        self.messages.append(message.decode())

    def _check(self, status: int) -> None:
        assert (status != 0) == bool(self.messages)
        if status:
            message = self.messages[0]
            self.messages.clear()
            raise RunError(message)

    def plan(self, *sizes: int, dims: int = 1) -> tuple[list[int], int]:
        """Dimensions of the outputs and bytes of the arena."""
        shape, arena = (ctypes.c_int64 * max(dims, 1))(), ctypes.c_int64(-1)
        given = (ctypes.c_int64 * len(sizes))(*sizes)
        self._check(self.model.plan(self.host, given, shape, ctypes.byref(arena)))
        return list(shape)[:dims], arena.value

    def run(
        self,
        sizes: Sequence[int],
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray | None],
        arena: int = 0,
    ) -> None:
        """Run into `outputs`."""
        memory = np.full(arena + 64, 0xFF, np.uint8)
        aligned = memory.ctypes.data + -memory.ctypes.data % 64
        ins = (ctypes.c_void_p * len(inputs))(*(a.ctypes.data for a in inputs))
        pointers = (None if a is None else a.ctypes.data for a in outputs)
        outs = (ctypes.c_void_p * len(outputs))(*pointers)
        self.allocated, self.given, self._memory, self.released = [], [], [], 0
        given = (ctypes.c_int64 * len(sizes))(*sizes)
        self._check(self.model.run(self.host, given, ins, outs, aligned))
