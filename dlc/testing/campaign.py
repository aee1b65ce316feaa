"""Judge many random models: several processes, a log that is continued, a summary."""

from __future__ import annotations

import fcntl
import json
import re
import select
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dlc.core.errors import UserError
from dlc.testing.check import FAILURES, VARIANTS, Verdict
from dlc.testing.process import Answer, Worker

SECONDS = 60.0
"""How long one model may take. Machines are slow when they are shared."""


@dataclass
class Summary:
    """Verdicts so far, and the failures by what they have in common."""

    verdicts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    failures: dict[str, list[int]] = field(default_factory=dict)
    """Signature -> seeds."""

    def add(self, seed: int, answer: Answer) -> None:
        """Count an answer."""
        self.verdicts[answer["verdict"]] += 1
        if answer["verdict"] == Verdict.OK:
            self.operators.update(answer.get("operators", ()))
        if answer["verdict"] == Verdict.REFUSED:
            self.refusals[signature(answer)] += 1
        if answer["verdict"] in FAILURES:
            self.failures.setdefault(signature(answer), []).append(seed)

    @property
    def done(self) -> int:
        """How many models were judged."""
        return sum(self.verdicts.values())


def signature(answer: Answer) -> str:
    """What equal failures have in common: the verdict and the message without names and numbers."""
    detail = re.sub(r"'[^']*'|\([^()]*\)", "…", str(answer.get("detail", "")))
    detail = re.sub(r"-?\d+(\.\d+)?(e[-+]?\d+)?", "#", detail)
    if answer["verdict"] in (Verdict.MISMATCH, Verdict.MEANING):
        detail = " ".join(answer.get("operators", ()))
    return f"{answer['verdict']} {answer.get('variant', '')} {detail}"[:200]


def read_log(path: Path) -> dict[int, Answer]:
    """The answers of an earlier run by seed; a line that was cut short is ignored."""
    found: dict[int, Answer] = {}
    if not path.exists():
        return found
    for line in path.read_text().splitlines():
        try:
            answer = json.loads(line)
            found[int(answer["seed"])] = answer
        except (ValueError, KeyError, TypeError):
            continue
    return found


def run(
    seeds: Iterable[int],
    folder: Path,
    *,
    processes: int,
    budget: float | None = None,
    seconds: float = SECONDS,
    report: Callable[[int, Answer], None] = lambda seed, answer: None,
) -> None:
    """Judge the models of some seeds; answers go to `folder`/log.jsonl as they come.

    Models that fail are kept in `folder`/failures. A process that dies is replaced.

    Args:
        seeds: what to draw.
        folder: made where it is missing.
        processes: how many models at a time.
        budget: seconds after which no model is begun.
        seconds: how long one model may take.
        report: called with every answer.

    Raises:
        UserError: another campaign writes to the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + budget if budget is not None else float("inf")
    pending = iter(seeds)
    with ExitStack() as stack, open(folder / "log.jsonl", "a") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reason = f"another campaign writes to {folder}"
            raise UserError(detail=reason, hint="wait for it, or give another --folder") from None
        workers = [
            stack.enter_context(Worker(folder / f"worker{i}", seconds)) for i in range(processes)
        ]
        busy: dict[Worker, int] = {}
        for worker in workers:
            _begin(worker, pending, ends, busy)
        while busy:
            select.select(list(busy), [], [], 0.2)
            for worker, seed in list(busy.items()):
                answer = worker.poll()
                if answer is None:
                    continue
                del busy[worker]
                _keep(worker, seed, answer, folder)
                log.write(json.dumps({"seed": seed, **answer}) + "\n")
                log.flush()
                report(seed, answer)
                _begin(worker, pending, ends, busy)


def _begin(worker: Worker, pending: Iterator[int], ends: float, busy: dict[Worker, int]) -> None:
    """Give a worker the next seed, if there is one."""
    if time.monotonic() < ends and (seed := next(pending, None)) is not None:
        worker.send(request(seed))
        busy[worker] = seed


def request(seed: int) -> dict[str, Any]:
    """What to ask a worker about a seed: the default, and of every second one another way, too.

    A new model finds more than another way to compile a known one: of eleven failures in 3,600
    models, two were of another way only, and that took half of the time.
    """
    other = VARIANTS[1 + seed // 2 % (len(VARIANTS) - 1)]
    return {"seed": seed, "variants": ["", other] if seed % 2 == 0 else [""]}


def _keep(worker: Worker, seed: int, answer: Answer, folder: Path) -> None:
    if answer["verdict"] in FAILURES:
        shutil.copytree(worker.folder, folder / "failures" / str(seed), dirs_exist_ok=True)
