import os
import signal
import subprocess
import sys
import tempfile

import pytest

from dlc.core.scratch import scratch_folder

HOLDER = """
import time
from dlc.core.scratch import scratch_folder
with scratch_folder() as folder:
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


def test_what_a_killed_process_left_goes_and_what_others_hold_stays(root):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, TMPDIR=str(root), PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert holder.stdout
    with holder.stdout:
        held = root / holder.stdout.readline().strip()
        (held / "x").write_text("1")
        fresh = root / "dlc-scratch-fresh"  # its owner is about to lock it
        fresh.mkdir()
        os.utime(held, (1, 1))
        with scratch_folder():
            assert held.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with scratch_folder() as own:
        assert set(root.iterdir()) == {fresh, own}
