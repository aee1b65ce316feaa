"""Signals and readers that leave end a command: it tidies up, and its exit code names them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def test_ctrl_c_ends_with_130(files, dlc_main, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dlc.compiler.build", interrupted)
    code, printed, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert (code, printed) == (130, "")
    assert said.endswith("interrupted\n")
    assert sorted(p.name for p in files.glob(".new*")) == []


@pytest.fixture
def signals_as_usual():
    """What ends a program does so in the test, too: shells let background jobs ignore Ctrl-C."""
    usual = {signal.SIGINT: signal.default_int_handler}
    usual |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("signals_as_usual")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_leave_nothing_behind(files, dlc_main, monkeypatch, number):
    def stopped(*_, **__):
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    monkeypatch.setattr("dlc.compiler.build", stopped)
    code, printed, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert (code, printed) == (128 + number, "")
    assert said.endswith("interrupted\n")
    assert not list(files.glob("*new*"))
    assert not list(files.glob(".new*"))
    assert signal.getsignal(number) is before


NATIVE = """
import hashlib, os, signal, threading, time
from dlc.cli.stop import stoppable
def end():
    while time.process_time() < hashed:  # only the hashing takes any
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)
with stoppable():
    hashed = time.process_time() + 0.2
    threading.Thread(target=end).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 28)
"""


def test_native_code_does_not_hold_a_signal_up_for_long():
    done = subprocess.run([sys.executable, "-c", NATIVE], capture_output=True, text=True)
    # Python would have said so, had it heard: after a minute of hashing.
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")


def test_a_signal_that_is_ignored_stays_so(files, dlc_main, monkeypatch):
    from dlc import compiler

    def build(*arguments, **options):
        os.kill(os.getpid(), signal.SIGHUP)
        return right(*arguments, **options)

    right = compiler.build
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by nohup
    monkeypatch.setattr(compiler, "build", build)
    try:
        assert dlc_main("build", "mlp.onnx", "-o", "new.so")[0] == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("signals_as_usual")
def test_an_import_that_is_interrupted_is_no_mistake(files, dlc_main, monkeypatch):
    def fail(*_, **__):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        raise ImportError("an extension says no more than that")

    monkeypatch.setattr("dlc.compiler.build", fail)
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert code == 130
    assert said.endswith("interrupted\n")
    assert "error" not in said


def test_ctrl_c_while_the_command_line_is_imported_ends_it(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "dlc", "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=dict(os.environ, PYTHONPATH=f"{tmp_path}:{root}"),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def run_without_reader(folder, *arguments, **streams):
    """A command whose standard output, or what else is None of `streams`, nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    given = {"stdout": None, "stderr": subprocess.PIPE, **streams}
    try:
        return subprocess.run(
            [sys.executable, "-m", "dlc", *arguments],
            cwd=folder,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": ""},
            **{name: writer if stream is None else stream for name, stream in given.items()},
        )
    finally:
        os.close(writer)


@pytest.mark.parametrize("command", ["targets", "inspect mlp.onnx", "version --json", "-h"])
def test_a_reader_that_leaves_ends_a_command_without_a_word(files, command):
    done = run_without_reader(files, *command.split())
    assert (done.returncode, done.stderr) == (141, "")


def test_a_build_without_a_reader_leaves_nothing_behind(files):
    done = run_without_reader(files, "build", "mlp.onnx", "-o", "new.so", stderr=None)
    assert done.returncode == 141
    assert sorted(p.name for p in files.glob(".new*")) == []


def test_another_pipe_that_breaks_is_no_reader_that_left(files, dlc_main, monkeypatch):
    def broken(*_, **__):
        raise BrokenPipeError(errno.EPIPE, "broken pipe")

    monkeypatch.setattr("dlc.compiler.build", broken)
    assert dlc_main("build", "mlp.onnx", "-o", "new.so")[0] == 1
