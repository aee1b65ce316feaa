from __future__ import annotations

import shutil

import pytest

from dlc.cli import main
from tests.cli.models import write_files


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A folder with the models; not to be changed."""
    folder = tmp_path_factory.mktemp("cli")
    write_files(folder)
    return folder


@pytest.fixture
def files(made, tmp_path, monkeypatch):
    """The current folder of a test, with a copy of the models."""
    folder = tmp_path / "files"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def dlc_main(monkeypatch, capsys):
    """Run a command: its exit code, what it printed, and what it said on standard error."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TERMINAL_WIDTH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments):
        with pytest.raises(SystemExit) as stop:
            main([str(a) for a in arguments])
        printed, said = capsys.readouterr()
        return stop.value.code or 0, printed, said

    return run
