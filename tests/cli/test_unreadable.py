"""Files that cannot be read are errors of dlc's own form, with the exit code of what they are."""

from __future__ import annotations

import builtins
import io
import os
from typing import get_type_hints

import pytest

from dlc.autotune.log import TuningLog
from dlc.cli import app

pytestmark = pytest.mark.fast

DENIED = "cannot be read: permission denied"
FOLDER = "cannot be read: is a directory"


@pytest.fixture
def deny(files, monkeypatch):
    """Let the system refuse to open a file, which it never does to an administrator."""

    def refuse(name):
        own_open, own_access = builtins.open, os.access

        def refusing(path, *rest, **kwargs):
            if not isinstance(path, int) and os.fspath(path) in (name, name.encode()):
                raise PermissionError(13, os.strerror(13), name)
            return own_open(path, *rest, **kwargs)

        monkeypatch.setattr(builtins, "open", refusing)
        monkeypatch.setattr(io, "open", refusing)
        monkeypatch.setattr(os, "access", lambda p, m: str(p) != name and own_access(p, m))

    return refuse


@pytest.mark.parametrize(
    ("name", "words", "code", "text"),
    [
        ("mlp.so", "run mlp.so", 6, f"DLC-E0600]: mlp.so: {DENIED}"),
        ("mlp.so", "verify mlp.onnx mlp.so", 6, f"DLC-E0600]: mlp.so: {DENIED}"),
        ("mlp.onnx", "inspect mlp.onnx", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("mlp.onnx", "build mlp.onnx -q", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("mlp.onnx", "tune mlp.onnx --dry-run", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("ones.npy", "run mlp.so -i x=@ones.npy", 2, f"input 'x': ones.npy {DENIED}"),
        (
            "other.onnx",
            "bench mlp.so --against onnxruntime --model other.onnx",
            3,
            f"DLC-E0300]: other.onnx: {DENIED}",
        ),
    ],
)
def test_a_file_that_may_not_be_read(dlc_main, deny, name, words, code, text):
    deny(name)
    found, printed, said = dlc_main(*words.split())
    assert (found, printed) == (code, "")
    assert text in said
    assert "Usage" not in said


def test_a_log_that_may_not_be_read(files, dlc_main, deny):
    TuningLog(files / "a.db").close()
    deny("a.db")
    for words in (("export", "a.db"), ("report", "a.db"), ("merge", "b.db", "a.db")):
        assert dlc_main("tune", *words)[::2] == (2, f"error[DLC-E0100]: a.db: {DENIED}\n")


def test_what_may_not_be_read_may_be_written_over(files, dlc_main, deny):
    deny("mlp.so")
    assert dlc_main("build", "mlp.onnx", "-o", "mlp.so", "-q", "--no-verify")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("run folder.so", 6, f"DLC-E0600]: folder.so: {FOLDER}"),
        ("inspect folder.onnx", 3, f"DLC-E0300]: folder.onnx: {FOLDER}"),
        ("run mlp.so -i x=@folder.so", 2, f"input 'x': folder.so {FOLDER}"),
        (
            "bench mlp.so --against onnxruntime --model folder.onnx",
            3,
            f"DLC-E0300]: folder.onnx: {FOLDER}",
        ),
    ],
)
def test_a_folder_is_no_file(files, dlc_main, words, code, text):
    (files / "folder.so").mkdir()
    (files / "folder.onnx").mkdir()
    found, printed, said = dlc_main(*words.split())
    assert (found, printed, text in said) == (code, "", True)


def commands(group):
    yield from (command.callback for command in group.registered_commands)
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance)


def test_no_command_leaves_its_files_to_the_parser_of_options():
    hints = [get_type_hints(c, include_extras=True).items() for c in commands(app)]
    told = [(name, hint.__metadata__[0]) for h in hints for name, hint in h if "Path" in repr(hint)]
    assert len(told) > 10
    assert [name for name, option in told if option.readable] == []
