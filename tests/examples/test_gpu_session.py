"""The benchmarks that need a GPU, run on the stub of its driver: they must not fail on the day."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from benchmarks import gpu_layers, gpu_peers, gpu_session
from dlc.runtime import why_no_gpu
from tests.end_to_end.networks import NETWORKS, Network
from tests.end_to_end.test_networks import onnxruntime_session
from tests.end_to_end.whole import bert, residual_network
from tests.runtime.emulated import build_stub

ON_STUB = """
import sys
from pathlib import Path
import dlc.codegen.cuda.build
from tests.runtime.emulated import emulated_units
from benchmarks import gpu, gpu_clock, gpu_layers, gpu_operators
dlc.codegen.cuda.build.compile_units = emulated_units(Path(sys.argv.pop(1)))
gpu_layers.find_torch = lambda: None
gpu_layers.LAYERS = {
    "product": gpu_layers.Product(33, 32, 40), "conv": gpu_layers.Convolution(6, 5, 40, 3, 2)
}
gpu_layers.TIMED = ("tf32",)
gpu.RUNS = 1
gpu.MODES = gpu.MODES[::2]
gpu_clock.RUNS = 2
gpu_operators.CHILD = sys.orig_argv[:5]
gpu_operators.BATCH = 3
if sys.argv[1] == "gpu_peers":
    from tests.examples.torch_on_cpu import pretend, small_network
    from benchmarks import gpu_peers
    gpu_peers.find_torch = pretend
    gpu_peers.network = small_network
if sys.argv[1:3] == ["gpu_operators", "--child"]:
    import os
    judge = gpu_operators.judge
    gpu_operators.judge = lambda case: os._exit(9) if "relu" in case.name else judge(case)
module = {"gpu": gpu, "gpu_layers": gpu_layers, **globals()}[sys.argv[1]]
del sys.argv[1]
sys.exit(module.main())
"""


def on_stub(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark in a process that finds the stub."""
    stub = build_stub(folder / "stub")
    env = os.environ | {"LD_LIBRARY_PATH": str(stub)}
    command = [sys.executable, "-c", ON_STUB, str(folder), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_layers_are_searched_and_kept(tmp_path: Path) -> None:
    arguments = ["gpu_layers", "--candidates", "1", "--results", str(tmp_path)]
    done = on_stub(tmp_path, *arguments, "product", "conv")
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(p.read_text()) for p in sorted(tmp_path.glob("gpu-layer-*.json"))]
    assert [(r["layer"], r["mode"]) for r in found] == [("conv", "tf32"), ("product", "tf32")]
    assert all(r["right"] for r in found)
    assert all(r["microseconds"]["best"] <= r["microseconds"]["default"] for r in found)
    again = on_stub(tmp_path, *arguments, "product")
    assert (again.returncode, again.stdout) == (0, "")  # what has a result is skipped
    late = on_stub(tmp_path, *arguments[:-1], str(tmp_path / "new"), "--limit", "0", "product")
    assert "call again" in late.stdout


@pytest.mark.slow
@pytest.mark.exhaustive
def test_operators_are_judged_by_their_own_tests(tmp_path: Path) -> None:
    names = ["test_abs", "test_relu", "test_matmul_2d", "test_sequence_insert_at_back"]
    names += ["test_bernoulli", "test_cast_FLOAT_to_BFLOAT16"]
    arguments = ["gpu_operators", "--results", str(tmp_path), "--jobs", "1"]
    done = on_stub(tmp_path, *arguments, *names[:3])
    assert done.returncode == 1, done.stdout + done.stderr  # for the one that ends its process
    done = on_stub(tmp_path, *arguments, *names)
    found = json.loads((tmp_path / "gpu-operators.json").read_text())
    assert {"date", "commit"} <= found.keys()
    assert found["operators"] == {
        "test_abs": "right",
        "test_relu": "died: exit status 9",
        "test_matmul_2d": "right",
        "test_sequence_insert_at_back": "left out: not all values are tensors",
        "test_bernoulli": "left out: the answer is random",
        "test_cast_FLOAT_to_BFLOAT16": "right",
    }
    late = on_stub(tmp_path, *arguments, "--limit", "0", "test_add")
    assert "call again" in late.stdout


@pytest.mark.slow
def test_models_are_compared_in_several_modes(tmp_path: Path) -> None:
    model = tmp_path / "small.onnx"
    onnx.save(gpu_layers.model_of(gpu_layers.Product(33, 32, 40)), model)
    done = on_stub(tmp_path, "gpu", "--results", str(tmp_path), str(model))
    assert done.returncode == 0, done.stdout + done.stderr
    found = {p.stem for p in tmp_path.glob("gpu-small-*.json")}
    assert found == {f"gpu-small-{m}" for m in ("highest", "tf32", "fp16")}


def test_random_networks_are_as_if_trained() -> None:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten()]
        head = torch.nn.Linear(8 * 36, 5)
        head.weight.zero_()
        layers[0].weight.mul_(0.1)  # as initialisations for training are, many layers deep
        x = torch.rand(1, 3, 8, 8)
        model = gpu_peers.settled(torch, torch.nn.Sequential(*layers, head), (x,))
        assert not model.training
        assert 0.5 < float(model[:2](x).std()) < 2.0
        assert float(model(x).abs().max()) > 1e-3


@pytest.mark.slow
def test_networks_are_compared_with_those_of_others(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    done = on_stub(tmp_path, "gpu_peers", "--results", str(tmp_path), "missing", "broken", "small")
    assert done.returncode == 3, done.stdout + done.stderr  # for the one that is broken
    assert "missing: its package is not installed" in done.stdout
    assert "broken, fp16: RuntimeError: no weights" in done.stdout
    found = {p.stem: json.loads(p.read_text()) for p in tmp_path.glob("gpu-peers-*.json")}
    assert set(found) == {f"gpu-peers-small-{mode}" for mode in ("fp32", "tf32", "fp16")}
    for one in found.values():
        assert set(one["microseconds"]) | set(one["failed"]) == {
            "eager in a graph", "compiled", "JAX", "dlc",
        }  # fmt: skip
        assert set(one["failed"]) <= {"JAX"}, one
        assert one["ratio"] > 0


def test_center_face_comes_back_up_to_a_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.nn.Module, "cuda", lambda self: self)
    same = {name: getattr(torch, name) for name in ("manual_seed", "no_grad", "nn")}
    here = SimpleNamespace(rand=lambda *shape, **_: torch.rand(*shape), **same)
    assert "centerface" in gpu_peers.DEFAULT
    made = gpu_peers.network("centerface", here)
    assert made is not None
    network, (image,) = made
    assert tuple(image.shape) == (1, 3, 544, 960)
    kinds = [type(part).__name__ for part in network.modules()]
    assert [kinds.count(k) for k in ("Conv2d", "ReLU", "ConvTranspose2d")] == [60, 42, 3]
    with torch.no_grad():
        found = network(torch.rand(1, 3, 64, 96))
    assert {n: tuple(t.shape) for n, t in found.items()} == {
        "heatmap": (1, 1, 16, 24),
        "scale": (1, 2, 16, 24),
        "offset": (1, 2, 16, 24),
        "landmarks": (1, 10, 16, 24),
    }
    assert all(0.05 < t.std() < 20 for t in found.values())  # 16-bit floats bear them


def test_the_table_names_ratios_shares_and_faults(tmp_path: Path) -> None:
    network = {"network": "net", "mode": "tf32", "microseconds": {"compiled": 80.0, "dlc": 40.0},
               "ratio": 0.5, "failed": {"JAX": "no such operator"}}  # fmt: skip
    layer = {"layer": "wide", "mode": "fp16", "difference": 2.0, "right": False,
             "microseconds": {"default": 20.0, "best": 10.0, "PyTorch": 8.0}}  # fmt: skip
    model = {"model": "m", "mode": "high", "right": True, "sanitizer": {"racecheck": "a\nrace"}}
    operators = {"operators": {"a": "right", "b": "wrong: off by 2", "c": "right"}}
    (tmp_path / "gpu-operators.json").write_text(json.dumps(operators))
    for name, one in (("peers-net-tf32", network), ("layer-wide-fp16", layer), ("m-high", model)):
        (tmp_path / f"gpu-{name}.json").write_text(json.dumps(one))
    assert gpu_session.table(tmp_path) == [
        "net, tf32: compiled 80, dlc 40 us; dlc is 2.00 x the best",
        "geometric mean of 1: 2.00 x the best of the others",
        "operators: 2 right, 1 wrong",
        "b: wrong: off by 2",
        "wide, fp16: default 20.0, best 10.0, PyTorch 8.0 us, 80% of its rate",
        "WRONG: wide, fp16: off by 2.0e+00",
        "racecheck: m, high: race",
        "failed: net, JAX: no such operator",
    ]


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    if not why_no_gpu():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(sys, "argv", ["gpu_session"])
    assert gpu_session.main() == 2
    assert "no NVIDIA driver" in capsys.readouterr().out


ENLARGED = Network(
    """(float[2,4,5,7] x, float[4,3,3,2] w_1, float[3] b_1, float[3] w_2, float[3] b_2,
        float[3] mean, float[3] variance)
    => (float[2,3,10,13] y) {
        a = ConvTranspose<strides=[2,2], pads=[1,0,1,1], output_padding=[1,0]>(x, w_1, b_1)
        y = BatchNormalization(a, w_2, b_2, mean, variance)
    }""",
    [{}],
    values={
        "b_1": np.float32([1, 2, 3]), "b_2": np.float32([3, 1, 2]),
        "mean": np.float32([0, 1, 2]), "variance": np.float32([0.5, 1, 2]),
    },
)  # fmt: skip


@pytest.mark.parametrize(
    "make", [residual_network, bert, lambda: NETWORKS["perceptron"], lambda: ENLARGED]
)
def test_jax_computes_what_onnxruntime_does(make) -> None:
    pytest.importorskip("jax")
    from benchmarks.onnx_in_jax import function_of

    network = make()
    model = network.model()
    feeds = network.feeds(network.sizes[0])
    (found,) = function_of(model, "fp32")(feeds)
    (wanted,) = onnxruntime_session(model).run(None, feeds)
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-4, atol=1e-4)
