import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from dlc.autotune.exchange import export_log, import_lines, merge_logs
from dlc.autotune.log import _MIGRATIONS, SCHEMA_VERSION, TuningLog
from dlc.autotune.record import Status
from dlc.autotune.task import make_task, task_from_json, task_key
from dlc.core.errors import UserError
from dlc.schedule.text import parse_func
from tests.autotune import examples

TASK = examples.matmul(target=examples.OTHER)
WRITER = """
import sys
from pathlib import Path
from dlc.autotune.log import TuningLog
from tests.autotune import examples
task = examples.matmul(target=examples.OTHER)
with TuningLog(Path(sys.argv[1])) as log:
    log.add_task(task)
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + 100000):
        log.add_trial(examples.trial(task, number))
        sys.stdout.write(f"{number}\\n")
        sys.stdout.flush()
"""


def write(path: Path, count: int = 3) -> None:
    with TuningLog(path) as log:
        log.add_task(TASK)
        for number in range(count):
            log.add_trial(examples.trial(TASK, number))


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "a.db"
    crash = examples.trial(TASK, 9, Status.CRASH)
    with TuningLog(path) as log:
        log.add_task(TASK)
        log.add_trial(examples.trial(TASK))
        log.add_trial(crash)
        log.add_choice(examples.choice(TASK))
        log.add_choice(examples.choice(TASK, 2.0))
    with TuningLog(path, read_only=True) as log:
        assert list(log.tasks()) == [TASK]
        assert list(log.trials(TASK.key)) == [examples.trial(TASK), crash]
        assert list(log.trials("other")) == []
        assert log.choices() == {TASK.key: examples.choice(TASK, 2.0)}
        assert log.corrupt == 0


def test_a_row_is_added_once(tmp_path):
    path = tmp_path / "a.db"
    write(path)
    write(path)
    with TuningLog(path) as log:
        assert len(list(log.trials())) == 3
        assert len(list(log.tasks())) == 1


def test_damaged_rows_are_passed_over_and_counted(tmp_path):
    path = tmp_path / "a.db"
    write(path, 4)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE trials SET body = replace(body, '\"ok\"', '\"no\"') WHERE id = 2")
        db.execute("UPDATE trials SET crc = crc + 1 WHERE id = 3")
    with TuningLog(path) as log:
        assert [t.knobs[0][1] for t in log.trials()] == [0, 3]
        assert log.corrupt == 2


def test_a_damaged_file_is_kept_aside(tmp_path, caplog):
    path = tmp_path / "a.db"
    write(path)
    damaged = bytearray(path.read_bytes())
    damaged[100:] = b"\xa5" * (len(damaged) - 100)
    path.write_bytes(damaged)
    with pytest.raises(UserError, match="malformed"):
        TuningLog(path, read_only=True)
    write(path)
    assert (tmp_path / "a.db.corrupt-1").read_bytes() == damaged
    with TuningLog(path) as log:
        assert len(list(log.trials())) == 3
    assert "is now" in caplog.text


def test_a_file_damaged_in_its_middle_is_kept_aside(tmp_path):
    path = tmp_path / "a.db"
    write(path, 300)
    damaged = bytearray(path.read_bytes())
    assert len(damaged) > 40_000
    damaged[20_000:30_000] = random.Random(0).randbytes(10_000)
    path.write_bytes(damaged)
    write(path)
    assert (tmp_path / "a.db.corrupt-1").read_bytes() == damaged
    with TuningLog(path) as log:
        assert len(list(log.trials())) == 3


@pytest.mark.parametrize("content", [b"\x08\x09 a model, given by mistake" * 9, b"SQLite format 3"])
def test_a_file_that_never_was_a_log_is_left_alone(tmp_path, content):
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    for read_only in (False, True):
        with pytest.raises(UserError, match="not a tuning log"):
            TuningLog(path, read_only=read_only)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_leaves_no_files_and_needs_none(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    write(path)
    with TuningLog(path, read_only=True) as log:
        assert len(list(log.trials())) == 3
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            log._db.execute("DELETE FROM trials")
    assert list(tmp_path.iterdir()) == [path]
    (tmp_path / "a.db-shm").mkdir()  # as where nobody may write: it cannot be made
    with TuningLog(path, read_only=True) as log:
        assert len(list(log.trials())) == 3


def test_a_new_log_may_be_opened_by_several_at_once(tmp_path):
    def open_it(path, together):
        together.wait(60)
        TuningLog(path).close()

    with ThreadPoolExecutor(4) as pool:
        for number in range(40):
            path, together = tmp_path / f"{number}.db", Barrier(4)
            for opened in [pool.submit(open_it, path, together) for _ in range(4)]:
                opened.result()


def test_a_place_is_checked_before_a_session_begins(tmp_path):
    TuningLog.check_place(tmp_path / "new.db")
    write(tmp_path / "old.db")
    TuningLog.check_place(tmp_path / "old.db")
    for path, reason in ((tmp_path / "no" / "a.db", "there is no folder"), (tmp_path, "a folder")):
        with pytest.raises(UserError, match=reason) as caught:
            TuningLog.check_place(path)
        assert "--output" in caught.value.hint
    with pytest.raises(UserError, match="unable to open") as caught:
        TuningLog(Path("/proc/self/a.db"))
    assert "--output" in caught.value.hint


def test_files_of_others_and_of_the_future_are_refused(tmp_path):
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE x(y)")
    with pytest.raises(UserError, match="not a tuning log"):
        TuningLog(foreign)
    later = tmp_path / "later.db"
    write(later)
    with sqlite3.connect(later) as db:
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    with pytest.raises(UserError, match="update dlc"):
        TuningLog(later)
    with pytest.raises(UserError, match="no such log"):
        TuningLog(tmp_path / "none.db", read_only=True)


def test_the_first_format_is_still_read(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.executescript((Path(__file__).parent / "data" / "log-1.sql").read_text())
    with TuningLog(path) as log:
        assert [t.name for t in log.tasks()] == ["scale"]
        assert [t.speedup for t in log.trials()] == [2.0]
        assert [c.speedup for c in log.choices().values()] == [2.0]
        assert log.corrupt == 0
        log.add_task(TASK)
        assert not log.pending


def test_a_later_version_reads_and_updates_it(tmp_path, monkeypatch):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.executescript((Path(__file__).parent / "data" / "log-1.sql").read_text())
    monkeypatch.setattr("dlc.autotune.log.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    change = "ALTER TABLE trials ADD COLUMN machine TEXT;CREATE TABLE machines(name TEXT)"
    monkeypatch.setattr("dlc.autotune.log._MIGRATIONS", (*_MIGRATIONS, change))
    for read_only in (True, False, False, True):
        with TuningLog(path, read_only=read_only) as log:
            assert [t.speedup for t in log.trials()] == [2.0]
            assert log.corrupt == 0
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION + 1,)
        assert db.execute("SELECT machine FROM trials").fetchall() == [(None,)]


def test_lines_carry_everything_and_a_cut_line_is_counted(tmp_path):
    write(tmp_path / "a.db")
    text = io.StringIO()
    with TuningLog(tmp_path / "a.db") as log:
        log.add_choice(examples.choice(TASK))
        assert export_log(log, text) == 5
    lines = text.getvalue().splitlines()
    with TuningLog(tmp_path / "b.db") as log:
        assert import_lines(log, [*lines, "", lines[0][:-5], '{"schema": "other"}']) == (5, 2)
        again = io.StringIO()
        export_log(log, again)
    assert again.getvalue() == text.getvalue()


def test_only_choices_and_their_tasks_can_be_exported(tmp_path):
    other = examples.softmax(target=examples.OTHER)
    text = io.StringIO()
    with TuningLog(tmp_path / "a.db") as log:
        for task in (TASK, other):
            log.add_task(task)
            log.add_trial(examples.trial(task))
        log.add_choice(examples.choice(TASK))
        assert export_log(log, text, choices_only=True) == 2
    kinds = [set(json.loads(line)) - {"schema"} for line in text.getvalue().splitlines()]
    assert kinds == [{"task"}, {"choice"}]


def test_logs_are_merged(tmp_path):
    write(tmp_path / "a.db", 2)
    write(tmp_path / "b.db", 4)
    with TuningLog(tmp_path / "all.db") as log:
        assert merge_logs(log, [tmp_path / "a.db", tmp_path / "b.db"]) == 0
        assert len(list(log.trials())) == 4


def test_two_writers_both_progress(tmp_path):
    path = tmp_path / "a.db"
    writers = [start_writer(path, start) for start in (0, 1_000_000)]
    for writer in writers:
        for _ in range(40):
            assert writer.stdout.readline()
    for writer in writers:
        kill(writer)
    with TuningLog(path) as log:
        numbers = {t.knobs[0][1] for t in log.trials()}
    assert set(range(40)) | set(range(1_000_000, 1_000_040)) <= numbers


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_killing_a_writer_loses_no_acknowledged_row(tmp_path, kills):
    path = tmp_path / "a.db"
    rng = random.Random(kills)
    known: set[int] = set()
    for attempt in range(kills):
        writer = start_writer(path, attempt * 100_000)
        writer.stdout.readline()
        time.sleep(rng.uniform(0, 0.02))
        rest = kill(writer)
        known |= {attempt * 100_000} | {int(line) for line in rest.split("\n")[:-1]}
    with TuningLog(path) as log:
        assert known <= {t.knobs[0][1] for t in log.trials()}
        assert log.corrupt == 0
    assert {p.name for p in tmp_path.iterdir()} == {"a.db"}  # the last reader tidies up


def test_a_full_disk_is_survived(tmp_path, caplog):
    path = tmp_path / "a.db"
    with TuningLog(path) as log:
        log.add_task(TASK)
        pages = log._db.execute("PRAGMA page_count").fetchone()[0]
        log._db.execute(f"PRAGMA max_page_count={pages + 1}")
        for number in range(50):
            log.add_trial(examples.trial(TASK, number))
        assert log.pending
        assert "trials wait in memory" in caplog.text
        log._db.execute("PRAGMA max_page_count=1000000")
        log.add_trial(examples.trial(TASK, 50))
        assert not log.pending
        assert [t.knobs[0][1] for t in log.trials()] == list(range(51))


def test_a_read_only_log_is_not_changed(tmp_path):
    path = tmp_path / "a.db"
    write(path)
    with TuningLog(path, read_only=True) as log:
        log.add_trial(examples.trial(TASK, 77))
        assert log.pending
        log.pending.clear()
    with TuningLog(path) as log:
        assert len(list(log.trials())) == 3


def test_the_key_of_a_task_is_its_meaning_and_its_machine():
    func = TASK.func
    renamed = str(func).replace("acc", "sum").replace("for i ", "for row ").replace("[i,", "[row,")
    same = make_task(parse_func(renamed), examples.OTHER)
    assert str(same.func) != str(func)
    assert same.key == TASK.key == task_key(func, examples.OTHER)
    assert task_from_json(json.loads(json.dumps(TASK.to_json()))) == TASK
    others = [
        examples.matmul(14, target=examples.OTHER),
        replace(TASK, target=replace(examples.OTHER, features=frozenset({"sse2", "avx2"}))),
        replace(TASK, target=replace(examples.OTHER, cores=2)),
        replace(TASK, target=replace(examples.OTHER, l2_bytes=7)),
    ]
    assert len({task.key for task in [TASK, *others]}) == 5
    assert replace(TASK, target=replace(examples.OTHER, cpu="zen")).key == TASK.key


def start_writer(path: Path, start: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(start)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ, PYTHONPATH="."),
    )


def kill(writer: subprocess.Popen[str]) -> str:
    writer.send_signal(signal.SIGKILL)
    assert writer.stdout
    rest = writer.stdout.read()
    writer.wait()
    writer.stdout.close()
    return rest
