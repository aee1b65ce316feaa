"""A worker process and its pipe: asks it to judge a model, and notices when it dies or hangs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from dlc.testing.check import Verdict

Answer = dict[str, Any]
PATIENCE = 20
"""How much slower than its processor time a process may be."""


class Worker:
    """A process that judges one model at a time, and is replaced when that kills it.

    Args:
        folder: where it leaves the model it works on, and what it prints.
        seconds: how long one model may take, of processor time: others may need the machine too.
            `PATIENCE` times as long by the clock is a hang.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds
        folder.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.deadline = 0.0
        self.budget = 0.0
        self.buffer = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def send(self, request: Mapping[str, Any]) -> None:
        """Begin with a model; `poll` or `wait` tells the end."""
        fresh = self.process is None
        if fresh:
            self._start()
        assert self.process is not None
        assert self.process.stdin is not None
        text = json.dumps({**request, "folder": str(self.folder)})
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()
        seconds = self.seconds + 60 * fresh  # it draws ONNX's cases first
        self.deadline = time.monotonic() + PATIENCE * seconds
        self.budget = _processor_time(self.process.pid) + seconds

    def fileno(self) -> int:
        """The pipe to select on."""
        assert self.process is not None
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def poll(self) -> Answer | None:
        """The answer, once it is there. A process that died or takes too long is stopped."""
        if select.select([self], [], [], 0)[0]:
            data = os.read(self.fileno(), 1 << 16)
            if not data:
                return self._died()
            self.buffer += data
            line, newline, self.buffer = self.buffer.partition(b"\n")
            if newline:
                answer: Answer = json.loads(line)
                return answer
            self.buffer = line
        assert self.process is not None
        spent = _processor_time(self.process.pid)
        if spent > self.budget or time.monotonic() > self.deadline:
            return self._hangs()
        return None

    def wait(self) -> Answer:
        """The answer."""
        while (answer := self.poll()) is None:
            select.select([self], [], [], 0.2)
        return answer

    def stop(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.process, self.buffer = None, b""

    def _start(self) -> None:
        with open(self.folder / "worker.log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dlc.testing.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def _died(self) -> Answer:
        assert self.process is not None
        code = self.process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return self._ended(Verdict.CRASH, name)

    def _hangs(self) -> Answer:
        assert self.process is not None
        self.process.send_signal(signal.SIGABRT)  # its last word is where it is
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        return self._ended(Verdict.HANG, f"no answer in {self.seconds:g} s")

    def _ended(self, verdict: Verdict, how: str) -> Answer:
        """The verdict, unless it is another engine's fault."""
        self.stop()
        lines = (self.folder / "worker.log").read_text(errors="replace").strip().splitlines()
        frame = next((line.strip() for line in lines if line.startswith("  File ")), "")
        if "onnxruntime" in frame:
            verdict = Verdict.INVALID
        return {"verdict": verdict, "detail": f"{how} {frame}"[:400]}


def _processor_time(pid: int) -> float:
    """Seconds a process and those it waited for have had a processor; 0 once it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()  # from the third on: the second may hold blanks
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
