"""What would be tuned: the kernels of models as tasks, and the decisions of their graphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dlc.autotune.session import Weighted
from dlc.autotune.task import make_task
from dlc.core.errors import UserError
from dlc.core.fork import Choices
from dlc.core.target import Target
from dlc.find_target import find_target
from dlc.lowering import Lowered, lower_model
from dlc.schedule.interpret import evaluate_size
from dlc.schedule.loop import Func
from dlc.schedule.program import BindSize, CallKernel, HostIf, HostLoop, HostStmt, Program, SizeVar
from dlc.te.expr import Expr
from dlc.te.transform import free_vars, loads
from dlc.te.types import TensorType

if TYPE_CHECKING:
    from dlc.core.precision import Precision
    from dlc.frontend.onnx.interface import Dim
    from dlc.frontend.onnx.load import Model
    from dlc.frontend.onnx.structure import Structure


@dataclass(frozen=True, slots=True)
class Plan:
    """What would be tuned: tasks with how often a run does them, and the models they come from."""

    tasks: tuple[Weighted, ...]
    models: tuple[Lowered, ...] = field(repr=False)
    sizes: Mapping[str, int]
    ways: Choices = field(default_factory=Choices, repr=False)  # that the models take


def plan_tuning(
    models: Sequence[Model],
    target: str | Target = "native",
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    precision: Precision = "highest",
    only: str = "",
    at: Mapping[str, int] | None = None,
    ways: Choices | None = None,
) -> Plan:
    """The tasks of models: none where no run calls a kernel.

    An open size is measured as `at` says, else at its least value or 1.

    The models take the `ways` that are given, and tell which other ones there are.

    Raises:
        ModelError: a model cannot be read or compiled.
        UserError: no kernel's name contains `only`; `at` names no open size, or a value beyond it.
    """
    machine = find_target(target)
    lowered = [
        lower_model(
            m, machine, dims=dims, shapes=shapes, precision=precision, choices=ways,
            lists_forks=True,
        )
        for m in models
    ]  # fmt: skip
    found: dict[str, Weighted] = {}
    sizes: dict[str, int] = {}
    for model in lowered:
        known = model.imported.interface.sizes
        values = {
            s.name: _measured_at(s, known.get(s.name, s.name), at or {})
            for s in model.program.sizes
        }
        sizes |= {known.get(name, name): value for name, value in values.items()}
        for weighted in weigh_tasks(model, sizes):
            before = found.get(weighted.task.key)
            found[weighted.task.key] = before.joined(weighted) if before else weighted
    if unknown := [name for name in at or {} if name not in sizes]:
        hint = f"open are {', '.join(sizes)}" if sizes else "no size is open"
        raise UserError(detail=f"there is no open size '{unknown[0]}' to measure at", hint=hint)
    tasks = tuple(w for w in found.values() if only in w.task.name)
    if only and not tasks:
        names = ", ".join(sorted({w.task.name for w in found.values()}))
        hint = f"the kernels are {names}" if names else "a run calls no kernel"
        raise UserError(detail=f"there is no task '{only}'", hint=hint)
    return Plan(tasks, tuple(lowered), sizes, ways or Choices())


def weigh_tasks(model: Lowered, sizes: Mapping[str, int]) -> list[Weighted]:
    """The kernels of a model that a run calls, and how; `sizes` by the model's names."""
    known = model.imported.interface.sizes
    values = {s.name: sizes[known.get(s.name, s.name)] for s in model.program.sizes}
    return extract_tasks(model.program, model.target, values)


def _measured_at(size: SizeVar, name: str, at: Mapping[str, int]) -> int:
    """The value that stands for an open size."""
    value = at.get(name, max(1, size.minimum))
    if value < size.minimum or (size.maximum is not None and value > size.maximum):
        most = f" to {size.maximum}" if size.maximum is not None else " on"
        raise UserError(detail=f"'{name}' cannot be {value}: it is open from {size.minimum}{most}")
    return value


def extract_tasks(program: Program, target: Target, sizes: Mapping[str, int]) -> list[Weighted]:
    """The kernels of a program that a run calls at some sizes, and how."""
    kernels = {kernel.name: kernel for kernel in program.kernels}
    found = list(_calls(program.body, dict(sizes), frozenset(sizes), 1, ()))
    touched: defaultdict[str, dict[str, int]] = defaultdict(dict)  # by loop: bytes of its buffers
    for call in found:
        for buffer, param in zip(call.buffers, kernels[call.kernel].params, strict=True):
            size = _bytes(param.type, call.sizes_of(kernels))
            for loop in call.loops:
                touched[loop][buffer] = max(size, touched[loop].get(buffer, 0))
    caches = target.cores * target.l2_bytes
    small = {loop for loop, buffers in touched.items() if sum(buffers.values()) <= caches}
    tasks: dict[str, Weighted] = {}
    for call in found:
        name, is_warm = call.kernel, not small.isdisjoint(call.loops)
        before = tasks.get(name)
        task = before.task if before else make_task(kernels[name], target, call.sizes_of(kernels))
        weighted = Weighted(task, call.times, is_warm=is_warm)
        tasks[name] = before.joined(weighted) if before else weighted
    return list(tasks.values())


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a kernel: the values of its sizes, how often, and the loops around it."""

    kernel: str
    sizes: tuple[int, ...]
    buffers: tuple[str, ...]
    times: int
    loops: tuple[str, ...]

    def sizes_of(self, kernels: Mapping[str, Func]) -> dict[str, int]:
        return dict(zip(kernels[self.kernel].sizes, self.sizes, strict=True))


def _calls(
    body: Iterable[HostStmt],
    values: dict[str, int],
    known: frozenset[str],
    times: int,
    loops: tuple[str, ...],
) -> Iterator[_Call]:
    for stmt in body:
        match stmt:
            case CallKernel(name, given, buffers):
                yield _Call(name, tuple(_value(e, values) for e in given), buffers, times, loops)
            case HostIf(cond, then, other):
                taken = _is_taken(cond, values, known)
                if taken is not False:
                    yield from _calls(then, values, known, times, loops)
                if taken is not True:
                    yield from _calls(other, values, known, times, loops)
            case HostLoop(var, extent, inner):
                least = 0 if _is_known(extent, known) else 1
                if count := max(least, _value(extent, values)):
                    around = (*loops, var) if count > 1 else loops
                    yield from _calls(inner, {**values, var: 0}, known, times * count, around)
            case BindSize(name, value, _):
                values[name] = max(0, _value(value, values))
            case _:
                pass


def _is_taken(cond: Expr, values: Mapping[str, int], known: frozenset[str]) -> bool | None:
    """Whether a condition holds; None where that is up to the data."""
    return bool(evaluate_size(cond, values)) if _is_known(cond, known) else None


def _is_known(expr: Expr, known: frozenset[str]) -> bool:
    """Whether sizes that are known tell it, and no data does."""
    return free_vars(expr) <= known and not any(True for _ in loads(expr))


def _bytes(type_: TensorType, sizes: Mapping[str, int]) -> int:
    return _value(type_.elems, sizes) * type_.dtype.size_bytes


def _value(size: Expr, values: Mapping[str, int]) -> int:
    """A size; 1 where only the data tells it."""
    return 1 if any(True for _ in loads(size)) else evaluate_size(size, values)
