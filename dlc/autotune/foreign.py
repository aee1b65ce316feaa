"""Measure on a machine without Python, or under an emulator: a C program runs the artefacts.

The program is compiled for the target of the first job and started by a given command, such as
`qemu-aarch64 -L /usr/aarch64-linux-gnu`. Inputs are made and results compared here.
"""

from __future__ import annotations

import shlex
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dlc.autotune.duel import LEAST_LIVES
from dlc.autotune.guarded import Array, Guarded, fill_input, why_different
from dlc.autotune.job import Job, Reply
from dlc.autotune.record import Status
from dlc.autotune.task import Task, task_from_json
from dlc.autotune.trial_program import interface
from dlc.codegen.llvm.toolchain import find_driver
from dlc.core.errors import CodegenError, DlcError
from dlc.core.manifest import read_manifest
from dlc.core.target import Target
from dlc.runtime.arrays import numpy_dtype

_NO_LIMIT = "3600000"  # milliseconds


class ForeignWorker:
    """Answers jobs that measure; every candidate runs in a process of its own."""

    def __init__(self, launcher: str) -> None:
        self.name = launcher
        self._launcher = shlex.split(launcher)
        self._folder = tempfile.TemporaryDirectory(prefix="dlc-foreign-")
        self._programs: dict[str, Path] = {}
        self._expected: dict[str, list[Array]] = {}
        self._lock = threading.Lock()

    def start(self) -> None:
        """Nothing runs before the first job."""

    def close(self) -> None:
        """Forget the program."""
        self._folder.cleanup()

    def ask(self, job: Job) -> Reply:
        """The answer to a job."""
        with self._lock:
            try:
                match job.data.get("job"):
                    case "measure":
                        return Reply(self._measure(job))
                    case "race":
                        return Reply(self._race(job))
                return Reply({"status": "error", "detail": "this runner only measures"})
            except (DlcError, OSError) as error:
                return Reply({"status": "error", "detail": str(error)[:4000]})

    def _measure(self, job: Job) -> dict[str, Any]:
        data = job.data
        task = task_from_json(data["task"])
        anchor, reference = (job.pieces[data[name]] for name in ("anchor", "reference"))
        known = f"{task.key} {task.sizes} {data['reference']}"
        if known not in self._expected:
            first = self._one(task, reference, reference, 0, data["reference_seconds"])
            if isinstance(first, dict):
                return {"status": "error", "detail": f"the reference: {first['detail']}"}
            self._expected[known] = first[1]
        rounds = data["method"]["rounds"]
        found = self._one(task, job.blobs[0], anchor, rounds, data["seconds"])
        if isinstance(found, dict):
            return found
        overrun, outputs, times = found
        if overrun:
            return {"status": str(Status.WRONG), "detail": "bytes before a result were written"}
        for got, expected in zip(outputs, self._expected[known], strict=True):
            if problem := why_different(got, expected):
                return {"status": str(Status.WRONG), "detail": problem}
        return {"status": str(Status.OK), "times_ns": times[::2], "anchor_ns": times[1::2]}

    def _race(self, job: Job) -> dict[str, Any]:
        """Two models in turn; each process runs them in another order."""
        data = job.data
        manifest = read_manifest(data["paths"][0])
        values = {s.name: max(1, s.min) for s in manifest.sizes} | data["sizes"]
        sizes = [values[s.name] for s in manifest.sizes]
        feeds = []
        for seed, spec in enumerate(manifest.inputs):
            shape = [values[d] if isinstance(d, str) else d for d in spec.shape]
            feeds.append(np.zeros(shape, numpy_dtype(spec.dtype)))
            fill_input(feeds[-1], seed)
        message = _message(feeds, [-1 - len(spec.shape) for spec in manifest.outputs], sizes)
        target = Target(triple=f"{manifest.architecture}-linux-gnu")
        command = [str(self._program(target)), "", "", str(data["rounds"])]
        command.append(str(int(1000 * data["budget_seconds"] / LEAST_LIVES)))
        lives = []
        until = time.monotonic() + data["seconds"]
        for number in range(LEAST_LIVES):
            step = -1 if number % 2 else 1
            command[1:3] = data["paths"][::step]
            found = self._run(command, message, until - time.monotonic())
            if isinstance(found, dict):
                return found
            times = _results(found, [])[2]
            lives.append([times[::2], times[1::2]][::step])
        return {"status": str(Status.OK), "lives": lives}

    def _one(
        self, task: Task, candidate: bytes, anchor: bytes, rounds: int, seconds: float
    ) -> tuple[bool, list[Array], list[int]] | dict[str, Any]:
        """Whether bytes before a result changed, the results and the times; else what went wrong.

        Raises:
            CodegenError: the program cannot be compiled for the target.
        """
        arrays = _arrays(task)
        inputs, _ = interface(task)
        paths = []
        for name, data in (("candidate.so", candidate), ("anchor.so", anchor)):
            paths.append(Path(self._folder.name) / name)
            paths[-1].write_bytes(data)
        command = [str(self._program(task.target)), *map(str, paths), str(rounds), _NO_LIMIT]
        outputs = arrays[len(inputs) :]
        message = _message(arrays[: len(inputs)], [a.nbytes for a in outputs], ())
        found = self._run(command, message + b"".join(a.tobytes() for a in outputs), seconds)
        return found if isinstance(found, dict) else _results(found, outputs)

    def _run(self, command: list[str], message: bytes, seconds: float) -> bytes | dict[str, Any]:
        """What the program writes, or how it ended."""
        try:
            done = subprocess.run(
                [*self._launcher, *command],
                input=message,
                capture_output=True,
                timeout=max(0.1, seconds),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"status": str(Status.TIMEOUT), "detail": f"no result in {seconds:g} s"}
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            detail = f"exit status {done.returncode}: {said}"
            return {"status": str(Status.CRASH), "detail": detail}
        return done.stdout

    def _program(self, target: Target) -> Path:
        if target.arch in self._programs:
            return self._programs[target.arch]
        path = Path(self._folder.name) / f"runner-{target.arch}"
        source = resources.files("dlc.autotune").joinpath("runner.c")
        with resources.as_file(source) as file:
            command = [*find_driver(target), "-O2", "-std=gnu11", f"-I{_include_folder()}"]
            command += [str(file), "-o", str(path), "-ldl"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = done.stderr.strip()[-2000:]
            raise CodegenError(stage="the C compiler", unit="runner.c", reason=reason)
        self._programs[target.arch] = path
        return path


def _message(inputs: Sequence[Array], outputs: Sequence[int], sizes: Sequence[int]) -> bytes:
    """What the program reads: numbers, bytes of each input and output, the inputs."""
    lengths = [*(a.nbytes for a in inputs), *outputs]
    head = [len(inputs), len(outputs), len(sizes), *sizes, *lengths]
    return struct.pack(f"<{len(head)}q", *head) + b"".join(a.tobytes() for a in inputs)


def _arrays(task: Task) -> list[Array]:
    """The data of the inputs, then the first content of the outputs; as other workers have it."""
    inputs, outputs = interface(task)
    shared = {out for out, _ in task.func.in_place}
    arrays = []
    for seed, buffer in enumerate(inputs):
        arrays.append(Guarded(buffer).array.copy())
        fill_input(arrays[-1], seed)
    for seed, buffer in enumerate(outputs):
        guarded = Guarded(buffer)
        guarded.fill()
        if buffer.name in shared:
            fill_input(guarded.array, 1000 + seed)
        arrays.append(guarded.array.copy())
    return arrays


def _results(data: bytes, outputs: list[Array]) -> tuple[bool, list[Array], list[int]]:
    (overrun,) = struct.unpack_from("<q", data)
    at = 8
    found = []
    for like in outputs:
        found.append(np.frombuffer(data, like.dtype, like.size, at).reshape(like.shape))
        at += like.nbytes
    (rounds,) = struct.unpack_from("<q", data, at)
    return bool(overrun), found, list(struct.unpack_from(f"<{2 * rounds}q", data, at + 8))


def _include_folder() -> Path:
    """Where `dlc/abi.h` is: beside the sources, or in the installed package."""
    runtime = Path(__file__).parents[1] / "runtime"
    found = [runtime / "cpp" / "include", runtime / "include"]
    return next((path for path in found if (path / "dlc" / "abi.h").exists()), found[0])
