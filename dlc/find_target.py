"""Targets as users give them."""

from __future__ import annotations

from dlc.core.target import Target
from dlc.core.target_parse import parse_target


def find_target(target: str | Target) -> Target:
    """The target that a string means; of a matrix engine of this machine, with what it takes.

    Raises:
        TargetError: as `parse_target` says.
    """
    return target if isinstance(target, Target) else parse_target(target, _measured)


def _measured(target: Target) -> int:
    from dlc.codegen.llvm.engine_rate import native_tile_cycles  # LLVM: few machines ask for it

    return native_tile_cycles(target)
