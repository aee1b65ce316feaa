from __future__ import annotations

import logging

from dlc.core.log import enable_topics
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
