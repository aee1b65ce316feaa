"""Models for a GPU on a stub of the driver: what is launched, recorded, copied, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dlc
import dlc.codegen.cuda.build as gpu_build
from dlc.compiler import build
from dlc.runtime import load
from dlc.schedule.program import Program
from dlc.whole_build import rules_own
from tests.runtime.emulated import build_emulated, build_stub, run_on_stub


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_stub(tmp_path_factory.mktemp("stub"))


def weights(name: str, *shape: int) -> onnx.TensorProto:
    data = np.random.default_rng(sum(map(ord, name))).integers(-2, 3, shape)
    return numpy_helper.from_array(data.astype(np.float32), name)


def model(nodes, constants, inputs, outputs) -> onnx.ModelProto:
    kinds = {name: helper.make_tensor_value_info(name, *info) for name, info in inputs.items()}
    results = [helper.make_tensor_value_info(name, *info) for name, info in outputs.items()]
    graph = helper.make_graph(nodes, "net", list(kinds.values()), results, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def network() -> onnx.ModelProto:
    """Convolutions with halos, a residual, depthwise, a mean and a dense layer; any batch."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w2", "b1"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "b"], ["d"]),
        node("Conv", ["d", "w3"], ["e"], group=20, pads=[1, 1, 1, 1]),
        node("ReduceSum", ["e", "axes"], ["f"], keepdims=0),
        node("Gemm", ["f", "w4", "b4"], ["y"]),
    ]
    axes = numpy_helper.from_array(np.array([2, 3]), "axes")
    constants = [
        weights("w1", 20, 3, 3, 3), weights("b1", 20), weights("w2", 20, 20, 3, 3),
        weights("w3", 20, 1, 3, 3), weights("w4", 20, 7), weights("b4", 7), axes,
    ]  # fmt: skip
    f32 = TensorProto.FLOAT
    return model(nodes, constants, {"x": (f32, ["n", 3, 11, 9])}, {"y": (f32, ["n", 7])})


MOST = 64  # of weights: two products of larger ones saturate in onnxruntime without VNNI


def quantized() -> onnx.ModelProto:
    """Quantized products in each spelling there is, one after the other."""
    node, random = helper.make_node, np.random.default_rng(3)

    def constant(name: str, data: object) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(data), name)

    nodes = [
        node("QLinearMatMul", ["x", "s", "z", "w1", "s", "z0", "t", "z"], ["a"]),
        node("DequantizeLinear", ["a", "s", "z"], ["b"]),
        node("DequantizeLinear", ["w2", "s", "z0"], ["c"]),
        node("MatMul", ["b", "c"], ["d"]),
        node("QuantizeLinear", ["d", "t", "z"], ["e"]),
        node("MatMulInteger", ["e", "w3", "z"], ["y"]),
    ]
    constants = [
        *(constant(f"w{n}", random.integers(-MOST, MOST, (32, 32), np.int8)) for n in (1, 2, 3)),
        constant("s", np.float32(0.25)), constant("t", np.float32(64)),
        constant("z", np.uint8(131)), constant("z0", np.int8(0)),
    ]  # fmt: skip
    outputs = {"y": (TensorProto.INT32, [19, 32])}
    return model(nodes, constants, {"x": (TensorProto.UINT8, [19, 32])}, outputs)


def quantized_convolutions() -> onnx.ModelProto:
    """Quantized convolutions with halos around a zero point: few channels, dense, depthwise."""
    node, random = helper.make_node, np.random.default_rng(3)

    def constant(name: str, data: object) -> onnx.TensorProto:
        return numpy_helper.from_array(np.asarray(data), name)

    def conv(x: str, number: int, y: str, group: int = 1) -> onnx.NodeProto:
        inputs = [x, "s", "z", f"w{number}", "scales", "zeros", "t", "z", "b"]
        return node("QLinearConv", inputs, [y], pads=[1, 1, 1, 1], group=group)

    nodes = [
        conv("x", 1, "a"), conv("a", 2, "b1"), conv("b1", 3, "c", group=40),
        node("DequantizeLinear", ["c", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w4", "s"], ["e"]),
        node("Conv", ["d", "e"], ["f"]),
        node("QuantizeLinear", ["f", "t", "z"], ["g"]),
        node("ConvInteger", ["g", "w5", "z"], ["y"], pads=[1, 0, 0, 1]),
    ]  # fmt: skip
    shapes = {1: (40, 3, 3, 3), 2: (40, 40, 3, 3), 3: (40, 1, 3, 3), 4: (33, 40, 1, 1)}
    constants = [
        *(constant(f"w{n}", random.integers(-MOST, MOST, shape, np.int8))
          for n, shape in (shapes | {5: (32, 33, 2, 2)}).items()),
        constant("scales", (random.integers(1, 5, 40) / 8).astype(np.float32)),
        constant("zeros", np.zeros(40, np.int8)), constant("s", np.float32(0.25)),
        constant("t", np.float32(64)), constant("z", np.uint8(131)),
        constant("b", random.integers(-1000, 1000, 40).astype(np.int32)),
    ]  # fmt: skip
    outputs = {"y": (TensorProto.INT32, [1, 32, 7, 6])}
    return model(nodes, constants, {"x": (TensorProto.UINT8, [1, 3, 7, 6])}, outputs)


def images(batch: int) -> dict[str, np.ndarray]:
    data = np.random.default_rng(batch).integers(-2, 3, (batch, 3, 11, 9))
    return {"x": data.astype(np.float32)}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("network") / "model.so"
    with pytest.MonkeyPatch.context() as patch:
        build_emulated(network(), path, patch)
    return path


def count(calls: list[str], word: str) -> int:
    return sum(call.split()[0] == word for call in calls)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_model_is_recorded_once_and_replayed(built: Path, stub: Path, batch: int) -> None:
    arrays = images(batch)
    (want,) = onnxruntime.InferenceSession(network().SerializeToString()).run(None, arrays)
    found, calls, errors = run_on_stub(built, stub, arrays, times=3)
    assert not errors
    np.testing.assert_array_equal(found["y"], want)
    assert (count(calls, "record"), count(calls, "replay")) == (1, 3)
    assert calls.count("load") == 1
    first = next(c for c in calls if c.startswith("launch"))
    assert calls.count(first) == 3


def test_quantized_products_stay_bytes_on_the_engine(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"x": np.random.default_rng(7).integers(0, 256, (19, 32), dtype=np.uint8)}
    (want,) = onnxruntime.InferenceSession(quantized().SerializeToString()).run(None, arrays)
    build_emulated(quantized(), tmp_path / "model.so", monkeypatch)
    found, calls, errors = run_on_stub(tmp_path / "model.so", stub, arrays)
    assert not errors
    np.testing.assert_array_equal(found["y"], want)
    launched = {c.rpartition(" ")[0] for c in calls if c.startswith("launch")}
    assert len(launched) == 2  # of three products two are the same kernel
    assert all("matmul" in name for name in launched)


def test_quantized_convolutions_stay_bytes_on_the_engine(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = {"x": np.random.default_rng(7).integers(0, 256, (1, 3, 7, 6), dtype=np.uint8)}
    net = quantized_convolutions()
    (want,) = onnxruntime.InferenceSession(net.SerializeToString()).run(None, arrays)
    build_emulated(net, tmp_path / "model.so", monkeypatch)
    found, calls, errors = run_on_stub(tmp_path / "model.so", stub, arrays)
    assert not errors
    np.testing.assert_array_equal(found["y"], want)
    launched = [c.rpartition(" ")[0] for c in calls if c.startswith("launch")]
    assert sum("conv_" in name for name in launched) == 5
    assert len(launched) == 7  # the halo of the image, and the last result in planes


def test_infinities_stay_in_their_group(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups that share a block are one product, in which what lies between them is no weight."""
    f32 = TensorProto.FLOAT
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], group=3)]
    outputs = {"y": (f32, [1, 6, 3, 4])}
    net = model(nodes, [weights("w", 6, 2, 1, 2)], {"x": (f32, [1, 6, 3, 5])}, outputs)
    arrays = {"x": np.arange(90, dtype=np.float32).reshape(1, 6, 3, 5)}
    arrays["x"][0, 1, 1, 1], arrays["x"][0, -1, 2, 0] = np.inf, np.nan
    (want,) = onnxruntime.InferenceSession(net.SerializeToString()).run(None, arrays)
    build_emulated(net, tmp_path / "model.so", monkeypatch)
    found, _, errors = run_on_stub(tmp_path / "model.so", stub, arrays)
    assert not errors
    assert np.isnan(found["y"][:, :4]).sum() == np.isnan(want[:, :4]).sum()
    np.testing.assert_array_equal(found["y"], want)


def test_everything_is_given_back(built: Path, stub: Path) -> None:
    _, calls, _ = run_on_stub(built, stub, images(2))
    for taken, given in (("allocate", "free"), ("load", "unload"), ("retain", "release")):
        assert count(calls, taken) == count(calls, given) > 0
    assert count(calls, "forget") == 1


def test_no_image_runs_no_kernel(built: Path, stub: Path) -> None:
    found, calls, errors = run_on_stub(built, stub, images(0))
    assert not errors
    assert found["y"].shape == (0, 7)
    assert count(calls, "launch") == 0


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"STUB_CUDA_DEVICES": "0"}, "this model runs on an NVIDIA GPU, and this machine has none"),
        ({"STUB_CUDA_ARCH": "75"}, "no code for this GPU (sm_75); build it with --target"),
        ({"STUB_CUDA_ARCH": "90"}, "no code for this GPU (sm_90)"),
        ({"STUB_CUDA_MEMORY": "1000"}, "cannot get memory of the GPU for the weights: out of mem"),
        ({"STUB_CUDA_MEMORY": "60000"}, "cannot get memory of the GPU: out of memory"),
    ],
)
def test_what_is_missing_is_said(
    built: Path, stub: Path, environment: dict[str, str], message: str
) -> None:
    _, _, errors = run_on_stub(built, stub, images(40), **environment)
    assert message in errors
    assert "dlc.core.errors." in errors


def test_without_a_driver_the_model_loads_and_says_so(built: Path) -> None:
    if dlc.runtime.why_no_gpu() == "":
        pytest.skip("this machine has a GPU")
    module = load(built)  # nothing of CUDA is needed for that
    assert module.inputs[0].name == "x"
    arrays = images(1)
    for call in (module.run, module.profile, lambda feeds: module.bind(feeds).run()):
        with pytest.raises(dlc.ArtifactError, match="no NVIDIA driver is installed") as caught:
            call(arrays)
        assert str(caught.value).startswith(f"{built}: this model runs on an NVIDIA GPU, and")


def test_code_of_the_nearest_architecture_is_taken(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.so"
    build_emulated(network(), path, monkeypatch, archs=(80, 90), dims={"n": 1})
    for arch in ("80", "86", "90"):
        found, calls, errors = run_on_stub(path, stub, images(1), STUB_CUDA_ARCH=arch)
        assert not errors
        edges = [c.split() for c in calls if c.startswith("edge")]
        assert count(calls, "launch") - 1 == len(edges) > 0  # one behind the other
        assert all(("early" in edge) == (arch == "90") for edge in edges)
        assert found["y"].shape == (1, 7)
    assert "no code" in run_on_stub(path, stub, images(1), STUB_CUDA_ARCH="100")[2]


def test_weights_are_asked_for_ahead(built: Path, stub: Path) -> None:
    _, calls, errors = run_on_stub(built, stub, images(1))
    assert not errors
    asked = sum(int(c.split()[1]) for c in calls if c.startswith("ahead"))
    given = next(int(c.split()[2]) for c in calls if c.startswith("to device"))
    assert abs(asked - given) < given / 50  # one bias is read twice, and weights have gaps


def test_nothing_is_asked_for_that_a_launch_writes(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def everything(program: Program) -> dict[str, frozenset[str]]:
        return {k.name: frozenset(b.name for b in k.inputs) for k in program.kernels}

    monkeypatch.setattr(gpu_build, "constant_params", everything)
    build_emulated(network(), tmp_path / "model.so", monkeypatch, dims={"n": 1})
    _, _, errors = run_on_stub(tmp_path / "model.so", stub, images(1))
    assert " asks ahead for what " in errors


def test_a_kernel_of_other_types_stays_on_the_host(
    tmp_path: Path, stub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8-bit floats are computed on the CPU, between kernels on the GPU."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Cast", ["a"], ["b"], to=TensorProto.FLOAT8E5M2),
        node("Cast", ["b"], ["c"], to=TensorProto.FLOAT),
        node("MatMul", ["c", "v"], ["y"]),
    ]
    f32 = TensorProto.FLOAT
    net = model(
        nodes, [weights("w", 5, 9), weights("v", 9, 4)], {"x": (f32, [3, 5])}, {"y": (f32, [3, 4])}
    )
    path = tmp_path / "model.so"
    build_emulated(net, path, monkeypatch)
    arrays = {"x": np.arange(15, dtype=np.float32).reshape(3, 5)}
    (want,) = onnxruntime.InferenceSession(net.SerializeToString()).run(None, arrays)
    found, calls, errors = run_on_stub(path, stub, arrays, times=2)
    assert not errors
    np.testing.assert_array_equal(found["y"], want)
    assert (count(calls, "record"), count(calls, "replay")) == (1, 0)  # tried once: the host waits
    assert count(calls, "launch") == 2  # one of the products each time; the casts join the other


def test_a_size_of_data_is_read_and_allocated(
    stub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        [],
        {"x": (TensorProto.FLOAT, [1]), "shape": (TensorProto.INT64, [1])},
        {"y": (TensorProto.FLOAT, ["k"])},
    )
    path = tmp_path / "model.so"
    build_emulated(net, path, monkeypatch)
    arrays = {"x": np.array([3.0], np.float32), "shape": np.array([4])}
    found, calls, errors = run_on_stub(path, stub, arrays, times=2)
    assert not errors
    np.testing.assert_array_equal(found["y"], np.full(4, 3.0, np.float32))
    assert [count(calls, word) for word in ("record", "replay", "launch")] == [1, 0, 2]
    assert calls.count("to pinned 8") == 2


def test_a_model_of_texts_stays_on_the_host(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {name: (TensorProto.STRING, [2]) for name in "xy"}
    nodes = [helper.make_node("StringConcat", ["x", "y"], ["z"])]
    net = model(nodes, [], texts, {"z": (TensorProto.STRING, [2])})
    path = tmp_path / "model.so"
    with caplog.at_level("WARNING", logger="dlc.schedule"):
        build(net, path, "cuda", schedule=rules_own)
    assert "the whole model stays on the host: texts are handled by the host" in caplog.text
    found = load(path).run({"x": np.array(["a", "b"]), "y": np.array(["c", "d"])})
    assert list(found["z"]) == ["ac", "bd"]


def branches() -> onnx.ModelProto:
    """Three ways from one product to a sum, the middle one longer; and a fourth beside them."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w0"], ["a"]),
        node("MatMul", ["a", "w1"], ["b"]),
        node("MatMul", ["a", "w2"], ["c"]),
        node("MatMul", ["c", "w3"], ["d"]),
        node("MatMul", ["a", "w4"], ["e"]),
        node("Add", ["b", "d"], ["f"]),
        node("Add", ["f", "e"], ["y"]),
        node("MatMul", ["x", "w5"], ["z"]),
    ]
    shapes = [(5, 7), (7, 6), (7, 7), (7, 6), (7, 6), (5, 3)]
    constants = [weights(f"w{n}", *shape) for n, shape in enumerate(shapes)]
    f32 = TensorProto.FLOAT
    return model(
        nodes, constants, {"x": (f32, ["n", 5])}, {"y": (f32, ["n", 6]), "z": (f32, ["n", 3])}
    )


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("branches") / "model.so"
    with pytest.MonkeyPatch.context() as patch:
        build_emulated(branches(), path, patch, archs=(80, 90))
    return path


X = {"x": np.random.default_rng(0).integers(-2, 3, (4, 5)).astype(np.float32)}


def edges_of(calls: list[str]) -> set[tuple[int, int]]:
    words = (call.split() for call in calls if call.startswith("edge"))
    return {(int(w[1]), int(w[2])) for w in words}


@pytest.mark.parametrize("order", ["", "last", "7"])
def test_branches_may_run_in_any_order(forked: Path, stub: Path, order: str) -> None:
    wanted = onnxruntime.InferenceSession(branches().SerializeToString()).run(None, X)
    more = {"STUB_CUDA_ORDER": order} if order else {}
    found, calls, errors = run_on_stub(forked, stub, X, times=2, **more)
    assert not errors
    np.testing.assert_array_equal(found["y"], wanted[0])
    np.testing.assert_array_equal(found["z"], wanted[1])
    edges = edges_of(calls)
    launches = count(calls, "launch") // 2
    depth = dict.fromkeys(range(launches), 1)
    for begin, end in sorted(edges, key=lambda edge: edge[1]):
        depth[end] = max(depth[end], depth[begin] + 1)
    assert (launches, max(depth.values())) == (6, 4)


def test_every_edge_is_needed(forked: Path, stub: Path) -> None:
    _, calls, _ = run_on_stub(forked, stub, X)
    assert edges_of(calls)
    for edge in range(len(edges_of(calls))):
        _, _, errors = run_on_stub(forked, stub, X, STUB_CUDA_DROP_EDGE=str(edge))
        assert "nothing orders the launches" in errors


def test_only_a_launch_alone_behind_one_comes_early(forked: Path, stub: Path) -> None:
    _, calls, errors = run_on_stub(forked, stub, X, STUB_CUDA_ARCH="90")
    assert not errors
    edges = edges_of(calls)
    alone = {
        (a, b) for a, b in edges
        if sum(e[0] == a for e in edges) == 1 and sum(e[1] == b for e in edges) == 1
    }  # fmt: skip
    early = {(int(w[1]), int(w[2])) for w in map(str.split, calls) if w[-1] == "early"}
    assert early == alone != edges
    assert early
