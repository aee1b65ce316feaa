"""What is known of a way at a fork of the graph, as data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from dlc.autotune.record import Choice, digest_of
from dlc.core.errors import UserError
from dlc.core.fork import Fork, Way, fork_from_json


@dataclass(frozen=True, slots=True)
class Decision:
    """What was measured of one way at a fork, against its default.

    `speedup` is of the kernels that the way changes, each with the best schedule that is known, and
    with the transforms it takes; `model_speedup` was measured in a whole model, 0 where it did not
    win there.
    """

    fork: Fork
    option: str
    speedup: float
    model_speedup: float = 0.0
    made_at: float = 0.0  # seconds since 1970
    versions: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> str:
        """The key of the fork."""
        return self.fork.key

    @property
    def way(self) -> Way:
        """What to take, over what."""
        return Way(self.option, self.fork.default)

    @property
    def is_better(self) -> bool:
        """Whether the way won, by itself and in a whole model."""
        return self.speedup > 1.0 and self.model_speedup > 1.0

    def replaces(self, other: Decision | None) -> bool:
        """Whether this later verdict takes the place of an earlier one on the same fork.

        A way that lost says nothing against another one that won.
        """
        return other is None or self.is_better or not other.is_better

    @property
    def digest(self) -> str:
        """A hash of everything."""
        return digest_of(self.to_json())

    def to_json(self) -> dict[str, object]:
        """The decision as data."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        return data | {"fork": self.fork.to_json(), "versions": dict(self.versions)}


Verdict = Choice | Decision  # on the schedule of a task, or on a way at a fork


def best_decisions(decisions: Iterable[Decision]) -> dict[str, Decision]:
    """By fork the last verdict; where a way won, the last that won."""
    found: dict[str, Decision] = {}
    for decision in decisions:
        if decision.replaces(found.get(decision.key)):
            found[decision.key] = decision
    return dict(sorted(found.items()))


def decision_from_json(data: Mapping[str, Any]) -> Decision:
    """Read what `Decision.to_json` wrote; fields a later version added are passed over.

    Raises:
        UserError: it is not a decision.
    """
    try:
        known = {f.name: data[f.name] for f in fields(Decision) if f.name in data}
        known["fork"] = fork_from_json(data["fork"])
        known["versions"] = tuple(sorted(dict(data.get("versions", {})).items()))
        known["option"] = str(known["option"])
        for name in ("speedup", "model_speedup", "made_at"):
            known[name] = float(known.get(name, 0.0))
        return Decision(**known)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(detail=f"not a decision: {error}") from error
