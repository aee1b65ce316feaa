"""Figures beside their aims, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

PEER = "at most onnxruntime's"
AIMS: dict[str, float | str] = {
    "run, µs": 3,
    "a call, µs": 3,
    "bound in Python, µs": 1.5,
    "from C++, µs": 0.5,
    "peak memory, MB": PEER,
    "loading, ms": 50,
    "beside a busy process, ms": PEER,
    "busy over quiet": PEER,
    "cold build, s": 15,
    "cold build, whole command, s": 15,
    "build from the cache, s": 2,
    "build from the cache, whole command, s": 2,
}


@dataclass(frozen=True, slots=True)
class Options:
    """How to measure; `seconds` are of one engine in one round."""

    threads: int
    rounds: int
    seconds: float
    has_peer: bool


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of dlc and, where it has one, of onnxruntime; `note` says why one is missing."""

    model: str
    name: str
    dlc: float | None
    onnxruntime: float | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the aim is met; None where there is none, or nothing to compare."""
        aim = AIMS.get(self.name)
        limit = self.onnxruntime if isinstance(aim, str) else aim
        return None if limit is None or self.dlc is None else self.dlc <= limit

    def document(self) -> dict[str, object]:
        """As JSON holds it."""
        return asdict(self) | {"aim": AIMS.get(self.name), "met": self.met}


def markdown(figures: Sequence[Figure]) -> str:
    """The table."""
    lines = ["| model | figure | dlc | onnxruntime | aim | met |", "|---|---|---:|---:|---:|---|"]
    for figure in figures:
        met = {True: "yes", False: "**no**", None: "–"}[figure.met]
        if figure.note:
            met = f"{met} ({figure.note})"
        cells = [figure.model, figure.name, _show(figure.dlc), _show(figure.onnxruntime)]
        lines.append(f"| {' | '.join([*cells, str(AIMS.get(figure.name, '–')), met])} |")
    return "\n".join(lines)


def _show(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
