"""A disk that is full in the middle of a session, and has room again later, or not."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from dlc import tune_race
from dlc.autotune.log import TuningLog
from dlc.core.errors import CodegenError, UserError
from dlc.tune_plan import plan_tuning
from tests.autotune import examples
from tests.cli.models import perceptron

# Not of this machine: a log leaves out of a target with an engine what changes nothing beside it.
TASK = examples.matmul(target=examples.OTHER)

# A limit on the size of files stands for the disk: no write of this process gets through.
SESSION = """
import json, logging, resource, sys
import dlc
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.session import Options
from tests.cli.models import perceptron

full_from, room_from, trials = map(int, sys.argv[2:])
forever = resource.getrlimit(resource.RLIMIT_FSIZE)[1]

def limit(snapshot):
    is_full = full_from <= snapshot.trials < room_from
    resource.setrlimit(resource.RLIMIT_FSIZE, (0 if is_full else forever, forever))

logging.basicConfig(format="%(levelname)s %(message)s")
options = Options(Budget(trials=trials), method=Method(rounds=3))
report = dlc.tune(
    perceptron(), sys.argv[1], dims={"batch": 32}, options=options, on_update=limit
)
print(json.dumps([report.snapshot.trials, report.unwritten]))
"""


@pytest.mark.parametrize(
    ("room_from", "written"), [(5, 8), pytest.param(99, 2, marks=pytest.mark.slow)]
)
def test_a_session_goes_on_while_the_disk_is_full(tmp_path, room_from, written):
    path = tmp_path / "a.db"
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(path), "2", str(room_from), "8"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ, PYTHONPATH="."),
        check=True,
    )
    trials, unwritten = json.loads(done.stdout)
    assert trials == 8
    assert unwritten >= 8 - written  # a choice may wait, too
    assert not (unwritten and room_from < trials)
    assert done.stderr.count("trials wait in memory") == 1
    with TuningLog(path) as log:
        assert len(list(log.trials())) == written
        assert log.corrupt == 0


NEW_LOG = """
import resource, sys
from pathlib import Path
from dlc.autotune.log import TuningLog

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
TuningLog(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("room", [0, 4096, 12288])
def test_a_log_that_cannot_be_begun_leaves_no_file(tmp_path, room):
    done = subprocess.run(
        [sys.executable, "-c", NEW_LOG, str(tmp_path / "a.db"), str(room)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ, PYTHONPATH="."),
        check=False,
    )
    assert "UserError" in done.stderr
    assert list(tmp_path.iterdir()) == []


def refuse_to_connect(monkeypatch, code, before):
    def connect(self, how):
        monkeypatch.undo()
        before(self.path)
        error = sqlite3.OperationalError("no room")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(TuningLog, "_connect", connect)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_log_that_another_tuner_makes_meanwhile_stays(tmp_path, monkeypatch, is_open):
    path, others = tmp_path / "a.db", []

    def make(path):
        others.append(TuningLog(path))
        others[0].add_task(TASK)
        if not is_open:
            others[0].close()

    refuse_to_connect(monkeypatch, sqlite3.SQLITE_FULL, make)
    with pytest.raises(UserError, match="no room"):
        TuningLog(path)
    others[0].close()
    with TuningLog(path, read_only=True) as log:
        assert list(log.tasks()) == [TASK]


def test_a_log_that_another_tuner_begins_meanwhile_stays(tmp_path, monkeypatch):
    others = []

    def begin(path):
        others.append(sqlite3.connect(path))
        others[0].execute("PRAGMA journal_mode=WAL")
        others[0].execute("BEGIN IMMEDIATE")

    refuse_to_connect(monkeypatch, sqlite3.SQLITE_FULL, begin)
    with pytest.raises(UserError, match="no room"):
        TuningLog(tmp_path / "a.db")
    assert (tmp_path / "a.db").exists()
    others[0].close()


def test_tables_that_are_in_the_journal_only_are_tables(tmp_path, monkeypatch):
    other = tmp_path / "other.db"
    path = tmp_path / "a.db"

    def make(path):
        with TuningLog(other) as log:
            log.add_task(TASK)
            for suffix in ("", "-wal"):  # as a killed process leaves them
                shutil.copyfile(f"{other}{suffix}", f"{path}{suffix}")

    refuse_to_connect(monkeypatch, sqlite3.SQLITE_FULL, make)
    with pytest.raises(UserError, match="no room"):
        TuningLog(path)
    with TuningLog(path) as log:
        assert list(log.tasks()) == [TASK]


@pytest.mark.parametrize(
    ("code", "stays"),
    [
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_IOERR_WRITE, False),
        (sqlite3.SQLITE_IOERR_LOCK, True),
        (sqlite3.SQLITE_IOERR_SHMLOCK, True),
    ],
)
def test_what_is_no_lack_of_room_removes_nothing(tmp_path, monkeypatch, code, stays):
    refuse_to_connect(monkeypatch, code, Path.touch)
    with pytest.raises(UserError, match="no room"):
        TuningLog(tmp_path / "a.db")
    assert (tmp_path / "a.db").exists() == stays


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), None])
def test_a_model_that_cannot_be_built_for_its_race_is_not_the_end(monkeypatch, caplog, error):
    def build(*_):
        raise error or CodegenError(stage="the linker", unit="m", reason="no space left")

    monkeypatch.setattr(tune_race, "assemble", build)
    plan = plan_tuning([perceptron()], dims={"batch": 32})
    choice = examples.choice(plan.tasks[0].task)
    racers = tune_race.Racers(plan.models, plan.sizes, {})
    assert tune_race.keep_winners(racers, {choice.task: choice}, {}, None) == ({}, 1.0)
    assert "cannot be raced" in caplog.text
