"""Every screen at 80 columns, without a terminal: the command, its exit code and what it prints.

A golden file is a command and what comes of it; `pytest --bless` rewrites the latter.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

GOLDEN = sorted((Path(__file__).parents[1] / "golden" / "cli").glob("*.txt"))

# What differs between machines, runs and versions of dlc.
_MASKS = (
    (r"dlc \d+\.\d+\.\d+", "dlc <version>"),
    (r" +\d+\.\d\d (s|ms|µs)\b", " <time>"),
    (r"\d+(\.\d+)? (B|kB|MB)\b", "<size>"),
    (r"\d+ kernels?, arena of (<size>|a size set by \w+)", "<kernels and arena>"),
    (r"\d+ nodes? into \d+ groups?", "<nodes and groups>"),
    (r"onnxruntime: max abs \S+", "onnxruntime: max abs <error>"),
    (r"target native = .*", "target native = <machine>"),
    (r"this machine: .*", "this machine: <machine>"),
    (r"needs (x86_64|aarch64) with [^\n]*\n(?:(?: |[a-z0-9.-]+,)[^\n]*\n|[^ \n]+\n)*", "<needs>\n"),
)


def masked(text: str) -> str:
    lines = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    for pattern, replacement in _MASKS:
        lines = re.sub(pattern, replacement, lines)
    return "".join(f"{line.rstrip()}\n" for line in lines.splitlines())


@pytest.mark.parametrize("colour", ["NO_COLOR", "FORCE_COLOR"])
def test_no_line_of_a_table_ends_in_blanks(files, dlc_main, monkeypatch, colour):
    monkeypatch.setenv(colour, "1")
    for words in (("targets", "native"), ("run", "mlp.so"), ("tune", "mlp.onnx", "--dry-run")):
        lines = [re.sub(r"\x1b\[[\d;]*m", "", n) for n in dlc_main(*words)[1].splitlines()]
        assert len(lines) > 1
        assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden(path, bless, files, dlc_main):
    command = path.read_text().splitlines()[0]
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "dlc"
    code, printed, said = dlc_main(*arguments)
    found = f"{command}\n# exit {code}\n# stdout\n{masked(printed)}# stderr\n{masked(said)}"
    if bless:
        path.write_text(found)
    assert found == path.read_text()
    assert "Traceback" not in said
    assert "\x1b" not in printed + said
    assert max(map(len, printed.splitlines()), default=0) <= 80
