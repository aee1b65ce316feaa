"""What does `kill -9` at random moments harm?

Run: python -m benchmarks.tuning.kill [--kills 1000] [--cold 20] [--json OUT]

After each kill the log is opened; every trial that the tuner told of must be in it, every row must
be whole, no process of the tuner may go on, and no file may be left but the log. Most tuners are
forked from this process, so that nearly all of them die in the middle of their trials; every
`--cold`th starts as a user's does, and mostly dies while it starts. With `--json`, a later call
goes on where this one was stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

import dlc
from benchmarks.tuning.common import _product, parser, report
from benchmarks.tuning.warm import Forked, warm_machines
from dlc.autotune import job as jobs
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.log import TuningLog
from dlc.autotune.session import Options, Snapshot
from dlc.autotune.station import Station
from dlc.autotune.wire import Message
from dlc.tune_plan import plan_tuning

_PR_SET_CHILD_SUBREAPER = 36  # what a dead tuner leaves running becomes a child of this process
_PER_LOG = 20  # lives that go on from one log
_GONE_SECONDS = 1.0  # after which a process that is still there is an orphan
_SHAPES = tuple((24 + 8 * n, 40 + 7 * n, 56 + 5 * n) for n in range(8))
_COUNTS = ("kills", "trials", "lost", "corrupt", "orphans", "files_left")


@dataclass(frozen=True, slots=True)
class Life:
    """A tuner that was killed: the trials it told of, and what it was at."""

    told: int
    moment: str
    orphans: int
    seconds_to_end: float


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("--kills", type=int, default=1000)
    arguments.add_argument("--cold", type=int, default=20, help="every how many-th starts cold")
    arguments.add_argument("--seconds", type=float, default=2.4, help="of life, at most")
    given = arguments.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    figures = _earlier(given.json)
    moments = Counter(figures.pop("moments", {}))
    while figures["kills"] < given.kills:
        count = min(_PER_LOG, given.kills - figures["kills"])
        _one_log(figures, moments, count, given)
        print(figures, dict(moments), flush=True)
        report(given.json, {**figures, "moments": moments})


def _earlier(path: Path | None) -> dict[str, Any]:
    """The figures so far."""
    found: dict[str, Any] = dict.fromkeys(_COUNTS, 0) | {"longest_end_seconds": 0.0}
    if path is not None and path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))
        found |= {name: known[name] for name in (*found, "moments")}
    return found


def _one_log(figures: dict[str, Any], moments: Counter[str], count: int, given: Any) -> None:
    """Some tuners, one after the other, on one log."""
    first = int(figures["kills"])
    rng = random.Random(first)
    shape = _SHAPES[first // _PER_LOG % len(_SHAPES)]
    model = _product("dense", shape[:2], shape[1:])
    _warm_up(model, given.target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log, temporary = folder / "log" / "log.db", folder / "tmp"
        log.parent.mkdir()
        temporary.mkdir()
        known = 0
        for number in range(first, first + count):
            cold = number % given.cold == given.cold - 1
            start = _start_cold if cold else _start_warm
            tuner = start(model, log, given.target, temporary)
            life = _end(tuner, rng.uniform(0.05, given.seconds), aimed=number % 2 == 0)
            figures["kills"] += 1
            moments[f"{'cold, ' if cold else ''}{life.moment}"] += 1
            figures["orphans"] += life.orphans
            longest = max(float(figures["longest_end_seconds"]), life.seconds_to_end)
            figures["longest_end_seconds"] = round(longest, 3)
            found = _judge(figures, log, known + life.told)
            figures["trials"] += found - known
            known = found
            figures["files_left"] += len(list(temporary.iterdir()))
            figures["files_left"] += sum(p.name != log.name for p in log.parent.iterdir())


def _judge(figures: dict[str, Any], log: Path, known: int) -> int:
    """Read the log: what is lost of what is known, what is damaged; the trials it holds."""
    if not log.exists():
        figures["lost"] += known
        return 0
    with TuningLog(log) as opened:
        found = sum(1 for _ in opened.trials())
        figures["corrupt"] += opened.corrupt
    figures["lost"] += max(0, known - found)
    return found


@functools.lru_cache(maxsize=1)
def _station() -> Station:
    return Station()


def _warm_up(model: onnx.ModelProto, target: str) -> None:
    """Do once what every tuner does first."""
    for weighted in plan_tuning([model], target).tasks:
        for job in jobs.build_anchor(weighted.task):
            _station().answer(Message(job.data))


def _start_warm(model: onnx.ModelProto, log: Path, target: str, temporary: Path) -> Forked:
    def work() -> None:
        tempfile.tempdir = str(temporary)
        options = Options(Budget(seconds=3600), method=Method(rounds=5, budget_seconds=0.03))
        dlc.tune(model, log, target, options=options, machines=warm_machines(), on_update=_tell)

    return Forked(work)


def _tell(snapshot: Snapshot) -> None:
    os.write(1, f'{{"trials": {snapshot.trials}}}\n'.encode())


def _start_cold(
    model: onnx.ModelProto, log: Path, target: str, temporary: Path
) -> subprocess.Popen[bytes]:
    path = log.parent.parent / "model.onnx"
    onnx.save(model, path)
    command = [sys.executable, "-m", "dlc", "tune", str(path), "-o", str(log)]
    options = ["--progress", "jsonl", "--target", target, "--budget", "1h"]
    environment = dict(os.environ, TMPDIR=str(temporary))
    return subprocess.Popen([*command, *options], stdout=subprocess.PIPE, env=environment)


def _end(tuner: Forked | subprocess.Popen[bytes], seconds: float, *, aimed: bool) -> Life:
    """Kill a tuner after some time of its life, and wait for all it started.

    Every second one is killed as soon as it runs a candidate.
    """
    time.sleep(seconds)
    until = time.monotonic() + (2.0 if aimed else 0.0)
    while not (trying := _runs_candidate(tuner.pid)) and time.monotonic() < until:
        pass
    os.kill(tuner.pid, signal.SIGKILL)
    began = time.monotonic()
    assert tuner.stdout
    lines = tuner.stdout.read().decode().splitlines()
    tuner.wait()
    orphans = _wait_for_all(began + _GONE_SECONDS)
    ended = time.monotonic() - began
    for stream in (tuner.stdin, tuner.stdout):
        if stream:
            stream.close()
    whole = [json.loads(line)["trials"] for line in lines if line.endswith("}")]
    moment = "in a candidate" if trying else "between candidates" if whole else "starting"
    return Life(max(whole, default=0), moment, orphans, ended)


def _runs_candidate(tuner: int) -> bool:
    """Whether a worker has a child, in which a candidate is checked and timed."""
    parents = _parents()
    return any(parents.get(parent) == tuner for parent in parents.values())


def _parents() -> dict[int, int]:
    """The parent of every process that runs."""
    found = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="ascii") as file:
            state, parent = file.read().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                found[int(name)] = int(parent)
    return found


def _wait_for_all(deadline: float) -> int:
    """Wait until no child is left; how many had not ended in time."""
    late = 0
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return late
        if time.monotonic() > deadline:
            left = [child for child, parent in _parents().items() if parent == os.getpid()]
            late = len(left)
            for child in left:
                os.kill(child, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
