"""Single layers on a GPU, beside cuBLAS and cuDNN as PyTorch calls them, and a search for better
schedules of ours.

    python -m benchmarks.gpu_layers [--limit SECONDS] [--candidates COUNT] [LAYER ...]

The layers are products and convolutions of ResNet-50, MobileNetV2, BERT-base and ViT-B at batch 1.
Each is run as float32, TF32 and fp16, on the same random data, both sides recorded in a CUDA graph
with operands that stay in the memory of the GPU. Then schedules drawn from the rule's space are
built, compared with the default's result, and timed. Results go to
benchmarks/results/gpu-layer-NAME-MODE.json, best knobs included; what has one is skipped, so a run
that was cut short goes on where it stopped. Without PyTorch, only ours is timed, copies included.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.gpu import MODES, RESULTS, TOLERANCES, difference
from benchmarks.gpu_clock import (
    find_torch,
    microseconds,
    module_microseconds,
    recorded,
    set_mode,
)
from benchmarks.provenance import provenance
from dlc.compiler import build
from dlc.core.errors import DlcError
from dlc.core.target import Target
from dlc.runtime import Module, load, why_no_gpu
from dlc.schedule.loop import Func
from dlc.schedule.primitive import Step
from dlc.schedule.rules import prepare, rule_for, schedule_func
from dlc.schedule.trace import Trace

TIMED = ("highest", "tf32", "fp16")  # of benchmarks.gpu's modes
PEERS = {"highest": "fp32", "tf32": "tf32", "fp16": "fp16"}


@dataclass(frozen=True)
class Product:
    """Rows by weights: `rows` x `depth` times `depth` x `columns`."""

    rows: int
    depth: int
    columns: int

    @property
    def operations(self) -> float:
        """Multiply-adds."""
        return float(self.rows * self.depth * self.columns)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the input and of the weights."""
        return (self.rows, self.depth), (self.depth, self.columns)

    def node(self) -> onnx.NodeProto:
        """The layer in ONNX."""
        return helper.make_node("MatMul", ["x", "w"], ["y"])

    def peer(self, torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        """The layer in PyTorch."""
        return lambda: torch.mm(x, w)


@dataclass(frozen=True)
class Convolution:
    """A square image, `given` channels to `made`, halved where the stride is 2."""

    size: int
    given: int
    made: int
    kernel: int
    stride: int = 1
    groups: int = 1

    @property
    def operations(self) -> float:
        """Multiply-adds."""
        pixels = (self.size // self.stride) ** 2
        return float(pixels * self.made * self.given // self.groups * self.kernel**2)

    @property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the input and of the weights."""
        filter_shape = (self.made, self.given // self.groups, self.kernel, self.kernel)
        return (1, self.given, self.size, self.size), filter_shape

    def node(self) -> onnx.NodeProto:
        """The layer in ONNX."""
        pads, strides = [self.kernel // 2] * 4, [self.stride] * 2
        return helper.make_node(
            "Conv", ["x", "w"], ["y"], pads=pads, strides=strides, group=self.groups
        )

    def peer(self, torch: Any, x: Any, w: Any) -> Callable[[], Any]:
        """The layer in PyTorch, in the layout that its GPU kernels like best."""
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
        run = torch.nn.functional.conv2d
        more = {"stride": self.stride, "padding": self.kernel // 2, "groups": self.groups}
        return lambda: run(x, w, None, **more)


Layer = Product | Convolution
LAYERS: dict[str, Layer] = {
    "bert_projection": Product(128, 768, 768),
    "bert_joined": Product(128, 768, 2304),
    "bert_up": Product(128, 768, 3072),
    "bert_down": Product(128, 3072, 768),
    "vit_joined": Product(197, 768, 2304),
    "vit_up": Product(197, 768, 3072),
    "square_512": Product(512, 512, 512),
    "square_1024": Product(1024, 1024, 1024),
    "square_4096": Product(4096, 4096, 4096),
    "resnet_56": Convolution(56, 64, 64, 3),
    "resnet_28": Convolution(28, 128, 128, 3),
    "resnet_14": Convolution(14, 256, 256, 3),
    "resnet_7": Convolution(7, 512, 512, 3),
    "resnet_stem": Convolution(224, 3, 64, 7, 2),
    "resnet_wide": Convolution(14, 256, 1024, 1),
    "mobilenet_apart": Convolution(14, 384, 384, 3, 1, 384),
}


def model_of(layer: Layer) -> onnx.ModelProto:
    """The layer as a model, with random weights."""
    given, weights = layer.shapes
    drawn = np.random.default_rng(1).standard_normal(weights).astype(np.float32)
    w = numpy_helper.from_array(drawn / np.float32(np.prod(weights[1:])) ** 0.5, "w")
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, given)
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([layer.node()], "layer", [x], [y], [w])
    opsets = [helper.make_opsetid("", 18)]
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opsets, ir_version=10)
    )


def with_knobs(knobs: Mapping[str, int]) -> Callable[[Func, Target], tuple[Step, ...] | None]:
    """A scheduler that gives the rule these knobs."""
    return lambda func, target: tuple(schedule_func(func, target, knobs).steps)


class Spaces:
    """Remembers what a build may choose: passes kernels on with the default schedule."""

    def __init__(self) -> None:
        self.points: list[dict[str, int]] = []

    def __call__(self, func: Func, target: Target) -> None:
        """See the kernel; the one with the most to choose from is the layer's."""
        trace = Trace(func)
        prepare(trace, target)
        rule = rule_for(trace.func, target)
        found = [] if rule is None else list(rule.space(trace.func, target).points())
        self.points = max(self.points, found, key=len)


def peer_time(torch: Any, layer: Layer, mode: str, feeds: Mapping[str, Any], weights: Any) -> float:
    """What PyTorch takes, in microseconds."""
    set_mode(torch, PEERS[mode])
    tensors = [torch.from_numpy(a).cuda() for a in (feeds["x"], weights)]
    if mode == "fp16":
        tensors = [t.half() for t in tensors]
    run = layer.peer(torch, *tensors)
    with torch.no_grad():
        return microseconds(torch, recorded(torch, run))


def search(
    model: onnx.ModelProto,
    options: Mapping[str, Any],
    count: int,
    folder: Path,
    judge: Callable[[Module], float | None],
) -> Iterator[tuple[dict[str, int], float]]:
    """Knobs and times of schedules drawn from the space; those that are wrong are left out."""
    spaces = Spaces()
    build(model, folder / "look.so", "cuda", schedule=spaces, **options)
    points = spaces.points
    drawn = random.Random(0).sample(points, min(count, len(points)))
    for number, knobs in enumerate(drawn):
        path = folder / f"candidate{number}.so"
        try:
            build(model, path, "cuda", schedule=with_knobs(knobs), **options)
            found = judge(load(path))
        except DlcError:
            continue
        if found is not None:
            yield knobs, found


def measure(
    torch: Any, name: str, mode: str, candidates: int, stop: Callable[[], bool]
) -> dict[str, Any]:
    """Everything about one layer in one mode."""
    layer = LAYERS[name]
    _, precision, half = next(m for m in MODES if m[0] == mode)
    options: dict[str, Any] = {"precision": precision, "half": half, "tuning": "none"}
    model = model_of(layer)
    data = np.random.default_rng(0).standard_normal(layer.shapes[0]).astype(np.float32)
    feeds = {"x": data}
    with tempfile.TemporaryDirectory() as where:
        folder = Path(where)
        build(model, folder / "ours.so", "cuda", **options)
        build(model, folder / "cpu.so", "native")
        ours = load(folder / "ours.so")
        wanted = load(folder / "cpu.so").run(feeds)
        apart = difference(ours.run(feeds), wanted)
        default = module_microseconds(torch, ours, feeds)
        best: tuple[float, dict[str, int]] = (default, {})

        def judge(module: Module) -> float | None:
            right = difference(module.run(feeds), wanted) <= TOLERANCES[mode]
            return module_microseconds(torch, module, feeds) if right else None

        tried = 0
        for knobs, found in search(model, options, candidates, folder, judge):
            tried += 1
            best = min(best, (found, knobs), key=lambda pair: pair[0])
            if stop():
                break
        weights = numpy_helper.to_array(model.graph.initializer[0])
        times = {"default": default, "best": best[0]}
        if torch is not None:
            times["PyTorch"] = peer_time(torch, layer, mode, feeds, weights)
    rates = {who: 2 * layer.operations / t / 1e6 for who, t in times.items()}
    return {
        "layer": name, "mode": mode, **provenance(), "microseconds": times, "teraflops": rates,
        "knobs": best[1], "candidates": tried, "difference": apart,
        "right": apart <= TOLERANCES[mode],
    }  # fmt: skip


def main() -> int:
    """Measure what has no result yet; 1 where a layer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layers", nargs="*", default=list(LAYERS))
    parser.add_argument("--limit", type=float, default=540.0, help="start nothing after that time")
    parser.add_argument("--candidates", type=int, default=12, help="schedules to try for each")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if missing := why_no_gpu():
        print(missing)
        return 2
    torch = find_torch()
    options.results.mkdir(exist_ok=True, parents=True)
    began, wrong = time.perf_counter(), 0

    def stop() -> bool:
        return bool(time.perf_counter() - began > options.limit)

    for mode in TIMED:
        for name in options.layers:
            path = options.results / f"gpu-layer-{name}-{mode}.json"
            if path.exists():
                continue
            if stop():
                print("out of time; call again for the rest")
                return 1 if wrong else 0
            one = measure(torch, name, mode, options.candidates, stop)
            path.write_text(json.dumps(one, indent=2) + "\n", encoding="utf-8")
            wrong += not one["right"]
            print(f"{name}, {mode}: {json.dumps(one['microseconds'])} us, {one['knobs']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
