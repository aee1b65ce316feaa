"""A tuning session as it happens: a live table, plain lines for logs, or JSON lines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from dlc.cli.screen import finite, show_seconds, table
from dlc.core.count import show_count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from dlc.autotune.session import Snapshot, TaskView

Show = Callable[["Snapshot"], None]
_PLAIN_SECONDS = 10.0  # between lines of a log
_LIVE_SECONDS = 0.25
_BARS = "▁▂▃▄▅▆▇█"
_PARTS = "▏▎▍▌▋▊▉"
_MAX_ROWS = 20


@contextlib.contextmanager
def open_display(kind: str, console: Console, title: str) -> Iterator[Show]:
    """Show a session while the `with` lasts."""
    if kind == "none":
        yield lambda _: None
    elif kind == "jsonl":
        yield _each(0.0, lambda s: _write_json(s))
    elif kind == "plain":
        console.print(title, soft_wrap=True)
        yield _each(_PLAIN_SECONDS, lambda s: _print_plain(console, s))
    else:
        from rich.live import Live

        screen = _Screen(title)
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            yield _each(_LIVE_SECONDS, lambda s: live.update(screen.render(s), refresh=True))


def _print_plain(console: Console, snapshot: Snapshot) -> None:
    """A line, and at the end what became of each task."""
    console.print(plain_line(snapshot), soft_wrap=True)
    if snapshot.finished:
        console.print(_table(snapshot))
        if snapshot.ways:
            console.print(_ways(snapshot))


def plain_line(snapshot: Snapshot) -> str:
    """One line about a session."""
    parts = [
        _clock(snapshot.seconds),
        f"trials {snapshot.trials:,} ({_rate(snapshot):.1f}/s)",
        f"model {_estimate(snapshot)}",
    ]
    if failed := _failures(snapshot):
        parts.append(f"failed {failed}")
    if snapshot.correlation is not None:
        parts.append(f"rank corr. {snapshot.correlation:.2f}")
    if snapshot.eta_seconds is not None and not snapshot.finished:
        parts.append(f"ETA {_clock(snapshot.eta_seconds)}")
    return "  ".join(parts)


def snapshot_json(snapshot: Snapshot) -> dict[str, object]:
    """A session as data."""
    data = dataclasses.asdict(snapshot)
    return data | {"default_ns": snapshot.default_ns, "best_ns": snapshot.best_ns}


class _Screen:
    """The live table. It remembers the estimates for their curve."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.estimates: list[float] = []

    def render(self, snapshot: Snapshot) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        if snapshot.best_ns > 0 and snapshot.timed == len(snapshot.tasks):
            self.estimates.append(snapshot.best_ns)
        old = show_count(snapshot.resumed, "old trial")
        resumed = f" (resumed, {old})" if snapshot.resumed else ""
        head = f"{self.title}{resumed} · {show_count(len(snapshot.tasks), 'task')}"
        hidden = len(snapshot.tasks) - _MAX_ROWS
        lines: list[RenderableType] = [Text(head), _table(snapshot)]
        if hidden > 0:
            lines.append(Text(f"… and {show_count(hidden, 'more task')}", style="dim"))
        if snapshot.ways:
            lines.append(_ways(snapshot))
        return Group(*lines, Text(self._progress(snapshot)), Text(self._model(snapshot)))

    def _progress(self, snapshot: Snapshot) -> str:
        failed = _failures(snapshot) or "0"
        text = f" elapsed {_clock(snapshot.seconds)}  trials {snapshot.trials:,}"
        return f"{text} ({_rate(snapshot):.1f}/s)  failed {failed}"

    def _model(self, snapshot: Snapshot) -> str:
        text = f" model estimate {_estimate(snapshot)}"
        text += f"   {sparkline(self.estimates)}"
        if snapshot.correlation is not None:
            text += f"   cost-model rank corr. {snapshot.correlation:.2f}"
        if snapshot.eta_seconds is not None and not snapshot.finished:
            text += f"   ETA {_clock(snapshot.eta_seconds)}"
        return text


def sparkline(values: list[float], width: int = 12) -> str:
    """A curve as text, higher for smaller times."""
    if len(values) < 2:
        return ""
    picked = [values[n * (len(values) - 1) // (width - 1)] for n in range(width)]
    low, high = min(picked), max(picked)
    if low == high:
        return _BARS[0] * width
    steps = (round((high - v) / (high - low) * (len(_BARS) - 1)) for v in picked)
    return "".join(_BARS[step] for step in steps)


def _table(snapshot: Snapshot) -> Table:
    """The busiest tasks."""
    shown = table(
        "task", "weight", "trials", "best", "vs default", "status", left=("task", "status")
    )
    for view in sorted(snapshot.tasks, key=lambda t: -t.share)[:_MAX_ROWS]:
        shown.add_row(*_row(view))
    return shown


def _ways(snapshot: Snapshot) -> Table:
    """Ways through the graph, those whose kernels are the fastest first."""
    shown = table("way", "instead of", "speed-up", "status", left=("way", "instead of", "status"))
    for view in sorted(snapshot.ways, key=lambda w: -(w.speedup or 0.0))[:_MAX_ROWS]:
        gain = f"{view.speedup:.2f}×" if view.speedup is not None else ""
        shown.add_row(f"{view.name}: {view.option}", view.default, gain, view.status)
    return shown


def bar(share: float, width: int = 8) -> str:
    """A share of 1 as blocks, in eighths of a character."""
    eighths = round(share * width * 8)
    part = _PARTS[eighths % 8 - 1] if eighths % 8 else ""
    return ("█" * (eighths // 8) + part).ljust(width)


def _rate(snapshot: Snapshot) -> float:
    return snapshot.trials / snapshot.seconds if snapshot.seconds > 0 else 0.0


def _row(view: TaskView) -> tuple[str, ...]:
    known = math.isfinite(view.default_ns)
    gain = f"{view.default_ns / view.best_ns:.2f}×" if known and view.best_ns > 0 else ""
    best = show_seconds(view.best_ns / 1e9) if known else ""
    share = f"{view.share:.1%}" if known else ""
    status = f"{bar(view.flatness)} {view.status}"
    if view.is_alternative:
        status += " (of another way)"
    return view.name, share, f"{view.trials:,}", best, gain, status


def _failures(snapshot: Snapshot) -> str:
    total = sum(snapshot.failures.values())
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(snapshot.failures.items()))
    return f"{total} ({kinds})" if total else ""


def _estimate(snapshot: Snapshot) -> str:
    """The time of a run before and now, once all of it is known."""
    if snapshot.timed < len(snapshot.tasks):
        return f"? ({snapshot.timed} of {show_count(len(snapshot.tasks), 'default')} timed)"
    before, now = snapshot.default_ns / 1e9, snapshot.best_ns / 1e9
    return f"{show_seconds(before)} → {show_seconds(now)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}"


def _each(seconds: float, show: Show) -> Show:
    """Show at most so often, but always the last state of a finished session."""
    last = [-math.inf]

    def limited(snapshot: Snapshot) -> None:
        now = time.monotonic()
        if now - last[0] >= seconds or snapshot.finished:
            last[0] = now
            show(snapshot)

    return limited


def _write_json(snapshot: Snapshot) -> None:
    data = {"schema": "dlc.tune_progress/1", **snapshot_json(snapshot)}
    sys.stdout.write(json.dumps(finite(data)) + "\n")  # times not known yet are null
    sys.stdout.flush()
