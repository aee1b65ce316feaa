"""Well-known models with open dimensions at several sizes, against onnxruntime.

They are looked for in the folder `pytest --models DIR` names, as `NAME/model.onnx`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dlc

Feeds = dict[str, np.ndarray]
RNG = np.random.default_rng(9)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def speech(batch: int, samples: int) -> Feeds:
    rate = 8000 if samples < 512 else 16000
    return {"input": real(batch, samples), "state": real(2, batch, 128), "sr": np.array(rate)}


def tokens(batch: int, past: int) -> Feeds:
    caches = {f"past_{i}": real(2, batch, 2, past, 2) for i in range(12)}
    return {"input_ids": RNG.integers(0, 5, (batch, 1)), **caches}


def letters(batch: int, length: int) -> Feeds:
    ids = RNG.integers(1, 30, (batch, length))
    return {"char_inputs": ids, "input_lengths": np.full(batch, length)}


def files(batch: int, length: int) -> Feeds:
    return {"bytes": RNG.integers(0, 257, (batch, length)).astype(np.int32)}


def frame(batch: int, parts: int) -> Feeds:
    return {
        "mix": real(batch, 257, 1, parts),
        "conv_cache": real(2, batch, 16, 16, 33),
        "tra_cache": real(2, 3, 1, batch, 16),
        "inter_cache": real(2, batch, 33, 16),
    }


MODELS: dict[str, tuple[Callable[[int, int], Feeds], list[tuple[int, int]]]] = {
    "silero_vad": (speech, [(1, 576), (3, 576), (2, 288), (1, 288)]),
    "gpt2_past_toy": (tokens, [(1, 1), (2, 0), (3, 5), (4, 2)]),
    "tashkeel_tract": (letters, [(1, 22), (2, 7), (3, 40), (1, 1), (1, 300)]),
    "magika_v33": (files, [(1, 2048), (5, 2048), (0, 2048), (16, 2048)]),
    "gtcrn_simple": (frame, [(1, 2)]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_right_at_several_sizes(name, pytestconfig):
    folder = pytestconfig.getoption("--models")
    path = folder / name / "model.onnx" if folder else None
    if path is None or not path.exists():
        pytest.skip(f"no --models folder with {name}/model.onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    module = dlc.compile(path)
    session = onnxruntime.InferenceSession(str(path))
    draw, sizes = MODELS[name]
    for kind in sizes:
        feeds = draw(*kind)
        found = module.run(feeds)
        names = [output.name for output in session.get_outputs()]
        for key, want in zip(names, session.run(None, feeds), strict=True):
            assert found[key].shape == want.shape
            if want.size:  # as far off as rounding takes an engine that sums in another order
                bound = 1e-4 * np.abs(want).max() + 1e-6
                np.testing.assert_allclose(found[key], want, rtol=1e-3, atol=bound)
