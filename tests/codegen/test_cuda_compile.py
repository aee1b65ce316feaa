"""Printed kernels become images: which compiler, for which architectures, and only once."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from dlc.codegen.cuda import compile as cuda_compile
from dlc.codegen.cuda.compile import (
    FALLBACK,
    OVERLAPPING,
    Compiler,
    compile_units,
    find_compiler,
)
from dlc.codegen.cuda.emit import Kernel
from dlc.core.cache import Cache
from dlc.core.errors import CodegenError, TargetError
from dlc.core.gpus import gpu_for
from dlc.graph.lower import lower_group
from dlc.schedule.round_products import round_products
from dlc.schedule.rules import gpu_window
from tests.codegen.gpu import GPU, schedule
from tests.codegen.test_cuda_attention import attention
from tests.codegen.test_cuda_bytes import convolution_of_bytes
from tests.codegen.test_cuda_products import norm, product_of, product_of_bytes
from tests.codegen.test_cuda_vector import vector
from tests.codegen.test_cuda_window import depthwise, with_tile
from tests.schedule.rules.cases import CASES

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed")
NVRTC = list(cuda_compile._nvrtc_libraries())
ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
SM_90 = gpu_for(["sm_90"])


@pytest.fixture
def kernel() -> Kernel:
    weights = frozenset({"b"})
    return schedule(CASES["depthwise_7"](), "depthwise", constants=weights).kernels[0]


@needs_nvcc
def test_there_is_code_for_each_architecture_and_for_later_ones(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    images, units = compile_units([kernel, kernel], SM_90, cache=cache)
    assert units == {kernel.symbol: 0}
    assert [(i.kind, i.arch) for i in images] == [("cubin", 90), ("ptx", int(FALLBACK[8:]))]
    assert images[0].data.startswith(b"\x7fELF")
    assert kernel.symbol.encode() in images[1].data

    def never(*_: object) -> bytes:
        raise AssertionError("what is known was compiled again")

    monkeypatch.setattr(cuda_compile, "_compile", never)
    assert compile_units([kernel], SM_90, cache=cache)[0] == images


@needs_nvcc
def test_nvcc_reads_a_source_once_for_each_generation(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, str]] = []
    compile_ = cuda_compile._compile

    def count(compiler: Compiler, source: bytes, arch: str, suffix: str) -> bytes:
        read.append((arch, suffix))
        data = compile_(compiler, source, arch, suffix)
        if suffix == ".cu":  # only code that waits by itself may begin early
            assert (b"griddepcontrol.wait" in data) == (arch == OVERLAPPING)
            assert (b"prefetch.global.L2" in data) == (arch == OVERLAPPING)
            early, _, _ = data.partition(b"griddepcontrol.wait")
            assert early.count(b"prefetch.global.L2") == data.count(b"prefetch.global.L2")
        return data

    monkeypatch.setattr(cuda_compile, "_compile", count)
    images, _ = compile_units([kernel], gpu_for(["sm_80", "sm_90"]), cache=Cache(tmp_path))
    ptx = [(FALLBACK, ".cu"), ("sm_80", ".ptx"), (OVERLAPPING, ".cu"), ("sm_90", ".ptx")]
    assert read == ptx
    assert len({i.data for i in images}) == 3


@needs_nvcc
def test_a_kernel_of_each_rule_compiles_for_all_generations_without_spills(tmp_path: Path) -> None:
    made = {
        "tiles": product_of("f32", 64, 96, 512),
        "engine_f16": product_of("f16", 512, 512, 64),
        "engine_bf16": product_of("bf16", 128, 96, 1024),
        "engine_tf32": round_products(product_of("f32", 512, 512, 64), GPU, "tf32"),
        "engine_bytes": product_of_bytes("u8", "i8", 512, 512, 64),
        "convolution": lower_group(convolution_of_bytes(64, 30), "f"),
        "norm": norm(37, 70, "layer_norm(s, g, g)"),
        "attention": CASES["attention"](),
        "online": attention("f16", heads=1, rows="n", keys="m", size=32, masked=False),
        "row": CASES["softmax_40"](),
        "vector": vector("1000", "256", "f16", "gelu(m)"),
        "own": CASES["max_pool"](),
        "window": CASES["depthwise_7"](),
        "rest": CASES["placed"](),
        "repaired": CASES["conv_sparse"](),
        "repaired_tf32": round_products(CASES["conv_sparse_groups"](), GPU, "tf32"),
        "repaired_medium": round_products(CASES["conv_sparse"](), GPU, "medium"),
    }
    kernels = [k for name, func in made.items() for k in schedule(func, name).kernels]
    source, ptx = tmp_path / "all.cu", tmp_path / "all.ptx"
    source.write_text(cuda_compile._source(kernels))
    run(["nvcc", "-ptx", "-std=c++17", "-diag-suppress=177", "-arch=compute_80", "-o", ptx, source])
    text = ptx.read_text()
    copies = ("cp.async.cg.shared.global", "cp.async.commit_group", "cp.async.wait_group")
    engine = (
        "mma.sync.aligned.m16n8k16",
        "ldmatrix.sync",
        "mma.sync.aligned.m16n8k8",
        "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32",
    )
    for instruction in (*engine, *copies, "atom.acq_rel.gpu.global.inc", "shfl.sync.bfly"):
        assert instruction in text
    for arch in ARCHS:
        said = run(["ptxas", "-v", f"-arch={arch}", "-o", tmp_path / arch, ptx])
        assert said.count("Compiling entry function") == len(kernels)
        assert said.count(" 0 bytes spill stores, 0 bytes spill loads") == len(kernels)
        assert " bytes smem" not in said  # beside what a launch asks for, and is counted
        assert max(map(int, re.findall(r"Used (\d+) registers", said))) <= 168


@needs_nvcc
@pytest.mark.slow
def test_no_tile_of_a_window_spills_or_reads_a_pixel_twice(tmp_path: Path) -> None:
    tiles = range(1, 1 + len(gpu_window.TILES))
    choices = [(s, t, n) for s, t, n in product((3, 5, 7), (1, 2), tiles)]
    sizes = {"rows": 28, "columns": 28, "lanes": 32}
    made = {
        f"k{size}_{stride}_{tile}": with_tile(
            depthwise(size, stride=stride, **sizes), f"k{size}_{stride}_{tile}", tile
        )
        for size, stride, tile in choices
    }
    kernels = [k for s in made.values() for k in s.kernels]
    assert len(kernels) == len(choices)
    source, ptx = tmp_path / "all.cu", tmp_path / "all.ptx"
    source.write_text(cuda_compile._source(kernels))
    run(["nvcc", "-ptx", "-std=c++17", "-diag-suppress=177", "-arch=compute_80", "-o", ptx, source])
    for entry in ptx.read_text().split(".visible .entry ")[1:]:
        size, stride, tile = map(int, re.findall(r"\d+", entry)[:3])
        rows, columns = gpu_window.TILES[tile - 1]
        box = ((rows - 1) * stride + size) * ((columns - 1) * stride + size)
        residual, bias = rows * columns, 1
        assert entry.count("ld.global") == box + size * size + residual + bias
    for arch in ARCHS:
        said = run(["ptxas", "-v", f"-arch={arch}", "-o", tmp_path / arch, ptx])
        assert said.count(" 0 bytes spill stores, 0 bytes spill loads") == len(kernels)


def run(command: list[str | Path]) -> str:
    """What a compiler says."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@needs_nvcc
def test_a_kernel_that_is_no_cuda_is_reported(kernel: Kernel, tmp_path: Path) -> None:
    broken = replace(kernel, text=kernel.text.replace("{", "{ nonsense;", 1))
    with pytest.raises(CodegenError) as caught:
        compile_units([broken], SM_90, cache=Cache(tmp_path))
    assert "nonsense" in str(caught.value.fields["reason"])


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    find_compiler.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(cuda_compile, "_nvrtc_libraries", lambda: iter(()))
    with pytest.raises(TargetError, match="no CUDA compiler"):
        find_compiler()
    find_compiler.cache_clear()


@pytest.mark.skipif(not NVRTC, reason="NVRTC is not installed: pip install dlc[cuda]")
def test_nvrtc_makes_the_same_kinds_of_images(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_compiler.cache_clear()
    monkeypatch.setattr(shutil, "which", lambda _: None)
    images, _ = compile_units([kernel], SM_90, cache=Cache(tmp_path))
    find_compiler.cache_clear()
    assert images[0].data.startswith(b"\x7fELF")
    assert kernel.symbol.encode() in images[1].data
