"""The host program as LLVM IR text: `run`, `plan` and `dlc_model_query` of `dlc/abi.h`.

Kernels are hidden symbols `void kernel(ptr host, i64 sizes..., ptr buffers...)`; all constants lie
behind one hidden symbol, `dlc_weights`, at the offsets `weight_offsets` gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dlc.codegen.llvm.host_expr import DECLARATIONS, emit_messages
from dlc.codegen.llvm.host_function import HostFunction
from dlc.codegen.weight_offsets import WEIGHTS_SYMBOL
from dlc.core.errors import CodegenError
from dlc.core.target import Target
from dlc.schedule.demand import demand
from dlc.schedule.program import (
    ALIGNMENT,
    CallRuntime,
    Program,
    statements,
)

ABI_VERSION = 3  # DLC_ABI_VERSION of dlc/abi.h
MODEL_SYMBOL = "dlc_model_query"
_RESERVED = frozenset({"memcpy", "memset", "memmove"})

PROFILE = 0x80000000  # DLC_PROFILE of dlc/abi.h
TEXTS = 0x20000000  # DLC_TEXTS: what a runtime that knows no texts does not ask for

_MODEL_TYPE = "{ i32, i32, i32, i32, ptr, ptr }"


@dataclass(frozen=True, slots=True)
class Table:
    """What else `dlc_model_query` may be asked for."""

    flag: int
    """What is added to the version then."""
    symbol: str
    text: str
    """IR that defines the symbol."""
    alone: bool = False
    """Whether a runtime that does not know the flag must not run the program."""


def needs_texts(program: Program) -> bool:
    """Whether a program calls functions of the runtime."""
    return any(isinstance(stmt, CallRuntime) for stmt in statements(program.body))


def emit_program(
    program: Program,
    target: Target,
    symbols: Mapping[str, str] | None = None,
    table: Table | None = None,
) -> str:
    """Write a host program as LLVM IR text.

    Args:
        program: a verified program.
        target: the machine it is for.
        symbols: the symbol of each kernel, where it is not the kernel's name.
        table: what else `dlc_model_query` may be asked for.

    Raises:
        CodegenError: a kernel's name is not usable, or a size is needed before it is known.
    """
    names = {kernel.name: kernel.name for kernel in program.kernels} | dict(symbols or {})
    messages: dict[str, str] = {}
    run = HostFunction(program, names, messages).run()
    profiled = HostFunction(
        program, names, messages, demands={k.name: demand(k) for k in program.kernels}
    )
    plan = HostFunction(program, names, messages).plan()
    fields = (ABI_VERSION, len(program.inputs), len(program.outputs), len(program.sizes))
    plain = ABI_VERSION | TEXTS if needs_texts(program) else ABI_VERSION
    answers = {} if table is not None and table.alone else {plain: "dlc_model"}
    answers[ABI_VERSION | PROFILE] = "dlc_model_profiled"
    if table is not None:
        answers[ABI_VERSION | table.flag] = table.symbol
    parts = [
        f'target triple = "{target.triple}"\n',
        f"@{WEIGHTS_SYMBOL} = external hidden constant i8, align {ALIGNMENT}\n",
        _model("dlc_model", fields, "dlc_run"),
        _model("dlc_model_profiled", fields, "dlc_run_profiled"),
        _declare_kernels(program, names),
        DECLARATIONS,
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)\n",
        _query(answers),
        plan,
        run,
        profiled.run(),
        emit_messages(messages),
        table.text if table is not None else "",
        "attributes #0 = { nounwind }\n",
    ]
    return "".join(parts)


def _query(answers: Mapping[int, str]) -> str:
    """The exported function: a model for each version, with or without a flag."""
    lines = [f"define ptr @{MODEL_SYMBOL}(i32 %abi) #0 {{"]
    found = "null"
    for number, (version, name) in enumerate(answers.items()):
        lines.append(f"  %is{number} = icmp eq i32 %abi, {version}")
        lines.append(f"  %found{number} = select i1 %is{number}, ptr @{name}, ptr {found}")
        found = f"%found{number}"
    return "\n".join([*lines, f"  ret ptr {found}", "}", ""])


def _model(name: str, fields: tuple[int, ...], run: str) -> str:
    """A `dlc_model` as a constant."""
    numbers = ", ".join(f"i32 {field}" for field in fields)
    head = f"@{name} = internal constant {_MODEL_TYPE}"
    return f"{head} {{ {numbers}, ptr @dlc_plan, ptr @{run} }}, align 8\n"


def _declare_kernels(program: Program, names: Mapping[str, str]) -> str:
    """Each symbol once: equal kernels share one."""
    lines = {}
    for kernel in program.kernels:
        symbol = names[kernel.name]
        if symbol in _RESERVED or symbol.startswith("dlc_"):
            reason = f"a kernel cannot be called '{symbol}'"
            raise CodegenError(stage="the host emitter", unit=program.name, reason=reason)
        types = ["ptr", *["i64"] * len(kernel.sizes), *["ptr"] * len(kernel.params)]
        lines[symbol] = f"declare hidden void @{symbol}({', '.join(types)}) #0\n"
    return "".join(lines.values())
