from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlc.core.errors import UserError
from dlc.core.staging import staging, writing


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is to be replaced."""
    found = tmp_path / "model.so"
    found.write_text("old")
    return found


def test_a_draft_takes_its_place_and_leaves_nothing_else(path):
    with staging(path) as draft:
        draft.write_text("new")
        (draft.parent / "object.o").write_text("on the way")
        assert path.read_text() == "old"
        draft.replace(path)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_draft_that_fails_leaves_what_was_there(path):
    def fail() -> None:
        with staging(path) as draft:
            draft.write_text("half")
            raise ValueError("a fault of ours")

    with pytest.raises(ValueError, match="ours"):
        fail()
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_where_nothing_can_be_made(path, monkeypatch):
    with pytest.raises(UserError, match="it is a folder"), staging(path.parent):
        pytest.fail("the body ran")
    with pytest.raises(UserError, match="there is no folder"), staging(path / "absent" / "m.so"):
        pytest.fail("the body ran")

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(UserError, match=r"model\.so: permission denied"), staging(path):
        pytest.fail("the body ran")


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "null"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="no regular file"), staging(pipe):
        pytest.fail("the body ran")
    assert pipe.is_fifo()


def test_a_full_disk_is_the_users_error_and_a_fault_of_ours_is_not(path):
    with pytest.raises(UserError, match=r"cannot write y\.npy: no space left"), writing("y.npy"):
        raise OSError(28, "No space left on device")
    with pytest.raises(ValueError, match="ours"), writing("y.npy"):
        raise ValueError("a fault of ours")


def test_an_error_names_what_a_draft_is_to_become(path):
    def fill_the_disk() -> None:
        with staging(path) as draft, staging(draft) as inner, writing(inner):
            raise OSError(28, "No space left on device")

    with pytest.raises(UserError) as caught:
        fill_the_disk()
    assert str(caught.value) == f"cannot write {path}: no space left on device"
