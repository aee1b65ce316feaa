"""python -m dlc.testing: judge random models, or one model again."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dlc.core.errors import UserError
from dlc.core.machine import usable_cores
from dlc.testing import campaign
from dlc.testing.campaign import Summary, signature
from dlc.testing.check import FAILURES, VARIANTS, Verdict
from dlc.testing.generate import Sample
from dlc.testing.process import Answer, Worker
from dlc.testing.reduce import reduce_sample
from dlc.testing.worker import load_sample, save_sample

_CONSOLE = Console(highlight=False)
_UNITS = {"s": 1, "m": 60, "h": 3600}


def main(
    seed: Annotated[int, typer.Option(help="the first seed")] = 0,
    count: Annotated[int, typer.Option(help="how many models")] = 1000,
    budget: Annotated[str, typer.Option(help="stop after this time: 90s, 10m, 2h")] = "",
    jobs: Annotated[int, typer.Option(help="processes; 0 for one per core")] = 0,
    folder: Annotated[Path, typer.Option(help="the log, and models that fail")] = Path(
        "build/fuzz"
    ),
    model: Annotated[Path | None, typer.Option(help="judge this model only")] = None,
    reduce: Annotated[bool, typer.Option(help="make models that fail small")] = True,
) -> None:
    """Draw random models, compile them in several ways, and compare with other engines."""
    if model is not None:
        sys.exit(_judge(model, folder))
    sys.exit(_campaign(seed, count, _seconds(budget), jobs or usable_cores(), folder, reduce))


def _judge(path: Path, folder: Path) -> int:
    with Worker(folder / "one", campaign.SECONDS) as worker:
        worker.send({"model": str(path), "variants": list(VARIANTS)})
        answer = worker.wait()
    _CONSOLE.print(
        f"{answer['verdict']} {answer.get('variant', '')}: {answer['detail']}", markup=False
    )
    return int(answer["verdict"] in FAILURES)


def _campaign(
    seed: int, count: int, budget: float | None, jobs: int, folder: Path, reduce: bool
) -> int:
    known = campaign.read_log(folder / "log.jsonl")
    summary = Summary()
    for old in range(seed, seed + count):
        if old in known:
            summary.add(old, known[old])
    left = [s for s in range(seed, seed + count) if s not in known]
    began, stopped = time.monotonic(), False
    with _progress() as progress:
        task = progress.add_task("", total=count, completed=summary.done, state=_state(summary))

        def report(number: int, answer: Answer) -> None:
            summary.add(number, answer)
            progress.update(task, completed=summary.done, state=_state(summary))
            if answer["verdict"] in FAILURES:
                progress.console.print(
                    f"seed {number}: {signature(answer)[:70]}  {answer['detail'][:200]}",
                    markup=False,
                )

        try:
            campaign.run(left, folder, processes=jobs, budget=budget, report=report)
        except KeyboardInterrupt:
            stopped = True
        except UserError as error:
            _CONSOLE.print(str(error), markup=False)
            return error.exit_code
    _print(summary, time.monotonic() - began)
    if stopped:
        _CONSOLE.print("stopped; the same command goes on from here")
        return 130
    if reduce and summary.failures:
        _reduce_all(summary, folder)
    return int(bool(summary.failures))


def _progress() -> Progress:
    return Progress(
        BarColumn(20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[state]}", markup=False),
        TimeRemainingColumn(),
        console=_CONSOLE,
    )


def _state(summary: Summary) -> str:
    return "  ".join(f"{name} {n}" for name, n in summary.verdicts.most_common())


def _print(summary: Summary, seconds: float) -> None:
    _CONSOLE.print(f"{summary.done} models, {seconds:.0f} s: {_state(summary)}", markup=False)
    _CONSOLE.print(f"{len(summary.operators)} operators in models that are right")
    for reason, number in summary.refusals.most_common(12):
        _CONSOLE.print(f"  {number:5} {reason[:150]}", markup=False)
    for kind, seeds in sorted(summary.failures.items(), key=lambda item: -len(item[1])):
        _CONSOLE.print(f"FAILED {len(seeds)} x (seed {seeds[0]}): {kind}", markup=False)


def _reduce_all(summary: Summary, folder: Path) -> None:
    """A small model for one seed of each kind of failure."""
    with Worker(folder / "reduce", campaign.SECONDS) as worker:
        for kind, seeds in summary.failures.items():
            path = folder / "failures" / str(seeds[0]) / "model.onnx"
            small = folder / "small" / str(seeds[0])
            if not path.exists() or small.exists():
                continue
            found = reduce_sample(load_sample(path), _same(worker, seeds[0]))
            _CONSOLE.print(
                f"{kind[:60]}: {len(found.model.graph.node)} nodes\n"
                f"    python -m dlc.testing --model {save_sample(found, small)}",
                markup=False,
            )


class _same:  # noqa: N801 - called like a function
    """Whether a model fails like the one of a seed."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self.worker = worker
        self.seed = seed
        self.wanted = self._ask({"seed": seed})

    def __call__(self, sample: Sample) -> bool:
        path = save_sample(sample, self.worker.folder / "try")
        return self.wanted[0] in FAILURES and self._ask({"model": str(path)}) == self.wanted

    def _ask(self, what: dict[str, object]) -> tuple[str, str]:
        self.worker.send({**campaign.request(self.seed), "seed": self.seed, **what})
        answer = self.worker.wait()
        detail = signature(answer) if answer["verdict"] == Verdict.UNCLEAR else ""
        return str(answer["verdict"]), detail


def _seconds(text: str) -> float | None:
    """`10m` in seconds; None of an empty text."""
    if not text:
        return None
    number, unit = text[:-1], text[-1]
    if unit not in _UNITS or not number.replace(".", "", 1).isdecimal():
        raise typer.BadParameter(f"'{text}' is no time like 90s, 10m or 2h")
    return float(number) * _UNITS[unit]


if __name__ == "__main__":
    typer.run(main)
