"""The example of token generation: a token at a time gives what one run over all tokens gives."""

from __future__ import annotations

import itertools
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import dlc
from tests.examples.decoder import SHARED, SIZE, decoder

EXAMPLE = Path(__file__).parents[2] / "examples" / "generate.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    path = tmp_path_factory.mktemp("generate") / "decoder.so"
    dlc.compile(decoder(), target="native").save(path)
    return path


def likely(tokens):
    """The most probable token behind each of some, by onnxruntime, which remembers nothing."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(decoder().SerializeToString())
    feeds = {i.name: np.zeros((len(tokens), SHARED, 0, SIZE), np.float32)
             for i in session.get_inputs()[3:]}  # fmt: skip
    feeds["input_ids"] = tokens
    feeds["attention_mask"] = np.ones_like(tokens)
    feeds["position_ids"] = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
    return session.run(["logits"], feeds)[0].argmax(axis=-1)


@pytest.mark.parametrize("length", [1, 2, 17])
@pytest.mark.parametrize("batch", [1, 3])
def test_it_generates_what_is_most_likely(example, artefact, batch, length):
    prompt = np.random.default_rng(length).integers(0, 50, (batch, length))
    steps = itertools.islice(example["greedy"](dlc.load(artefact), prompt), 20)
    found = np.concatenate([prompt, *steps], axis=1)
    assert found.shape == (batch, length + 20)
    np.testing.assert_array_equal(found[:, length:], likely(found)[:, length - 1 : -1])


def test_the_program_prints_tokens(example, artefact, capsys, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["generate", str(artefact), "--prompt", "3,9", "--tokens", "4"]
    )
    example["main"]()
    tokens, times = capsys.readouterr().out.splitlines()
    steps = itertools.islice(example["greedy"](dlc.load(artefact), np.array([[3, 9]])), 4)
    assert tokens.split() == [str(step[0, 0]) for step in steps]
    assert "each other token" in times
