"""PyTorch's interface to GPUs, on the CPU: what the benchmarks call, without a GPU.

Tensors stay where they are, a recorded graph runs its work again, and events tell the time.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Iterator
from typing import Any

torch: Any = importlib.import_module("torch")


class Event:
    """A moment."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is under way."""

    def elapsed_time(self, end: Event) -> float:
        """In milliseconds, and never 0."""
        return max(1e-3, (end.at - self.at) * 1e3)


class Stream:
    """The one stream there is."""

    cuda_stream = 0

    def wait_stream(self, other: Stream) -> None:
        """Nothing is under way."""


class Graph:
    """Refuses what no graph of a GPU could replay: work before anything was recorded."""

    recorded = False

    def replay(self) -> None:
        assert self.recorded


@contextlib.contextmanager
def recording(graph: Graph) -> Iterator[None]:
    yield
    graph.recorded = True


def here(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function that makes a tensor, on the CPU whatever it is asked for."""
    return lambda *a, **k: make(*a, **{n: v for n, v in k.items() if v != "cuda"})


def pretend() -> Any:
    """PyTorch, which believes that it has a GPU."""
    torch.cuda.Event = Event
    torch.cuda.Stream = Stream
    torch.cuda.CUDAGraph = Graph
    torch.cuda.graph = recording
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.current_stream = Stream
    torch.cuda._sleep = lambda _: None
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self: self
    for name in ("zeros", "rand", "empty"):
        setattr(torch, name, here(getattr(torch, name)))
    torch.from_dlpack = lambda array: array  # stays in what the stub of the driver calls its memory
    torch.compile = lambda model, **_: model
    return torch


def small_network(name: str, _: Any) -> tuple[Any, tuple[Any, ...]] | None:
    """A convolution and a product, in the place of a network of that name."""
    if name == "missing":
        return None
    if name == "broken":
        raise RuntimeError("no weights")
    layers = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 5)
    return torch.nn.Sequential(*layers).eval(), (torch.rand(1, 3, 8, 8),)
