"""One model, many threads, and children of fork."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import dlc.runtime
from dlc.core.env import MAX_THREADS
from dlc.core.errors import UserError
from dlc.runtime import Module

B = np.zeros(3, np.float32)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    dlc.runtime.set_num_threads(3)
    yield
    dlc.runtime.set_num_threads(None)


def right(model: Module, value: int) -> bool:
    x = np.full((1 + value % 12, 3), value, np.float32)
    return bool((model(x, B).y == 2 * value).all())


def test_both_languages_have_the_same_largest_number_of_threads() -> None:
    header = Path(__file__).parents[2] / "dlc/runtime/cpp/src/thread_pool.h"
    assert f"kMaxThreads = {MAX_THREADS};" in header.read_text()
    dlc.runtime.set_num_threads(MAX_THREADS)
    with pytest.raises(UserError, match=f"from 1 to {MAX_THREADS}, or None"):
        dlc.runtime.set_num_threads(MAX_THREADS + 1)


def test_calls_from_many_threads(model: Module) -> None:
    with ThreadPoolExecutor(8) as executor:
        assert all(executor.map(lambda value: right(model, value), range(2000)))


def test_closing_while_others_run(model: Module) -> None:
    """A run in progress ends as it should; later ones are refused."""
    outcomes: set[str] = set()
    started = threading.Event()

    def work() -> None:
        try:
            for value in range(100_000):
                assert right(model, value)
                started.set()
        except UserError as error:
            outcomes.add(str(error.fields["detail"]))
        finally:
            started.set()  # a worker that fails at once must not leave the test waiting

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    started.wait()
    model.close()
    for worker in workers:
        worker.join()
    assert outcomes == {"the module is closed"}


def test_the_number_of_threads() -> None:
    dlc.runtime.set_num_threads(2)
    assert dlc.runtime.num_threads() == 2
    for bad in (0, -1, 1025, "2", 2.5):
        with pytest.raises(UserError, match="threads"):
            dlc.runtime.set_num_threads(bad)  # type: ignore[arg-type]
    assert dlc.runtime.num_threads() == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5", 5), ("1", 1), ("", None), ("many", None), ("0", None), ("1025", None)],
)
def test_the_environment_variable(text: str, expected: int | None) -> None:
    code = "import dlc.runtime; print(dlc.runtime.num_threads())"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "DLC_NUM_THREADS": text},
        capture_output=True,
        text=True,
        check=True,
    )
    allowed = len(os.sched_getaffinity(0))
    found = int(result.stdout)
    assert found == expected if expected else 1 <= found <= allowed
    said = f"dlc: DLC_NUM_THREADS is '{text}', not a whole number from 1 to 1024: ignored\n"
    assert result.stderr == ("" if expected or not text else said)


def in_child(work: Callable[[], bool]) -> bool:
    """Whether `work` is true in a child of fork; a child that hangs is ended after 30 s."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            os._exit(0 if work() else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return status == 0


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_can_run(model: Module) -> None:
    assert right(model, 11)
    assert in_child(lambda: right(model, 23))
    assert in_child(lambda: in_child(lambda: right(model, 23)))  # and its child
    assert right(model, 35)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forking_while_others_run(model: Module) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            right(model, 11)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    results = [in_child(lambda: right(model, 23)) for _ in range(10)]
    stop.set()
    for worker in workers:
        worker.join()
    assert all(results)


def test_a_pickled_model_runs_in_a_fresh_process(model: Module, tmp_path: Path) -> None:
    path = tmp_path / "model.pickle"
    path.write_bytes(pickle.dumps(model))
    code = (
        "import pickle, sys, numpy as np\n"
        "model = pickle.load(open(sys.argv[1], 'rb'))\n"
        "print(model(np.ones((2, 3), np.float32), np.zeros(3, np.float32)).total[0])\n"
        "print(sorted({'onnx', 'llvmlite', 'xgboost'} & set(sys.modules)))"
    )
    root = str(Path(dlc.__file__).parents[1])
    result = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split("\n")[:2] == ["12.0", "[]"]


def worker_statuses() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    named = [t for t in tasks if (t / "comm").read_text().strip() == "dlc-worker"]
    return [(task / "status").read_text() for task in named]


def test_worker_threads_block_signals_but_faults_and_have_a_name(model: Module) -> None:
    right(model, 11)
    for _ in range(500):  # a new thread names itself once it runs
        if len(statuses := worker_statuses()) == 2:
            break
        time.sleep(0.01)
    assert len(statuses) == 2
    for status in statuses:
        line = next(line for line in status.splitlines() if line.startswith("SigBlk"))
        blocked = int(line.split()[1], 16)
        assert blocked >> (signal.SIGINT - 1) & 1
        assert blocked >> (signal.SIGTERM - 1) & 1
        assert not blocked >> (signal.SIGSEGV - 1) & 1
        assert not blocked >> (signal.SIGILL - 1) & 1
        assert not blocked >> (signal.SIGSYS - 1) & 1
