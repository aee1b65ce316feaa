"""The log of a search: an SQLite file that any number of tuners write to, and a kill cannot harm.

A row is JSON beside its checksum; one that was damaged is passed over and counted. Trials are
written without waiting for the disk: a power failure may lose the last ones, a killed process
none. Choices wait for the disk. While nothing can be written, rows wait in memory.

Source: www.sqlite.org/wal.html, /fileformat.html#the_database_header,
/pragma.html#pragma_synchronous and /pragma.html#pragma_quick_check.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from dlc.autotune.decision import Decision, decision_from_json
from dlc.autotune.record import Choice, Trial, choice_from_json, trial_from_json
from dlc.autotune.task import Task, task_from_json
from dlc.core.errors import DlcError, UserError, show_os_error, why_unreadable

_LOG = logging.getLogger("dlc.tune")
SCHEMA_VERSION = 2
_APPLICATION = 0x646C6374  # "dlct", which tells other programs' files from ours
_HEAD_BYTES = 100  # of an SQLite file; its number of the application is at 68
_ELSEWHERE = "name another place for the log, as by --output"
_NOT_OURS = "name a file that dlc tune made"
_DAMAGED = "dlc tune puts it aside and begins anew; dlc build --tuning none goes without"
_TABLES = ("tasks", "trials", "choices", "decisions")
_DURABLE = ("choices", "decisions")  # verdicts: few, and what builds go by


def _table(name: str) -> str:
    return (
        f"CREATE TABLE {name}"
        "(id INTEGER PRIMARY KEY, task TEXT NOT NULL, digest TEXT NOT NULL UNIQUE, "
        "body TEXT NOT NULL, crc INTEGER NOT NULL);"
        f"CREATE INDEX {name}_by_task ON {name}(task);"
    )


_SCHEMA = "".join(map(_table, _TABLES))
# What takes a file from the version of its position + 1 to the next one.
_MIGRATIONS: tuple[str, ...] = (_table("decisions"),)
_BUSY_SECONDS = 30.0
_FULL = (  # what a full disk or a quota makes of writing; Source: www.sqlite.org/rescode.html
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMSIZE,
)
_BESIDE = ("-wal", "-shm")  # files of SQLite's own
_BUSY_PAUSE = 0.01
_Row = tuple[str, str, str, str]  # table, key of the task or fork, digest, body


class TuningLog:
    """An open log. One object for one thread; any number of processes on one file.

    Attributes:
        corrupt: rows that were passed over because they are damaged.
        pending: rows that could not be written yet.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open a log; without `read_only` it is made if there is none.

        Raises:
            UserError: no such file; not a log; written by a later version; cannot be opened.
        """
        self.path = path
        self.read_only = read_only
        self.corrupt = 0
        self.pending: list[_Row] = []
        self._tables = frozenset(_TABLES)
        if read_only:
            _check_readable(path)
        self._db = self._open()

    @staticmethod
    def check_place(path: Path) -> None:
        """Whether a log can be made or written at a path, before a session begins.

        Raises:
            UserError: the folder does not exist or cannot be written; the path is a folder.
        """
        folder = path.parent
        try:
            if not folder.is_dir():
                raise UserError(detail=f"{path}: there is no folder '{folder}'", hint=_ELSEWHERE)
            if path.is_dir():
                raise UserError(detail=f"{path}: is a folder", hint=_ELSEWHERE)
            if not all(os.access(p, os.W_OK) for p in (folder, path) if p.exists()):
                raise UserError(detail=f"{path}: cannot be written", hint=_ELSEWHERE)
        except OSError as error:
            reason = f"cannot be written: {show_os_error(error)}"
            raise UserError(detail=f"{path}: {reason}", hint=_ELSEWHERE) from error

    def add_task(self, task: Task) -> None:
        """Note a task, so that its trials can be understood; once."""
        self._insert("tasks", task.key, task.key, task.to_json(), durable=False)

    def add_trial(self, trial: Trial) -> None:
        """Note a trial. When this returns, killing the process does not lose it."""
        self._insert("trials", trial.task, trial.digest, trial.to_json(), durable=False)

    def add_choice(self, choice: Choice) -> None:
        """Note a verdict; it counts for its task from now on."""
        self._insert("choices", choice.task, choice.digest, choice.to_json(), durable=True)

    def add_decision(self, decision: Decision) -> None:
        """Note a verdict on a way at a fork of the graph."""
        data = decision.to_json()
        self._insert("decisions", decision.key, decision.digest, data, durable=True)

    def tasks(self) -> Iterator[Task]:
        """Every task, in the order they came."""
        for data in self._read("tasks", None):
            with self._counting():
                yield task_from_json(data)

    def trials(self, task: str | None = None) -> Iterator[Trial]:
        """The trials of a task, or of all, in the order they came."""
        for data in self._read("trials", task):
            with self._counting():
                yield trial_from_json(data)

    def choices(self) -> dict[str, Choice]:
        """The last verdict on each task; where a schedule won, the last that won."""
        found: dict[str, Choice] = {}
        for data in self._read("choices", None):
            with self._counting():
                choice = choice_from_json(data)
                if choice.replaces(found.get(choice.task)):
                    found[choice.task] = choice
        return found

    def decisions(self) -> Iterator[Decision]:
        """Every verdict on a way at a fork of the graph, in the order they came."""
        for data in self._read("decisions", None):
            with self._counting():
                yield decision_from_json(data)

    def flush(self) -> bool:
        """Try again to write what waits; tells whether all is written."""
        while self.pending:
            row = self.pending[0]
            if not self._write(row, durable=row[0] in _DURABLE):
                return False
            self.pending.pop(0)
        return True

    def close(self) -> None:
        """Write what waits, and close the file."""
        self.flush()
        self._db.close()

    def __enter__(self) -> TuningLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _insert(
        self, table: str, task: str, digest: str, data: dict[str, object], *, durable: bool
    ) -> None:
        row = (table, task, digest, json.dumps(data, sort_keys=True))
        if self.flush() and self._write(row, durable=durable):
            return
        self.pending.append(row)

    def _write(self, row: _Row, *, durable: bool) -> bool:
        table, task, digest, body = row
        try:
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            with self._db:
                self._db.execute(
                    f"INSERT OR IGNORE INTO {table}(task, digest, body, crc) VALUES (?, ?, ?, ?)",
                    (task, digest, body, zlib.crc32(body.encode())),
                )
        except sqlite3.OperationalError as error:
            if not self.pending:  # once for each time that writing stops
                _LOG.warning("cannot write to %s: %s; trials wait in memory", self.path, error)
            return False
        return True

    def _read(self, table: str, task: str | None) -> Iterator[dict[str, object]]:
        last = 0
        if table not in self._tables:
            return
        while True:  # in pieces, so that no reader holds up the file while its caller works
            rows = self._piece(table, task, last)
            for row, body, crc in rows:
                last = row
                try:
                    if zlib.crc32(str(body).encode()) != crc:
                        raise ValueError("checksum")
                    data = json.loads(body)
                except ValueError:
                    self.corrupt += 1
                    continue
                if isinstance(data, dict):
                    yield data
            if not rows:
                return

    def _piece(self, table: str, task: str | None, last: int) -> list[tuple[int, str, int]]:
        where, values = ("AND task = ?", (task,)) if task is not None else ("", ())
        query = f"SELECT id, body, crc FROM {table} WHERE id > ? {where} ORDER BY id LIMIT 500"
        try:
            return list(self._db.execute(query, (last, *values)))
        except sqlite3.DatabaseError as error:
            self.corrupt += 1
            _LOG.warning("%s: the rest of the %s cannot be read: %s", self.path, table, error)
            return []

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Pass over a row that is whole but says nothing we know."""
        try:
            yield
        except DlcError:
            self.corrupt += 1

    def _open(self) -> sqlite3.Connection:
        is_new = not os.path.exists(self.path)  # which raises nothing
        try:
            return self._connect_to_read() if self.read_only else self._connect("mode=rwc")
        except sqlite3.OperationalError as error:
            if is_new and error.sqlite_errorcode in _FULL:
                _remove_empty(self.path.resolve())  # what a link names, and not the link
            raise UserError(detail=f"{self.path}: {error}", hint=_ELSEWHERE) from error
        except sqlite3.DatabaseError as error:
            if not _was_log(self.path):
                raise UserError(
                    detail=f"{self.path} is not a tuning log", hint=_NOT_OURS
                ) from error
            if self.read_only:
                raise UserError(detail=f"{self.path}: {error}", hint=_DAMAGED) from error
            aside = _quarantine(self.path)
            _LOG.warning("%s is damaged: %s; it is now %s", self.path, error, aside)
            return self._connect("mode=rwc")

    def _connect_to_read(self) -> sqlite3.Connection:
        """A connection that changes nothing.

        The last one to close a log takes the files beside it away, if it may write to it. Where
        nobody may, there are none, and none can be made.
        """
        try:
            return self._connect("mode=rw")
        except sqlite3.OperationalError:
            beside = self.path.with_name(f"{self.path.name}-wal")
            empty = not beside.exists() or not beside.stat().st_size
            return self._connect("immutable=1" if empty else "mode=ro")

    def _connect(self, how: str) -> sqlite3.Connection:
        uri = f"{self.path.resolve().as_uri()}?{how}"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_SECONDS)
        try:
            if self.read_only:
                db.execute("PRAGMA query_only=ON")
            self._prepare(db)
        except BaseException:
            db.close()
            raise
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Make or bring up to date the tables.

        Raises:
            UserError: the file is another program's, or a later version's.
        """
        if not self.read_only:
            _write_ahead(db)
            db.execute("BEGIN IMMEDIATE")  # one of several tuners makes the tables
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        empty = not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if application != _APPLICATION and not (empty and not self.read_only):
            raise UserError(detail=f"{self.path} is not a tuning log", hint=_NOT_OURS)
        if version > SCHEMA_VERSION:
            reason = f"its format is {version}, and this dlc reads up to {SCHEMA_VERSION}"
            raise UserError(detail=f"{self.path}: {reason}", hint="update dlc")
        if self.read_only:
            found = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            self._tables = frozenset(name for (name,) in found)  # an older format has fewer
            return
        (state,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if state != "ok":
            raise sqlite3.DatabaseError(" ".join(str(state).split()))
        pieces = [_SCHEMA] if empty else list(_MIGRATIONS[version - 1 :])
        for statement in "".join(pieces).split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA application_id={_APPLICATION}")
        db.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        db.commit()


def _write_ahead(db: sqlite3.Connection) -> None:
    """Let readers and one writer work at once; for that, SQLite waits for nobody by itself."""
    deadline = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(_BUSY_PAUSE)


def _check_readable(path: Path) -> None:
    """Let the system say what is against reading a file, of which SQLite says nothing."""
    try:
        if not path.is_file():
            raise UserError(detail=f"{path}: there is no such log", hint="make one by dlc tune")
        path.open("rb").close()
    except OSError as error:
        raise UserError(detail=f"{path}: {why_unreadable(error)}") from error


def _was_log(path: Path) -> bool:
    """Whether a file begins as our logs do, whatever became of the rest."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    return head[:16] == b"SQLite format 3\0" and head[68:72] == _APPLICATION.to_bytes(4, "big")


def _remove_empty(path: Path) -> None:
    """Take away a log that was begun and has no table: not one that another tuner made meanwhile.

    Nor one that somebody else has open with its journal beside it: that mode of locking asks to be
    alone. In it, SQLite also keeps in memory the index of the journal, for which a full disk has
    no room.
    """
    with contextlib.suppress(OSError, sqlite3.Error):
        db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=0)
        with contextlib.closing(db):
            db.execute("PRAGMA locking_mode=EXCLUSIVE")
            if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return
            for suffix in ("", *_BESIDE):
                path.with_name(path.name + suffix).unlink(missing_ok=True)


def _quarantine(path: Path) -> Path:
    """Move a damaged file and what belongs to it out of the way; nothing is deleted."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    path.rename(aside)
    for suffix in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside
