"""What is measured: each model with each number of threads, and models of growing sizes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu.models import EXPORTED, MODELS, Model, find

GROWTH_ENGINES = ("onnxruntime", "openvino", "dlc highest")
_BATCHES = (1, 2, 4, 8, 16)
_IMAGES = (128, 160, 224, 288, 384)
_SEQUENCES = (16, 32, 64, 128, 256, 512)
_RESNET = Path(__file__).parents[2] / "examples" / "resnet18.py"


@dataclass(frozen=True, slots=True)
class Job:
    """One duel. `growth` names what grows, if anything does, and `size` is its value."""

    name: str
    sizes: Mapping[str, int]
    threads: int
    engines: tuple[str, ...]
    model: Model | None = None
    growth: str = ""
    size: int = 0

    @property
    def file(self) -> str:
        """The name of the file of its result."""
        size = f"-{self.size}" if self.growth else ""
        return f"{self.name}{size}-{self.threads}t.json"

    def path(self, cache: Path, folder: Path | None) -> Path:
        """The model's file, made if need be.

        Raises:
            Missing: it cannot be had, and why.
        """
        if self.model is not None:
            return find(self.model, cache, folder)
        grown = "batch" if self.growth == "batch" else str(self.size)
        path = cache / f"resnet18-{self.growth}-{grown}.onnx"
        if not path.exists():
            cache.mkdir(parents=True, exist_ok=True)
            option = "--batch" if self.growth == "batch" else "--image-size"
            command = [sys.executable, str(_RESNET), str(path), option, grown]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return path


def models(
    names: Sequence[str],
    threads: Sequence[int],
    engines: tuple[str, ...],
    *,
    among: Sequence[Model] = MODELS,
) -> Iterator[Job]:
    """The models of the table, or others; all of them where no name is given."""
    for model in among:
        if not names or model.name in names:
            for count in threads:
                yield Job(model.name, model.sizes, count, engines, model)


def growth(threads: int) -> Iterator[Job]:
    """How cost grows with batch, image and sequence."""
    for n in _BATCHES:
        yield Job("resnet18-batch", {"batch": n}, threads, GROWTH_ENGINES, None, "batch", n)
    for n in _IMAGES:
        yield Job("resnet18-image", {}, threads, GROWTH_ENGINES, None, "image", n)
    minilm = Model("minilm_l6", EXPORTED)
    for n in _SEQUENCES:
        sizes = {"batch": 1, "seq": n}
        yield Job("minilm_l6-sequence", sizes, threads, GROWTH_ENGINES, minilm, "sequence", n)
