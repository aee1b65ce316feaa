"""Schedule rules: how a kind of nest is scheduled on a kind of target.

The first rule of `RULES` that matches takes the function. Rules know shapes of loop nests, never
names of operators.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from types import ModuleType

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.nest import is_scheduled, stages
from dlc.schedule.primitive import refuse
from dlc.schedule.rules import (
    across,
    attend,
    attend_planes,
    columns,
    contract,
    contract_window,
    gpu_attend,
    gpu_contract,
    gpu_matrix,
    gpu_norm,
    gpu_online,
    gpu_own,
    gpu_repair,
    gpu_row,
    gpu_vector,
    gpu_window,
    matrix,
    planes,
    ranks,
    repair,
    row,
    short,
    sliding,
    transform,
    window,
    window_contract,
    words,
)
from dlc.schedule.rules.contraction import added_at_once
from dlc.schedule.rules.gpu_finish import bind_rest
from dlc.schedule.rules.prepare import (
    finish,
    gathers_rows,
    guard_products,
    inline_moves,
    split_digits,
)
from dlc.schedule.trace import Trace
from dlc.schedule.work import refuse_giant
from dlc.te.expr import Load

_LOG = logging.getLogger("dlc.schedule")

RULES: tuple[ModuleType, ...] = (
    matrix,
    attend_planes,
    transform,
    repair,
    words,
    contract_window,
    window_contract,
    attend,
    contract,
    sliding,
    window,
    short,
    row,
    columns,
    across,
    ranks,
)
GPU_RULES: tuple[ModuleType, ...] = (
    gpu_online,
    gpu_attend,
    gpu_norm,
    gpu_repair,
    gpu_matrix,
    gpu_contract,
    gpu_vector,
    gpu_row,
    gpu_window,
    gpu_own,
)


_ON_PLANES = (matrix, attend_planes)
_OF_LINES = (short, row, columns, across, ranks)


def rule_for(func: Func, target: Target) -> ModuleType | None:
    """The rule for a prepared function; None where loops need only `finish`."""
    return next(rules_for(func, target), None)


def rules_for(func: Func, target: Target) -> Iterator[ModuleType]:
    """The rules that know a prepared function, the best first; none where `finish` does."""
    if is_scheduled(func):
        return iter(())
    return (rule for rule in _rules(target) if rule.match(func, target) is not None)


def _rules(target: Target) -> tuple[ModuleType, ...]:
    return RULES if target.gpu is None else GPU_RULES


def schedule_func(func: Func, target: Target, knobs: Mapping[str, int]) -> Trace:
    """Schedule a lowered function: inline moves, the rule, then vectors and threads elsewhere.

    A rule one of whose steps is refused, or that writes out too much, leaves the function to the
    rules after it: a slower kernel is better than none. `DLC_LOG=schedule` tells. What is scheduled
    already stays as it is.
    """
    prepared = Trace(func)
    if is_scheduled(func):
        return prepared
    prepare(prepared, target)
    for rule in _rules(target):
        found = rule.match(prepared.func, target)
        if found is None:
            continue
        trace = prepared.copy()
        try:
            rule.schedule(trace, found, target, knobs)
            refuse_giant(trace.func)
        except ScheduleError as refusal:
            _LOG.info("%s is left to other rules: %s", rule.__name__, refusal)
            continue
        prepared = trace
        break
    else:
        rule = None
    if target.gpu is None and rule not in _ON_PLANES and planes.operands(func):
        _LOG.info("'%s' multiplies planes of bf16, and no rule knows its loops", func.name)
    finish_rest(prepared, target)
    return prepared


def schedule_by(
    rule: ModuleType, prepared: Trace, target: Target, knobs: Mapping[str, int]
) -> Trace:
    """As `schedule_func`, by one rule and no other, from what `prepare` has left on.

    Raises:
        ScheduleError: the rule does not know the nest, or one of its steps is refused, or it writes
            out too much.
    """
    trace = prepared.copy()
    found = rule.match(trace.func, target)
    if found is None:
        refuse("schedule", trace.func, f"{rule.__name__} does not know its nest")
    rule.schedule(trace, found, target, knobs)
    refuse_giant(trace.func)
    finish_rest(trace, target)
    return trace


def finish_rest(trace: Trace, target: Target) -> None:
    """Vectors and threads, or blocks, for every nest that no rule touched."""
    if target.gpu is None:
        finish(trace, target)
    else:
        bind_rest(trace)


def prepare(trace: Trace, target: Target) -> None:
    """Inline what only moves elements; products have operands of their own in memory."""
    if target.gpu is not None:
        inline_moves(trace)
        if any(s.is_reduction for s in stages(trace.func)) and rule_for(trace.func, target) is None:
            split_digits(trace, single=True)  # groups of several blocks of columns
        return
    guard_products(trace)
    at_once = planes.operands(trace.func, lambda s: added_at_once(s) is not None)
    kept = planes.operands(trace.func) | at_once | transform.kept(trace.func)
    inline_moves(trace, kept, keep_operands=True)
    for name in at_once:  # vectors read rows wherever they are: those that are ready are not copied
        made = [s for s in stages(trace.func) if s.buffer == name]
        if len(made) == 1 and isinstance(made[0].value, Load) and not gathers_rows(made[0]):
            trace.do("compute_inline", name)
    split_digits(trace, kept, target=target)
    rules = (words, contract_window, window_contract, attend, contract)
    is_known = any(rule.match(trace.func, target) is not None for rule in rules)
    if not is_known:
        inline_moves(trace, kept)
        split_digits(trace, kept, target=target)
    if not is_known or trace.func.sizes:  # products of known sizes have no open lines
        _collapse(trace, target)


def _collapse(trace: Trace, target: Target) -> None:
    """Make loops and dimensions one where rows or single elements are all that is told apart.

    Rows that are more become longer, and vectors then fill them; other rules know more loops. Of
    products, the open lines of an image become one, which leaves fewer rows to small tiles.
    """
    rule = rule_for(trace.func, target)
    lines = _open_lines(trace, target) if rule is contract else 0

    def one(trial: Trace) -> None:
        trial.do("collapse")
        found = rule_for(trial.func, target)
        if found is not rule and (rule is not None or found is not row):
            refuse("collapse", trial.func, "another rule would take the nest")
        if lines and _open_lines(trial, target) == lines:
            refuse("collapse", trial.func, "the lines are told apart")

    if rule is None or rule in _OF_LINES or lines > 1:
        trace.attempt(one)


def _open_lines(trace: Trace, target: Target) -> int:
    """How many loops over rows products have, if the last one is open; else 0."""
    found = contract.match(trace.func, target)
    if found is None or not found.rows or trace.constant(found.rows[-1]) is not None:
        return 0
    return len(found.rows)
