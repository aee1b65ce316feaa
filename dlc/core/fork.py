"""What the passes of the graph decide, as data: a fork has several ways, of which one is taken.

A pass asks which way to go and says which one its model of costs takes. Nothing that is asked holds
a name of the model, so what was measured in one model holds in every other with the same fork.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dlc.core.errors import UserError
from dlc.core.target import Target
from dlc.core.target_json import record_facts, target_from_json, target_to_json


@dataclass(frozen=True, slots=True)
class Fork:
    """A decision: what it is about, its ways, and the default, which costs are estimated for.

    `version` is raised when a way comes to mean something else. `cycles` are estimates of each
    way's time by the model of costs, in the order of `options`.
    """

    kind: str  # "winograd", "fusion", ...
    version: int
    about: str  # graph text with numbers for names
    target: Target
    precision: str
    options: tuple[str, ...]
    default: str
    cycles: tuple[float, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        assert self.default in self.options
        assert len(self.cycles) in (0, len(self.options))

    @property
    def key(self) -> str:
        """A hash of what is decided, and for which machine; not of the ways there are."""
        return _key(self.kind, self.version, self.about, self.target, self.precision)

    @property
    def others(self) -> tuple[str, ...]:
        """The ways that are not the default."""
        return tuple(o for o in self.options if o != self.default)

    @property
    def name(self) -> str:
        """What it is about, for people: its operators and the type of the result."""
        lines = [line for line in self.about.splitlines() if " = " in line]
        names = dict.fromkeys(line.split(" = ")[1].split("(")[0] for line in lines)
        result = lines[-1].split(" = ")[0].split(": ", 1)[1] if lines else ""
        return f"{self.kind} of {' '.join(names)} {result}".strip()

    def cycles_of(self, option: str) -> float | None:
        """The estimate of a way's time; None where there is no model."""
        return self.cycles[self.options.index(option)] if self.cycles else None

    def to_json(self) -> dict[str, object]:
        """The fork as data."""
        return asdict(self) | {"target": target_to_json(self.target)}


def fork_from_json(data: Mapping[str, Any]) -> Fork:
    """Read what `Fork.to_json` wrote.

    Raises:
        UserError: it is not a fork.
    """
    match data:
        case {
            "kind": str(kind),
            "version": int(version),
            "about": str(about),
            "target": dict(target),
            "precision": str(precision),
            "options": [*options],
            "default": str(default),
        } if default in options and all(isinstance(o, str) for o in options):
            machine = target_from_json(target)
            cycles = tuple(map(float, data.get("cycles", ())))
            known = cycles if len(cycles) == len(options) else ()
            return Fork(kind, version, about, machine, precision, tuple(options), default, known)
    raise UserError(detail="not a fork of a graph")


@dataclass(frozen=True, slots=True)
class Way:
    """The way to take at a fork, which was measured against another one."""

    option: str
    default: str


@dataclass(frozen=True, slots=True)
class Choices:
    """Ways to take by the key of their fork; at every other fork the default is."""

    ways: Mapping[str, Way] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of forks."""
        return len(self.ways)

    def __repr__(self) -> str:
        """The same for the same choices."""
        return f"Choices({sorted(self.ways.items(), key=lambda pair: pair[0])})"

    def option(self, fork: Fork) -> str:
        """The way to take: the default, unless another was chosen over this very default.

        One that the fork does not have, by now or here, is not taken.
        """
        way = self.ways.get(fork.key)
        fits = way is not None and way.default == fork.default and way.option in fork.options
        return way.option if way is not None and fits else fork.default


@functools.lru_cache(maxsize=4096)
def _key(kind: str, version: int, about: str, target: Target, precision: str) -> str:
    facts = [kind, version, about, precision, record_facts(target)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
