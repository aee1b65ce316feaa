"""What does `kill -9` at random moments harm?

Run: python -m benchmarks.tuning.kill MODEL [--kills 1000] [--json OUT]

After each kill the log is opened; every trial that the progress lines told of must be in it, no
process may go on, and no file may be left but the log.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.tuning.common import parser, report
from dlc.autotune.log import TuningLog

_MARK = "DLC_KILL_BENCHMARK"  # in the environment of every process of the tuner


def main() -> None:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--kills", type=int, default=1000)
    arguments.add_argument("--seconds", type=float, default=6.0, help="of life, at most")
    given = arguments.parse_args()
    rng = random.Random(0)
    figures = {"kills": 0, "trials": 0, "lost": 0, "corrupt": 0, "orphans": 0, "files_left": 0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "log.db"
        temporary = folder / "tmp"
        temporary.mkdir()
        known = 0
        while figures["kills"] < given.kills:
            told = _live_and_die(given, log, temporary, rng.uniform(0.5, given.seconds))
            figures["kills"] += 1
            figures["orphans"] += _orphans()
            known += told
            if log.exists():
                with TuningLog(log) as opened:
                    found = sum(1 for _ in opened.trials())
                    figures["corrupt"] += opened.corrupt
                figures["lost"] += max(0, known - found)
                figures["trials"] = known = found
            figures["files_left"] = len(list(temporary.iterdir()))
            if figures["kills"] % 10 == 0:
                print(figures, flush=True)
    print(figures)
    report(given.json, figures)


def _live_and_die(given, log: Path, temporary: Path, seconds: float) -> int:  # type: ignore[no-untyped-def]
    """Start a tuner, kill it; the trials it told of."""
    tuner = subprocess.Popen(
        [sys.executable, "-m", "dlc", "tune", str(given.model), "-o", str(log), "--progress",
         "jsonl", "--target", given.target, "--budget", "1h"],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, TMPDIR=str(temporary), **{_MARK: "1"}),
    )  # fmt: skip
    time.sleep(seconds)
    tuner.send_signal(signal.SIGKILL)
    assert tuner.stdout
    lines = tuner.stdout.read().splitlines()
    tuner.wait()
    whole = [line for line in lines if line.endswith("}")]
    return max((int(json.loads(line)["trials"]) for line in whole), default=0)


def _orphans() -> int:
    """Processes of a tuner that are still there a second after its death."""
    deadline = time.monotonic() + 1.0
    while (
        count := sum(map(_is_ours, Path("/proc").glob("[0-9]*")))
    ) and time.monotonic() < deadline:
        time.sleep(0.02)
    return count


def _is_ours(process: Path) -> bool:
    try:
        return f"{_MARK}=1".encode() in (process / "environ").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    main()
