"""A build as it happens: one line for each stage that ended, and a bar for the one at work."""

from __future__ import annotations

from itertools import pairwise
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from dlc.stages import Progress

STAGES = ("import", "optimize", "lower", "codegen", "link", "verify")
_FOLLOWING = dict(pairwise(STAGES)) | {"cache": "verify"}
_MARKS = {"done": ("✓", "green"), "warning": ("!", "yellow")}


class BuildDisplay:
    """Shows the events of a build on a console. Without a terminal there is no bar."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn
        from rich.progress import Progress as Bar

        self.console = console
        self.quiet = quiet
        self.live = console.is_terminal and not console.is_dumb_terminal and not quiet
        self.bar = Bar(
            TextColumn(" "),
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            TextColumn("{task.fields[detail]}", markup=False),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task(STAGES[0], total=None, detail="")

    def __enter__(self) -> BuildDisplay:
        if self.live:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.live:
            self.bar.stop()

    def __call__(self, event: Progress) -> None:
        """An event of the compiler."""
        if event.stage == "kernel":
            detail = f"{event.done}/{event.total} {event.detail[:24]}"
            self.bar.update(self.task, completed=event.done, total=event.total, detail=detail)
            return
        self.line("done", event.stage, event.detail, event.seconds)
        self.bar.remove_task(self.task)
        self.task = self.bar.add_task(_FOLLOWING.get(event.stage, ""), total=None, detail="")

    def line(self, kind: str, stage: str, detail: str, seconds: float) -> None:
        """One line for a stage that ended, cut to the width of the console."""
        if self.quiet:
            return
        from rich.text import Text

        mark, style = _MARKS[kind]
        most = max(20, self.console.width - 25)
        room = min(most, 75)
        cut = detail if len(detail) <= most else detail[: most - 1] + "…"
        text = Text.assemble(
            "  ", (mark, style), f" {stage:<9} {cut:<{room}} ", (f"{seconds:7.2f} s", "dim")
        )
        self.console.print(text, soft_wrap=True)
