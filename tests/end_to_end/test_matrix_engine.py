"""Models built for a CPU with a matrix engine, whose instructions are emulated where need be."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dlc.whole_build
from dlc.compiler import build
from dlc.core.manifest import Manifest, read_manifest
from dlc.core.precision import PRECISIONS
from dlc.core.target_parse import parse_target
from dlc.describe import describe
from dlc.graph import byte_engine
from dlc.runtime import load
from dlc.whole_build import rules_own
from tests.codegen.tiles import TILES
from tests.end_to_end.network_text import Text, conv
from tests.end_to_end.networks import Network
from tests.end_to_end.test_networks import onnxruntime_session

HERE = parse_target("native")
ENGINE = replace(HERE, features=HERE.features | TILES, in_halves=False)
ERRORS = {"highest": 5e-6, "high": 1e-4, "tf32": 1e-4, "medium": 3e-2}  # shares of the largest


def images() -> Network:
    """A first layer, layers on whole and on halved images, and a classifier."""
    t = Text()
    x = t("Relu", conv(t, "x", (3, 64), 3, 2))
    y = t("Relu", conv(t, x, (64, 64), 3, 1))
    x = t("Relu", t("Add", x, conv(t, y, (64, 64), 1, 1)))
    x = t("Relu", conv(t, x, (64, 96), 3, 2))
    flat = t("Flatten", t("GlobalAveragePool", x))
    t.lines.append(f"y = Gemm({flat}, {t.weight(96, 10)}, {t.weight(10)})")
    return t.network("float[1,3,41,36] x", "float[1,10] y")


def rows() -> Network:
    """Attention of four heads, and the two products of a perceptron."""
    t = Text()
    shape = t.constant("int64", np.array([1, 200, 4, 64]))
    q, k, v = (
        t("Transpose<perm=[0,2,1,3]>", t("Reshape", t("MatMul", "x", t.weight(256, 256)), shape))
        for _ in range(3)
    )
    scores = t("Softmax", t("MatMul", q, t("Transpose<perm=[0,1,3,2]>", k)))
    mixed = t("Transpose<perm=[0,2,1,3]>", t("MatMul", scores, v))
    flat = t("Reshape", mixed, t.constant("int64", np.array([1, 200, 256])))
    x = t("Add", "x", t("MatMul", flat, t.weight(256, 256)))
    wide = t("Relu", t("MatMul", x, t.weight(256, 512)))
    t.lines.append(f"y = Add({x}, {t('MatMul', wide, t.weight(512, 256))})")
    return t.network("float[1,200,256] x", "float[1,200,256] y")


def quantized() -> Network:
    """A first layer, a layer and a halved one, and a product of rows, all of bytes."""
    t, random = Text(), np.random.default_rng(5)

    def in_bytes(value: str, scale: float, zero: int) -> str:
        given = t.constant("float", np.float32(scale)), t.constant("uint8", np.uint8(zero))
        return t("DequantizeLinear", t("QuantizeLinear", value, *given), *given)

    def weight(*shape: int) -> str:
        whole = t.constant("int8", random.integers(-127, 128, shape).astype(np.int8))
        scale = t.constant("float", np.float32(0.02 / np.sqrt(np.prod(shape[1:]))))
        return t("DequantizeLinear", whole, scale, t.constant("int8", np.int8(0)))

    x = in_bytes("x", 0.03, 120)
    attributes = "<pads=[3,3,3,3],strides=[2,2]>"
    x = in_bytes(t("Relu", t(f"Conv{attributes}", x, weight(64, 3, 7, 7))), 0.02, 0)
    x = in_bytes(t("Conv<pads=[1,1,1,1]>", x, weight(96, 64, 3, 3)), 0.02, 130)
    x = in_bytes(t("Relu", t("Conv<strides=[2,2]>", x, weight(256, 96, 1, 1))), 0.02, 0)
    flat = t("Reshape", x, t.constant("int64", np.array([256, 256])))
    t.lines.append(f"y = MatMul({in_bytes(flat, 0.02, 0)}, {weight(256, 512)})")
    return t.network("float[1,3,64,64] x", "float[256,512] y")


NETWORKS = {"images": images(), "rows": rows()}
QUANTIZED = quantized()


def without_tiles(*args: Any) -> Manifest:
    """The manifest of an artefact that the runtime does not know to need tiles."""
    manifest = describe(*args)
    needed = (name for name in manifest.cpu_features if name not in TILES)
    return replace(manifest, cpu_features=tuple(needed))


@pytest.mark.usefixtures("matrix_engine")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_engine_of_bf16_keeps_each_precision(name, precision, tmp_path, monkeypatch):
    monkeypatch.setattr(dlc.whole_build, "describe", without_tiles)
    network, path = NETWORKS[name], tmp_path / "model.so"
    build(network.model(), path, ENGINE, precision=precision, schedule=rules_own)
    kernels = str(read_manifest(path).metadata["kernels"])
    assert "planes" in kernels
    feeds = network.feeds({})
    (expected,) = onnxruntime_session(network.model()).run(None, feeds)
    found = load(path).run(feeds)["y"]
    error = np.abs(found - expected).max() / np.abs(expected).max()
    assert error < ERRORS[precision]


@pytest.mark.usefixtures("matrix_engine")
def test_an_engine_of_bytes_gives_what_vectors_give(tmp_path, monkeypatch):
    monkeypatch.setattr(dlc.whole_build, "describe", without_tiles)
    monkeypatch.setattr(byte_engine, "MARGIN", math.inf)  # the first layer is small
    feeds, model = QUANTIZED.feeds({}), QUANTIZED.model()
    found = {}
    for name, features in (("tiles", ENGINE.features), ("vectors", ENGINE.features - TILES)):
        path = tmp_path / f"{name}.so"
        build(model, path, replace(ENGINE, features=features), schedule=rules_own)
        kernels = str(read_manifest(path).metadata["kernels"])
        found[name] = load(path).run(feeds)["y"]
        assert kernels.count("byte_tiles") == (4 if name == "tiles" else 0)
    np.testing.assert_array_equal(found["tiles"], found["vectors"])
    (expected,) = onnxruntime_session(model).run(None, feeds)
    # Bytes may differ by one where a sum is near a half.
    assert np.abs(found["tiles"] - expected).max() <= 2e-3 * np.abs(expected).max()
