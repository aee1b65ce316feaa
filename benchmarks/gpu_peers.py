"""What a GPU can do, and what PyTorch, JAX and dlc make of the same networks on it.

    python -m benchmarks.gpu_peers [--limit SECONDS] [NETWORK ...]

Ceilings are the bandwidth of a copy and the rate of a large product at each precision. Networks are
those of torchvision and transformers, where they are installed, and CenterFace, with random weights
under which all layers have results of ordinary size, and batch 1. Each runs eagerly, recorded in a
CUDA graph, and through torch.compile with "max-autotune": GPU time by events, the median of many
runs. The network is exported to ONNX: that is what dlc builds and JAX runs, the latter by
`onnx_in_jax`. dlc's result is compared with PyTorch's float32. Results go to
benchmarks/results/gpu-peers-NAME-MODE.json, with dlc's time over the best of the others; what has
one is skipped, so a run that was cut short goes on where it stopped. An engine that fails is
written down with its reason, and the others go on.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.util
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx

from benchmarks.gpu import MODES as OUR_MODES
from benchmarks.gpu import TOLERANCES, difference
from benchmarks.gpu_clock import (
    RUNS,
    find_torch,
    microseconds,
    module_microseconds,
    recorded,
    set_mode,
)
from benchmarks.provenance import provenance
from dlc.compiler import build
from dlc.runtime import load

Engines = dict[str, Callable[[], float]]

RESULTS = Path(__file__).parent / "results"
OURS = {"fp32": "highest", "tf32": "tf32", "fp16": "fp16"}
MODES = tuple(OURS)  # beside dlc's precision highest and tf32, and half fp16
IMAGES = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16")
DEFAULT = ("ceilings", *IMAGES, "centerface", "bert_base")
BERT_TOKENS = 128


def network(name: str, torch: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """A network on the GPU and its inputs; None where its package is missing."""
    torch.manual_seed(0)
    if name == "centerface":
        centerface = importlib.import_module("benchmarks.centerface")
        x = torch.rand(1, 3, *centerface.SIZE, device="cuda")
        return settled(torch, centerface.center_face().cuda(), (x,)), (x,)
    package = "transformers" if name == "bert_base" else "torchvision"
    if importlib.util.find_spec(package) is None:
        return None
    if name == "bert_base":
        parts = importlib.import_module(package)
        model = parts.BertModel(parts.BertConfig(), add_pooling_layer=False)
        inputs = (torch.zeros(1, BERT_TOKENS, dtype=torch.long, device="cuda"),)
    else:
        model = getattr(importlib.import_module("torchvision.models"), name)()
        inputs = (torch.rand(1, 3, 224, 224, device="cuda"),)
    return settled(torch, model.cuda(), inputs), inputs


def settled(torch: Any, model: Any, inputs: tuple[Any, ...]) -> Any:
    """A network as if trained: nothing is 0 as a whole, batch norms know what they normalise."""
    with torch.no_grad():
        for weights in model.parameters():
            if not weights.any():
                weights.normal_(std=0.02)
        norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
        for norm in norms:
            norm.momentum = 1.0
        if norms:
            model.train()(*inputs)
    return model.eval()


def measure(torch: Any, name: str, mode: str) -> dict[str, Any] | None:
    """One network in one mode, on all engines."""
    found = network(name, torch)
    if found is None:
        return None
    model, inputs = found
    with tempfile.TemporaryDirectory() as where, torch.no_grad():
        set_mode(torch, "fp32")
        path, wanted = Path(where) / "model.onnx", _first(model(*inputs)).float().cpu().numpy()
        torch.onnx.export(model, inputs, str(path), dynamo=True)
        graph = onnx.load(path).graph
        held = {w.name for w in graph.initializer}
        names = [i.name for i in graph.input if i.name not in held]
        feeds = {n: x.cpu().numpy() for n, x in zip(names, inputs, strict=True)}
        engines = _of_torch(torch, model, inputs, mode)
        engines["JAX"] = lambda: in_jax(path, feeds, mode)
        engines["dlc"] = lambda: ours(torch, path, feeds, mode, wanted)
        return {"network": name, "mode": mode, **times_of(engines)}


def _of_torch(torch: Any, model: Any, inputs: tuple[Any, ...], mode: str) -> Engines:
    """PyTorch eagerly and compiled."""
    if mode == "fp16":
        model = copy.deepcopy(model).half()
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    if inputs[0].dim() == 4:
        model = copy.deepcopy(model).to(memory_format=torch.channels_last)
        inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)

    def eager() -> float:
        set_mode(torch, mode)
        return microseconds(torch, recorded(torch, lambda: model(*inputs)))

    def compiled() -> float:
        set_mode(torch, mode)
        run = torch.compile(model, mode="max-autotune")
        return microseconds(torch, lambda: run(*inputs))

    return {"eager in a graph": eager, "compiled": compiled}


def _first(result: Any) -> Any:
    """The first tensor of what a network returns."""
    return result if hasattr(result, "float") else next(iter(result.values()))


def in_jax(path: Path, feeds: Mapping[str, Any], mode: str) -> float:
    """The time of the exported network in JAX."""
    peer = importlib.import_module("benchmarks.onnx_in_jax")
    run = peer.function_of(onnx.load(path), mode)
    found: float = peer.microseconds(run, feeds, RUNS)
    return found


def ours(torch: Any, path: Path, feeds: Mapping[str, Any], mode: str, wanted: Any) -> float:
    """The time of dlc's artefact.

    Raises:
        ArithmeticError: its result is not what PyTorch's is.
    """
    name, precision, half = next(m for m in OUR_MODES if m[0] == OURS[mode])
    built = path.with_name(f"{mode}.so")
    build(path, built, "cuda", precision=precision, half=half)
    module = load(built)
    found = next(iter(module.run(dict(feeds)).values()))
    apart = difference({"y": found}, {"y": wanted})
    if apart > TOLERANCES[name]:
        raise ArithmeticError(f"the result is off by {apart:.1e} of its largest element")
    return module_microseconds(torch, module, feeds)


def times_of(engines: Engines) -> dict[str, Any]:
    """The time of each engine, the reasons of those that fail, and dlc's over the best."""
    times: dict[str, float] = {}
    failed: dict[str, str] = {}
    for name, run in engines.items():
        try:
            times[name] = run()
        except Exception as error:  # of any library: the others are still worth their time
            failed[name] = f"{type(error).__name__}: {error}"[:500]
    others = [t for name, t in times.items() if name != "dlc"]
    known = {"ratio": times["dlc"] / min(others)} if others and "dlc" in times else {}
    return {"microseconds": times, "failed": failed, **known}


def ceilings(torch: Any, mode: str) -> dict[str, Any]:
    """Bytes copied and floats multiplied per second."""
    set_mode(torch, mode)
    kind = torch.float16 if mode == "fp16" else torch.float32
    size, count = 8192, 1 << 28
    a, b = (torch.rand(size, size, device="cuda", dtype=kind) for _ in range(2))
    c = torch.empty_like(a)
    product = microseconds(torch, lambda: torch.mm(a, b, out=c))
    x, y = (torch.empty(count, device="cuda", dtype=torch.uint8) for _ in range(2))
    copy = microseconds(torch, lambda: y.copy_(x))
    rates = {"teraflops": 2 * size**3 / product / 1e6, "gigabytes": 2 * count / copy / 1e3}
    return {"network": "ceilings", "mode": mode, **rates}


def main() -> int:
    """Measure what has no result yet; 3 where a network cannot be measured at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=DEFAULT)
    parser.add_argument("--limit", type=float, default=540.0, help="start nothing after that time")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch = find_torch()
    if torch is None:
        print("there is no PyTorch that finds a GPU")
        return 2
    options.results.mkdir(exist_ok=True, parents=True)
    began, state = time.perf_counter(), 0
    for name in options.networks:
        for mode in MODES:
            path = options.results / f"gpu-peers-{name}-{mode}.json"
            if path.exists():
                continue
            if time.perf_counter() - began > options.limit:
                print("out of time; call again for the rest")
                return state
            try:
                one = ceilings(torch, mode) if name == "ceilings" else measure(torch, name, mode)
            except Exception as error:  # of any library: the others are still worth their time
                print(f"{name}, {mode}: {type(error).__name__}: {str(error)[:2000]}")
                state = 3
                continue
            if one is None:
                print(f"{name}: its package is not installed")
                break
            one |= {**provenance(), "torch": torch.__version__}
            path.write_text(json.dumps(one, indent=2) + "\n", encoding="utf-8")
            print(json.dumps(one))
    return state


if __name__ == "__main__":
    sys.exit(main())
