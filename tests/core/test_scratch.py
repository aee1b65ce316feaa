import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from dlc.core.scratch import scratch_folder

HOLDER = """
import time
from dlc.core.scratch import scratch_folder
with scratch_folder(watched={watched}) as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_ends_with_its_with(root):
    with scratch_folder() as folder:
        (folder / "x").write_text("1")
        assert folder.parent == root
    assert not list(root.iterdir())


@contextlib.contextmanager
def hold(root, *, watched=False):
    """A process that has a folder with a file in it."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER.format(watched=watched)],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, TMPDIR=str(root), PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert holder.stdout
    with holder.stdout:
        folder = root / holder.stdout.readline().strip()
        (folder / "x").write_text("1")
        yield holder, folder


def test_a_watched_folder_goes_with_a_killed_process(root):
    with hold(root, watched=True) as (holder, folder):
        assert folder.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        until = time.monotonic() + 20
        while folder.exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert not list(root.iterdir())


def test_a_watched_folder_waits_for_no_child_of_its_owner(root):
    """A fork holds the pipe that the watcher reads from."""
    with scratch_folder(watched=True):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    assert not list(root.iterdir())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_watched_folder_ends_with_its_with(root, monkeypatch):
    with scratch_folder(watched=True) as folder:
        (folder / "x").write_text("1")
    assert not list(root.iterdir())
    monkeypatch.setenv("PATH", str(root))  # where there is no shell
    with scratch_folder(watched=True) as folder:
        (folder / "x").write_text("1")
    assert not list(root.iterdir())


def test_what_a_killed_process_left_goes_and_what_others_hold_stays(root):
    with hold(root) as (holder, held):
        fresh = root / "dlc-scratch-fresh"  # its owner is about to lock it
        fresh.mkdir()
        os.utime(held, (1, 1))
        with scratch_folder():
            assert held.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with scratch_folder() as own:
        assert set(root.iterdir()) == {fresh, own}
