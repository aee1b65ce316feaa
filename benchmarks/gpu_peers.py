"""What a GPU can do, and what PyTorch does on it: the other side of benchmarks/gpu.py.

    python -m benchmarks.gpu_peers [--limit SECONDS] [NETWORK ...]

Ceilings are the bandwidth of a copy and the rate of a large product at each precision. Networks
are those of torchvision and transformers, where they are installed, with random weights and batch
1. Each runs eagerly, recorded in a CUDA graph, and through torch.compile with "max-autotune": GPU
time by events, the median of many runs. Results go to benchmarks/results/gpu-peers-NAME-MODE.json;
what has one is skipped, so a run that was cut short goes on where it stopped. JAX is not among
them yet: it has no such networks of its own.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.provenance import provenance

RESULTS = Path(__file__).parent / "results"
RUNS = 100
MODES = ("fp32", "tf32", "fp16")  # beside dlc's precision highest and tf32, and half fp16
IMAGES = ("resnet18", "resnet50", "mobilenet_v2", "vit_b_16")
BERT_TOKENS = 128


def network(name: str, torch: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """A network on the GPU and its inputs; None where its package is missing."""
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
    return model.eval().cuda(), inputs


def microseconds(torch: Any, run: Callable[[], Any]) -> float:
    """The median GPU time of a run."""
    for _ in range(5):
        run()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def recorded(torch: Any, run: Callable[[], Any]) -> Callable[[], Any]:
    """A run as one CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], Any] = graph.replay
    return replay


def set_mode(torch: Any, mode: str) -> None:
    """Whether float32 products may run in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = mode == "tf32"
    torch.backends.cudnn.allow_tf32 = mode == "tf32"


def measure(torch: Any, name: str, mode: str) -> dict[str, Any] | None:
    """One network in one mode, eagerly and compiled."""
    found = network(name, torch)
    if found is None:
        return None
    model, inputs = found
    set_mode(torch, mode)
    if mode == "fp16":
        model = model.half()
        inputs = tuple(x.half() if x.is_floating_point() else x for x in inputs)
    if inputs[0].dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)
    with torch.no_grad():
        eager = microseconds(torch, recorded(torch, lambda: model(*inputs)))
        compiled = torch.compile(model, mode="max-autotune")
        best = microseconds(torch, lambda: compiled(*inputs))
    times = {"eager in a graph": eager, "compiled": best}
    return {"network": name, "mode": mode, "microseconds": times}


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
    """Measure what has no result yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=["ceilings", *IMAGES, "bert_base"])
    parser.add_argument("--limit", type=float, default=540.0, help="start nothing after that time")
    options = parser.parse_args()
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed")
        return 2
    torch = importlib.import_module("torch")
    if not torch.cuda.is_available():
        print("PyTorch finds no GPU")
        return 2
    RESULTS.mkdir(exist_ok=True)
    began = time.perf_counter()
    for name in options.networks:
        for mode in MODES:
            path = RESULTS / f"gpu-peers-{name}-{mode}.json"
            if path.exists():
                continue
            if time.perf_counter() - began > options.limit:
                print("out of time; call again for the rest")
                return 0
            one = ceilings(torch, mode) if name == "ceilings" else measure(torch, name, mode)
            if one is None:
                print(f"{name}: its package is not installed")
                break
            one |= {**provenance(), "torch": torch.__version__}
            path.write_text(json.dumps(one, indent=2) + "\n", encoding="utf-8")
            print(json.dumps(one))
    return 0


if __name__ == "__main__":
    sys.exit(main())
