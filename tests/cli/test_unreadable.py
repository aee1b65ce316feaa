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


def refusing(own, name):
    """A function of the system that refuses a file of this name, and else does its own."""

    def call(path, *rest, **kwargs):
        if not isinstance(path, int) and os.fspath(path) in (name, name.encode()):
            raise PermissionError(13, os.strerror(13), name)
        return own(path, *rest, **kwargs)

    return call


@pytest.fixture
def deny(files, monkeypatch):
    """Let the system refuse to open a file, which it never does to an administrator."""

    def refuse(name):
        refused, own_access = refusing(builtins.open, name), os.access
        monkeypatch.setattr(builtins, "open", refused)
        monkeypatch.setattr(io, "open", refused)
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


LONG = "x" * 300
TOO_LONG = "file name too long"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (f"inspect {LONG}.onnx", 3, f"DLC-E0300]: {LONG}.onnx: cannot be read: {TOO_LONG}"),
        (f"run {LONG}.onnx", 3, f"DLC-E0300]: {LONG}.onnx: cannot be read: {TOO_LONG}"),
        (f"build {LONG}.onnx", 3, f"DLC-E0300]: {LONG}.onnx: cannot be read: {TOO_LONG}"),
        (f"run {LONG}.so", 6, f"DLC-E0600]: {LONG}.so: cannot be read: {TOO_LONG}"),
        (f"tune export {LONG}.db", 2, f"DLC-E0100]: {LONG}.db: cannot be read: {TOO_LONG}"),
        (f"tune mlp.onnx -o {LONG}.db", 2, f"E0100]: {LONG}.db: cannot be written: {TOO_LONG}"),
        (f"tune report a.db -o {LONG}", 2, f"DLC-E0100]: cannot write {LONG}: {TOO_LONG}"),
        (f"build mlp.onnx -o {LONG}.so", 2, f"DLC-E0100]: cannot write {LONG}.so: {TOO_LONG}"),
        (f"build mlp.onnx --tuning {LONG}.db -q", 2, f"{LONG}.db: cannot be read: {TOO_LONG}"),
        (f"build mlp.onnx -q --no-verify --depfile {LONG}", 2, f"write {LONG}: {TOO_LONG}"),
    ],
)
def test_a_name_that_no_file_may_have(files, dlc_main, words, code, text):
    TuningLog(files / "a.db").close()
    found, printed, said = dlc_main(*words.split())
    assert (found, printed) == (code, "")
    assert text in said


def test_a_name_may_be_too_long_for_what_lies_beside_it(files, dlc_main):
    name = "x" * 249
    (files / "mlp.onnx").rename(f"{name}.onnx")
    words = ("-o", "new.so", "-q", "--no-verify", "--depfile", "new.d")
    assert dlc_main("build", f"{name}.onnx", *words)[::2] == (0, "")
    (files / "new.so").rename(f"{name}ab.so")
    code, _, said = dlc_main("bench", f"{name}ab.so", "--against", "onnxruntime")
    assert (code, f"there is no {name}ab.onnx" in said) == (2, True)


@pytest.fixture
def hide(files, deny, monkeypatch):
    """Let a file lie where nobody may look for one, which an administrator always may."""

    def refuse(name):
        deny(name)
        monkeypatch.setattr(os, "stat", refusing(os.stat, name))

    return refuse


@pytest.mark.parametrize(
    ("name", "words", "code", "text"),
    [
        ("mlp.so", "run mlp.so", 6, f"DLC-E0600]: mlp.so: {DENIED}"),
        ("mlp.so", "inspect mlp.so", 6, f"DLC-E0600]: mlp.so: {DENIED}"),
        ("mlp.onnx", "run mlp.onnx", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("mlp.onnx", "inspect mlp.onnx", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("mlp.onnx", "build mlp.onnx -q", 3, f"DLC-E0300]: mlp.onnx: {DENIED}"),
        ("a.db", "tune export a.db", 2, f"DLC-E0100]: a.db: {DENIED}"),
        ("a.db", "tune mlp.onnx -o a.db", 2, "a.db: cannot be written: permission denied"),
    ],
)
def test_a_file_that_may_not_be_looked_for(dlc_main, hide, name, words, code, text):
    hide(name)
    found, printed, said = dlc_main(*words.split())
    assert (found, printed) == (code, "")
    assert text in said


def commands(group):
    yield from (command.callback for command in group.registered_commands)
    for inner in group.registered_groups:
        yield from commands(inner.typer_instance)


def test_no_command_leaves_its_files_to_the_parser_of_options():
    hints = [get_type_hints(c, include_extras=True).items() for c in commands(app)]
    told = [(name, hint.__metadata__[0]) for h in hints for name, hint in h if "Path" in repr(hint)]
    assert len(told) > 10
    assert [name for name, option in told if option.readable] == []
