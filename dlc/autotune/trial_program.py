"""A kernel as an artefact of its own: a host program that calls it once, on buffers of fixed size.

The artefact goes the way of a whole model, so a candidate is measured as it will be deployed:
by the runtime, on its threads, with its scratch memory. It is linked in memory and leaves no file.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dlc.autotune.task import Task
from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.emit import emit_func
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.toolchain import find_driver
from dlc.codegen.weight_offsets import WEIGHTS_SYMBOL
from dlc.core import xxh64
from dlc.core.errors import CodegenError
from dlc.core.machine import host_arch
from dlc.core.manifest import Manifest, TensorSpec, seal
from dlc.core.target import Target
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.program import CallKernel, Program
from dlc.te.expr import index
from dlc.te.types import TensorType

KERNEL = "candidate"  # the symbol of every candidate


def compile_candidate(func: Func, target: Target, *, plain: bool = False) -> bytes:
    """The object file of a scheduled function; LLVM improves one that is `plain`.

    Raises:
        CodegenError: LLVM rejects what was emitted.
    """
    return compile_ir(emit_func(replace(func, name=KERNEL), target), target, passes=plain)


def make_artefact(task: Task, code: bytes) -> bytes:
    """Link the object file of a candidate with the host program of its task.

    Raises:
        CodegenError: the linker fails.
        TargetError: there is no linker for the target.
    """
    files = [_memory("host.o", _host_object(task)), _memory("kernel.o", code)]
    files.append(_memory("weights.o", _no_weights(task.target)))
    out = os.memfd_create("candidate.so")
    try:
        command = [*_linker(task.target), "-shared", "-o", _path(out), *map(_path, files)]
        done = subprocess.run(
            command, pass_fds=(*files, out), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise CodegenError(stage="the linker", unit=task.name, reason=done.stderr.strip())
        seal(Path(_path(out)), _manifest(task), hasher=_hasher())
        return Path(_path(out)).read_bytes()
    finally:
        for file in (*files, out):
            os.close(file)


def interface(task: Task) -> tuple[tuple[Buffer, ...], tuple[Buffer, ...]]:
    """Inputs and outputs of a task's artefact, of constant shape.

    An input that shares its memory with an output is that output: its first content is the data.
    """
    func = task.func
    shared = {source for _, source in func.in_place}
    inputs = tuple(_fixed(b, task) for b in func.inputs if b.name not in shared)
    return inputs, tuple(_fixed(b, task) for b in func.outputs)


def _fixed(buffer: Buffer, task: Task) -> Buffer:
    sizes = dict(task.sizes)
    shape = tuple(evaluate_size(s, sizes) for s in buffer.type.shape)
    return Buffer(buffer.name, TensorType(shape, buffer.type.dtype))


def _program(task: Task) -> Program:
    func = replace(task.func, name=KERNEL)
    inputs, outputs = interface(task)
    shared = {source: out for out, source in func.in_place}
    names = tuple(shared.get(b.name, b.name) for b in func.params)
    call = CallKernel(KERNEL, tuple(index(value) for _, value in task.sizes), names)
    return Program("trial", (), inputs, outputs, (), (func,), (), (call,))


@functools.lru_cache(maxsize=64)
def _host_object(task: Task) -> bytes:
    return compile_ir(emit_program(_program(task), task.target), task.target)


@functools.lru_cache(maxsize=8)
def _no_weights(target: Target) -> bytes:
    """Every host program knows where its weights are; these have none."""
    text = (
        f'target triple = "{target.triple}"\n@{WEIGHTS_SYMBOL} = hidden constant i8 0, align 64\n'
    )
    return compile_ir(text, target)


def _manifest(task: Task) -> Manifest:
    from dlc import __version__

    inputs, outputs = interface(task)
    target = task.target
    return Manifest(
        dlc_version=__version__,
        architecture=target.arch,
        cpu_features=tuple(sorted(target.features)),
        inputs=_specs(inputs),
        outputs=_specs(outputs),
    )


def _specs(buffers: Sequence[Buffer]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(b.name, b.type.dtype, b.type.static_shape) for b in buffers)


@functools.lru_cache(maxsize=8)
def _linker(target: Target) -> tuple[str, ...]:
    """The linker itself where it is there: a compiler driver takes longer than all the rest."""
    native = target.arch == host_arch()
    if native and (path := shutil.which("ld")):
        return (path,)
    return (*find_driver(target), "-nostdlib")


def _hasher() -> Callable[[Path], int]:
    try:
        from dlc.runtime import hash_file
    except ImportError:  # a machine that only builds
        return xxh64.hash_file
    return hash_file


def _memory(name: str, data: bytes) -> int:
    file = os.memfd_create(name)
    with open(file, "wb", closefd=False) as out:
        out.write(data)
    return file


def _path(file: int) -> str:
    return f"/proc/self/fd/{file}"
