"""The four environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlc.core import env
from dlc.core.errors import UserError


@pytest.mark.parametrize(("text", "expected"), [(None, None), ("", None), ("  ", None), ("3", 3)])
def test_num_threads_reads_a_whole_number(monkeypatch, text, expected):
    monkeypatch.delenv("DLC_NUM_THREADS", raising=False)
    if text is not None:
        monkeypatch.setenv("DLC_NUM_THREADS", text)
    assert env.num_threads() == expected


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "²", "1025", "1" * 5000])
def test_num_threads_refuses_what_is_no_count(monkeypatch, text):
    monkeypatch.setenv("DLC_NUM_THREADS", text)
    with pytest.raises(UserError) as caught:
        env.num_threads()
    assert text in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("variable", "read"), [("DLC_CACHE_DIR", env.cache_dir), ("DLC_DUMP", env.dump_dir)]
)
def test_folders_are_paths_with_the_home_expanded(monkeypatch, variable, read):
    monkeypatch.delenv(variable, raising=False)
    assert read() is None
    monkeypatch.setenv(variable, "~/somewhere")
    assert read() == Path.home() / "somewhere"


def test_log_topics_are_split_at_commas(monkeypatch):
    monkeypatch.delenv("DLC_LOG", raising=False)
    assert env.log_topics() == frozenset()
    monkeypatch.setenv("DLC_LOG", "rewrite, tune,,")
    assert env.log_topics() == {"rewrite", "tune"}


def test_the_table_holds_every_variable_once():
    assert [variable.name for variable in env.VARIABLES] == [
        "DLC_NUM_THREADS",
        "DLC_CACHE_DIR",
        "DLC_DUMP",
        "DLC_LOG",
    ]
