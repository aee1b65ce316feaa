"""Targets as users give them."""

from __future__ import annotations

from dlc.codegen.llvm.engine_rate import native_tile_cycles
from dlc.core.errors import TargetError
from dlc.core.target import Target
from dlc.core.target_parse import parse_target


def find_target(target: str | Target) -> Target:
    """The target that a string means; of a matrix engine of this machine, with what it takes.

    That is measured once, by a process that takes half a second.

    Raises:
        TargetError: as `parse_target` says; it is neither a text nor a target.
    """
    if isinstance(target, Target):
        return target
    if not isinstance(target, str):
        reason = f"it is of type {type(target).__name__}, not a text"
        raise TargetError(target=repr(target), reason=reason, hint="write 'native'")
    return parse_target(target, native_tile_cycles)
