from __future__ import annotations

import logging
import re
from pathlib import Path

import dlc
from dlc.core.log import TOPICS, enable_topics
from dlc.graph.rewrite import rewrite_graph
from dlc.graph.rules import STEP_RULES
from tests.graph.pass_cases import CONTEXT, read


def test_a_topic_is_written_once_to_standard_error(monkeypatch, capsys):
    monkeypatch.setenv("DLC_LOG", "rewrite")
    logger = logging.getLogger("dlc.rewrite")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "level", logging.WARNING)
    monkeypatch.setattr(logger, "propagate", True)
    enable_topics()
    enable_topics()
    lines = ("c: f32[3] = const(1, 2, 3)", "y: f32[3] = div(x, c)", "return y")
    rewrite_graph(read("def main(x: f32[3]):\n    " + "\n    ".join(lines)), STEP_RULES, CONTEXT)
    logger.setLevel(logging.WARNING)  # also forgets which levels were on
    text = capsys.readouterr().err
    assert text.count("div_into_mul") == 1
    assert text.startswith("rewrite: ")
    assert "no power of two" in text


def test_an_unknown_topic_is_said_once(monkeypatch, caplog):
    monkeypatch.setenv("DLC_LOG", "nothing_of_that_name")
    enable_topics()
    enable_topics()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "'nothing_of_that_name'; the topics are rewrite, schedule, tune" in record.getMessage()


def test_every_topic_is_known():
    sources = Path(dlc.__file__).parent.rglob("*.py")
    found = {
        t for path in sources for t in re.findall(r'getLogger\("dlc\.(\w+)"', path.read_text())
    }
    assert found == set(TOPICS)
