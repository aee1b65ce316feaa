"""Schedule rules: how a kind of nest is scheduled on a kind of target.

The first rule of `RULES` that matches takes the function. Rules know shapes of loop nests, never
names of operators.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import ModuleType

from dlc.core.errors import ScheduleError
from dlc.core.target import Target
from dlc.schedule.loop import Func
from dlc.schedule.rules import contract, gpu_contract, gpu_own, matrix, row, window
from dlc.schedule.rules.gpu_finish import bind_rest
from dlc.schedule.rules.prepare import finish, inline_moves, split_digits
from dlc.schedule.trace import Trace

_LOG = logging.getLogger("dlc.schedule")

RULES: tuple[ModuleType, ...] = (matrix, contract, window, row)
GPU_RULES: tuple[ModuleType, ...] = (gpu_contract, gpu_own)


def rule_for(func: Func, target: Target) -> ModuleType | None:
    """The rule for a function whose moves are inlined; None where loops need only `finish`."""
    rules = RULES if target.gpu is None else GPU_RULES
    return next((rule for rule in rules if rule.match(func, target) is not None), None)


def schedule_func(func: Func, target: Target, knobs: Mapping[str, int]) -> Trace:
    """Schedule a lowered function: inline moves, the rule, then vectors and threads elsewhere.

    A rule one of whose steps is refused leaves the function to the rules after it: a slower
    kernel is better than none. `DLC_LOG=schedule` tells.
    """
    prepared = Trace(func)
    prepare(prepared, target)
    for rule in RULES if target.gpu is None else GPU_RULES:
        found = rule.match(prepared.func, target)
        if found is None:
            continue
        trace = prepared.copy()
        try:
            rule.schedule(trace, found, target, knobs)
        except ScheduleError as refusal:
            _LOG.warning("%s is left to other rules: %s", rule.__name__, refusal)
            continue
        prepared = trace
        break
    if target.gpu is None:
        finish(prepared, target)
    else:
        bind_rest(prepared)
    return prepared


def prepare(trace: Trace, target: Target) -> None:
    """Inline what only moves elements; a contraction packs its strided operand by itself."""
    if target.gpu is not None:
        inline_moves(trace)
        return
    kept = matrix.operands(trace.func)
    inline_moves(trace, kept, keep_operands=True)
    split_digits(trace, kept)
    if contract.match(trace.func, target) is None:
        inline_moves(trace, kept)
        split_digits(trace, kept)
