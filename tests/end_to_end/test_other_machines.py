"""Models for processors with AVX-512 and AMX are right, wherever the tests run.

Their kernels are scheduled and written for these; what only these can execute becomes plain IR.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import dlc.whole_build
from dlc.codegen.llvm import compile as compiling
from dlc.codegen.llvm import compile_task
from dlc.compiler import build
from dlc.core.target_parse import parse_target
from dlc.describe import describe
from dlc.runtime import load, num_threads, set_num_threads
from dlc.whole_build import rules_own
from tests.codegen.plain import plain
from tests.end_to_end.network_text import Text
from tests.end_to_end.networks import NETWORKS, Network
from tests.end_to_end.test_matrix_engine import ERRORS, QUANTIZED
from tests.end_to_end.test_matrix_engine import NETWORKS as PRODUCTS
from tests.end_to_end.test_networks import onnxruntime_session

HERE = parse_target("native")
TILES, PAIRS, QUADS, WORDS = "tdpbf16ps", "dpbf16ps", "vpdpbusd", "pmaddw.d"
BYTE_TILES = "tdpbusd"
TWO_VECTORS, TABLE = "cvtne2ps2bf16", "vpermi2var.qi"


def open_rows() -> Network:
    """A perceptron for rows of an open number, from 121 of which its first product is by tiles."""
    t = Text()
    wide = t("Relu", t("MatMul", "x", t.weight(64, 2048)))
    t.lines.append(f"y = Add(x, {t('MatMul', wide, t.weight(2048, 64))})")
    sizes = tuple({"batch": b, "rows": n} for b, n in ((1, 150), (2, 97), (1, 40), (3, 1), (0, 5)))
    text = t.network("float[batch,rows,64] x", "float[batch,rows,64] y")
    return replace(text, sizes=sizes)


def tables() -> Network:
    """Functions of bytes, of which some numbers are not whole vectors."""
    t = Text()
    step = t.constant("float", np.array(0.02, np.float32))
    i8, u8 = (t.constant(f"{kind}8", np.array(3, f"{kind}8")) for kind in ("int", "uint"))
    byte = t("QuantizeLinear", "x", step, i8)
    value = t("DequantizeLinear", byte, step, i8)
    part = t("Sigmoid", value)
    t.lines.append(f"a = QuantizeLinear({part}, {step}, {u8})")
    t.lines.append(f"b = QuantizeLinear({t('Mul', part, value)}, {step}, {i8})")
    sizes = tuple({"n": n} for n in (1, 16, 31, 64, 1000))
    text = t.network("float[n,3] x", "uint8[n,3] a, int8[n,3] b")
    return replace(text, sizes=sizes)


ALL = PRODUCTS | NETWORKS | {"open rows": open_rows(), "tables": tables(), "bytes": QUANTIZED}
ROUNDED = 2e-3  # of the largest: bytes may differ by one where a sum is near a half


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Builds a model for a processor; gives it, and the instructions that it has none of here."""
    if HERE.arch != "x86_64":
        pytest.skip("kernels for x86-64 run on x86-64")
    used: set[str] = set()
    compile_ir = compiling.compile_ir

    def translated(text, target, **options):
        used.update(re.findall(r"@llvm\.x86\.([\w.]+)", text))
        return compile_ir(plain(text, HERE), HERE, **options)

    def runs_here(*asked):
        found = describe(*asked)
        return replace(found, cpu_features=tuple(sorted(HERE.features)))

    def make(cpu, model, precision):
        path = tmp_path / "model.so"
        target = parse_target(f"llvm -mcpu={cpu}")
        build(model, path, target, precision=precision, schedule=rules_own, jobs=1)
        return load(path), used

    monkeypatch.setenv("DLC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "compile_ir", translated)
    monkeypatch.setattr(compile_task, "compile_ir", translated)
    monkeypatch.setattr(dlc.whole_build, "describe", runs_here)
    threads = num_threads()
    set_num_threads(1)  # tiles are memory of the whole module
    yield make
    set_num_threads(threads)


def agrees(module, network, precision):
    """Compare a model with onnxruntime for all sizes of a network."""
    session = onnxruntime_session(network.model())
    for sizes in network.sizes:
        feeds = network.feeds(sizes)
        wanted = session.run(None, feeds)
        for found, expected in zip(module.run(feeds).values(), wanted, strict=True):
            if expected.dtype.kind != "f":
                assert precision != "highest" or (found == expected).all()
                continue
            largest = float(np.abs(expected).max(initial=1.0))
            allowed = ROUNDED if network is QUANTIZED else ERRORS[precision]
            assert np.abs(found - expected).max(initial=0.0) / largest < allowed, sizes


@pytest.mark.parametrize(
    ("cpu", "name", "precision", "instructions"),
    [
        ("sapphirerapids", "images", "highest", {TILES}),
        ("sapphirerapids", "rows", "medium", {TILES}),
        ("sapphirerapids", "open rows", "highest", {TILES, TWO_VECTORS}),
        ("sapphirerapids", "open rows", "high", {TILES}),
        ("sapphirerapids", "bytes", "highest", {BYTE_TILES}),
        ("znver4", "rows", "medium", {PAIRS}),
        ("znver4", "tables", "highest", {TABLE}),
        ("znver4", "quantised", "highest", {QUADS}),
        ("skylake-avx512", "quantised", "highest", {WORDS}),
        ("skylake-avx512", "attention", "highest", {"scalef"}),
    ],
)
def test_models_for_other_machines_are_right(other, cpu, name, precision, instructions):
    module, used = other(cpu, ALL[name].model(), precision)
    for part in instructions:
        assert any(part in instruction for instruction in used), used
    agrees(module, ALL[name], precision)


OPEN = ("perceptron", "convolutions", "images of any size", "attention", "up and down", "lstm")


@pytest.mark.slow
@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize("name", OPEN)
def test_open_sizes_are_right_where_products_are_of_bf16(other, cpu, name):
    module, _ = other(cpu, ALL[name].model(), "medium")
    agrees(module, ALL[name], "medium")
