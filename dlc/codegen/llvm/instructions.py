"""Hardware instructions: how an `Invoke` becomes LLVM IR."""

from __future__ import annotations

from dlc.codegen.llvm.values import Values
from dlc.core.errors import CodegenError
from dlc.schedule.loop import Invoke


def emit_instruction(values: Values, stmt: Invoke) -> None:
    """Emit one instruction."""
    raise CodegenError(
        stage="code generation",
        unit=f"instruction '{stmt.instruction}'",
        reason="it has no emitter",
    )
