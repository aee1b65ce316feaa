"""What a verification found."""

from __future__ import annotations

from dataclasses import dataclass

from dlc.compare_arrays import Error
from dlc.core.errors import VerificationError


@dataclass(frozen=True, slots=True)
class OutputReport:
    """How far one output is off. None where the engine was not asked, or could not answer."""

    name: str
    dlc: Error | None
    """dlc against the float64 reference."""
    peer: Error | None
    """onnxruntime against the float64 reference."""
    apart: Error | None
    """dlc against onnxruntime."""
    problem: str
    """Why dlc is wrong, or empty."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. Of several trials each output shows the worst."""

    outputs: tuple[OutputReport, ...]
    judges: tuple[str, ...]
    """Who was asked; nobody means that nothing is known."""
    notes: tuple[str, ...]
    trials: int

    @property
    def ok(self) -> bool:
        """Whether no output is wrong."""
        return not any(output.problem for output in self.outputs)

    def check(self) -> None:
        """Raise where the model is wrong.

        Raises:
            VerificationError: an output is wrong.
        """
        for output in self.outputs:
            if output.problem:
                raise VerificationError(output=f"output '{output.name}'", reason=output.problem)
