"""LLVM IR text -> object code: the code generator only; IR passes only where they are asked for."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import llvmlite.binding as llvm

from dlc.codegen.llvm.abreast import IN_ORDER
from dlc.codegen.llvm.moving import MARK
from dlc.core.errors import CodegenError
from dlc.core.target import Target

_LONG = 1 << 18
"""Characters of a module of calls from which on its code is written as it stands.

At LLVM's level 3, time grows with more than the square of a long function of open sizes: 1.0 MB
take more than 200 s (32 s at level 1, 0.1 s at level 0), 0.5 MB take 0.8 s (0.06 s at level 0).
What is as long calls hundreds of kernels, beside which loads and stores between them are nothing.
"""


def compile_host(ir_text: str, target: Target) -> bytes:
    """An object file for a module that calls kernels and computes nothing but sizes and places.

    Raises:
        CodegenError: LLVM rejects the module.
    """
    return compile_ir(ir_text, target, level=0 if len(ir_text) > _LONG else 3)


def compile_ir(ir_text: str, target: Target, *, passes: bool = False, level: int = 3) -> bytes:
    """An object file for a module.

    `passes` runs LLVM's own optimizer before, for code that no schedule made fast; `level`, from 0
    to 3, is how much its code generator tries.

    Raises:
        CodegenError: LLVM rejects the module.
    """
    machine, module = _prepare(ir_text, target, level)
    if passes:
        options = llvm.create_pipeline_tuning_options(speed_level=3)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
    with _switched(ir_text, passes=passes):
        found: bytes = machine.emit_object(module)
    return found


def assembly(ir_text: str, target: Target) -> str:
    """The assembly text of a module, for people and for checks."""
    machine, module = _prepare(ir_text, target)
    with _switched(ir_text):
        found: str = machine.emit_assembly(module)
    return found


_switches = threading.Lock()


@contextmanager
def _switched(ir_text: str, *, passes: bool = False) -> Iterator[None]:
    """Have LLVM take addresses and operations as they are written where the text says so.

    Its switches belong to the whole process: they are only held while code is generated.
    """
    moves = ir_text.startswith(MARK) and not passes
    in_order = ir_text.removeprefix(MARK).startswith(IN_ORDER)
    with _switches:
        _switch_off(addresses=moves, scheduler=in_order)
        try:
            yield
        finally:
            _switch_off(addresses=False, scheduler=False)


def _switch_off(*, addresses: bool, scheduler: bool) -> None:
    """Switch strength reduction, the sinking of addresses and the scheduler off, or on."""
    for name in ("-disable-lsr", "-disable-cgp"):
        llvm.set_option("dlc", f"{name}={int(addresses)}")
    llvm.set_option("dlc", f"-enable-misched={int(not scheduler)}")


@functools.cache
def initialize() -> None:
    """Have LLVM know all of its targets."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    # It adds sums of integers in another order, so that registers do not hold a tile any more.
    llvm.set_option("dlc", "-x86-machine-combiner=0")


def target_machine(target: Target, level: int = 3) -> llvm.TargetMachine:
    """LLVM's code generator for a target, at a level of optimization from 0 to 3."""
    initialize()
    cpu = "x86-64" if target.arch == "x86_64" else "generic"
    features = ",".join(f"+{name}" for name in sorted(target.features))
    return llvm.Target.from_triple(target.triple).create_target_machine(
        cpu=cpu, features=features, opt=level, reloc="pic", codemodel="small"
    )


def _prepare(
    ir_text: str, target: Target, level: int = 3
) -> tuple[llvm.TargetMachine, llvm.ModuleRef]:
    machine = target_machine(target, level)
    try:
        module = llvm.parse_assembly(ir_text)
        module.verify()
    except RuntimeError as error:
        name = re.search(r"define hidden void @([\w.]+)", ir_text)
        unit = name.group(1) if name else "module"
        raise CodegenError(stage="LLVM", unit=unit, reason=str(error)) from error
    if ir_text.startswith(MARK):
        _drop_dead_code(machine, module)
    return machine, module


def _drop_dead_code(machine: llvm.TargetMachine, module: llvm.ModuleRef) -> None:
    """Drop sums that nobody reads but their own loops, which strength reduction would drop."""
    passes = llvm.create_new_module_pass_manager()
    passes.add_aggressive_dce_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
