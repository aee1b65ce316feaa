"""A worker process: builds candidates, and measures them in children that may die.

It reads jobs from its standard input and answers on its standard output until the other end closes.
Jobs name large pieces by their hash; a piece that is not here is asked for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import sys
import time
import traceback
from collections import OrderedDict
from functools import partial
from typing import Any

from dlc.autotune.confine import Limits, confined
from dlc.autotune.record import Status
from dlc.autotune.task import Task, task_from_json
from dlc.autotune.wire import Message, read_message, write_message
from dlc.core.errors import CodegenError, DlcError, ScheduleError
from dlc.core.garbage import collect_rarely

_MAX_PIECES = 256
_PARTS = ("anchor", "reference", "eviction")  # what a candidate is measured with, by hash
_FEWEST_LIVES = 4  # processes that race slow models, before the time is up
_MAX_PREPARED_BYTES = 1 << 30  # data of tasks that is kept: to compute it takes seconds for each


class Station:
    """What a worker process holds between jobs."""

    def __init__(self) -> None:
        self.pieces: OrderedDict[str, bytes] = OrderedDict()
        self.prepared: OrderedDict[str, Any] = OrderedDict()

    def answer(self, message: Message) -> Message:
        """Do a job."""
        match message.data.get("job"):
            case "hello":
                return Message({"status": "ok", "pid": os.getpid(), **_describe()})
            case "store":
                for name, blob in zip(message.data["names"], message.blobs, strict=True):
                    self.store(name, blob)
                return Message({"status": "ok"})
            case "build":
                from dlc.autotune.build import build_job  # a machine may only measure

                return build_job(message.data)
            case "race":
                return Message(self.race(message.data))
            case "measure":
                return Message(self.measure(message))
        return Message({"status": "error", "detail": "no such job"})

    def store(self, name: str, blob: bytes) -> None:
        """Keep a piece, and forget the oldest."""
        self.pieces[name] = blob
        while len(self.pieces) > _MAX_PIECES:
            self.pieces.popitem(last=False)

    def measure(self, message: Message) -> dict[str, Any]:
        """Check and time a candidate in a child."""
        from dlc.autotune.bench_method import Method

        data = message.data
        needed = [data[part] for part in _PARTS]
        missing = [name for name in needed if name not in self.pieces]
        if missing:
            return {"status": "missing", "pieces": missing}
        limits = Limits(data["seconds"], data["memory_bytes"])
        prepared = self.prepare(task_from_json(data["task"]), data)
        if isinstance(prepared, dict):
            return prepared
        method = Method(**data["method"])
        default_ns = float(data.get("default_ns", 0.0))
        return confined(lambda: prepared.measure(message.blobs[0], method, default_ns), limits)

    def prepare(self, task: Task, data: dict[str, Any]) -> Any:
        """The data of a task, or the answer that says why there is none."""
        from dlc.autotune.bench_trial import Prepared

        parts = (data[part] for part in _PARTS)
        name = " ".join([task.key, str(task.sizes), *parts])
        if name in self.prepared:
            self.prepared.move_to_end(name)
            return self.prepared[name]
        while sum(p.nbytes for p in self.prepared.values()) > _MAX_PREPARED_BYTES:
            self.prepared.popitem(last=False)
        made = Prepared(task)
        reference = self.pieces[data["reference"]]
        limits = Limits(data["reference_seconds"], data["memory_bytes"])
        done = confined(lambda: made.compute_expected(reference), limits)
        if done["status"] != Status.OK:
            return {"status": "error", "detail": f"the reference: {done['detail']}"}
        made.open_beside(self.pieces[data["anchor"]], self.pieces[data["eviction"]])
        self.prepared[name] = made
        return made

    def race(self, data: dict[str, Any]) -> dict[str, Any]:
        """Run two artefacts in turn in children, each of which opens them in another order."""
        from dlc.autotune.bench_trial import race_artefacts
        from dlc.autotune.duel import LEAST_LIVES, MOST_LIVES

        missing = [p for p in data["paths"] if p not in self.pieces and not os.path.exists(p)]
        if missing:
            return {"status": "missing", "pieces": missing}
        pair = [self.pieces.get(path, path) for path in data["paths"]]
        each = data | {"budget_seconds": data["budget_seconds"] / LEAST_LIVES}
        lives: list[list[list[int]]] = []
        began, spent = time.monotonic(), 0.0
        while len(lives) < MOST_LIVES:
            step = -1 if len(lives) % 2 else 1
            limits = Limits(data["seconds"] - spent, data["memory_bytes"])
            found = confined(partial(race_artefacts, each, pair[::step]), limits)
            if found["status"] != Status.OK:
                return found
            lives.append(found["times_ns"][::step])
            spent = time.monotonic() - began
            if len(lives) >= LEAST_LIVES and spent > data["budget_seconds"]:
                break
            if len(lives) >= _FEWEST_LIVES and spent > data["seconds"] / 2:
                break
        for path in data["paths"]:  # large, and of this race alone
            self.pieces.pop(path, None)
        return {"status": str(Status.OK), "lives": lives}


def piece_name(blob: bytes) -> str:
    """What a piece is called."""
    return hashlib.sha256(blob).hexdigest()[:32]


def _describe() -> dict[str, Any]:
    from dlc.autotune.peer_version import describe_peer
    from dlc.core.machine import read_machine

    machine = read_machine()
    return {
        **describe_peer(),
        "arch": machine.arch,
        "features": sorted(machine.features),
        "cores": machine.cores,
    }


def answer_safely(station: Station, message: Message) -> Message:
    """The answer to a job; an error of any kind is an answer."""
    try:
        return station.answer(message)
    except ScheduleError as error:
        return Message({"status": str(Status.INVALID), "detail": str(error)})
    except CodegenError as error:
        return Message({"status": str(Status.BUILD), "detail": str(error)[:4000]})
    except DlcError as error:
        return Message({"status": "error", "detail": str(error)[:4000]})
    except Exception:
        return Message({"status": "error", "detail": traceback.format_exc()[-4000:]})


def main() -> None:
    """Answer until the other end closes. What is printed goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    station = Station()
    collect_rarely()
    with open(os.dup(1), "wb") as out, contextlib.suppress(BrokenPipeError):
        os.dup2(2, 1)
        while (message := read_message(sys.stdin.buffer)) is not None:
            reply = answer_safely(station, message)
            write_message(out, reply.data, reply.blobs)
