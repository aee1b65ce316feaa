"""How long runs take on a GPU: by its own events, with tensors that stay there."""

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Callable, Mapping
from typing import Any

from dlc.runtime import Module

RUNS = 100
HEAD_START = 4_000_000  # cycles that the GPU idles while the host launches a run: 2 ms


def find_torch() -> Any:
    """PyTorch, where it is installed and sees a GPU; else None."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = importlib.import_module("torch")
    return torch if torch.cuda.is_available() else None


def microseconds(torch: Any, run: Callable[[], Any]) -> float:
    """The median GPU time of a run, which is launched as a whole before it begins."""
    for _ in range(5):
        run()
    times: list[float] = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(HEAD_START)
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


def module_microseconds(torch: Any, module: Module, feeds: Mapping[str, Any]) -> float:
    """The time of dlc's artefact; without PyTorch, as its user sees it, copies included."""
    if torch is None:
        return module.benchmark(dict(feeds), rounds=5).median_ms * 1e3
    there = {name: torch.from_numpy(array).cuda() for name, array in feeds.items()}
    stream = torch.cuda.current_stream().cuda_stream
    made = module.run_on_gpu(there, stream=stream)
    kept = {name: torch.from_dlpack(array) for name, array in made.items()}
    return microseconds(torch, lambda: module.run_on_gpu(there, kept, stream=stream))
