"""Finished artefacts by what they were built from: building a large model again is a copy.

Kernels are kept one by one (`codegen/llvm/worker.py`), so a second build of a small model takes
little. That of a large one would split, pack and write its weights anew, and that of a model of
many nodes would spend seconds in passes.

What an artefact is made from is the graph that was imported, with the data of its constants and
the names of its nodes, what the user asked for, and the compiler itself, of which every source
file counts, and the one that compiles kernels for GPUs.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import llvmlite
import ml_dtypes
import numpy as np

from dlc.codegen.cuda.compile import find_compiler
from dlc.core.cache import Cache, default_cache
from dlc.core.env import dump_dir, log_topics
from dlc.core.errors import TargetError, UserError
from dlc.core.staging import staging
from dlc.core.target import Target
from dlc.frontend.onnx.convert import Imported
from dlc.graph.graph import Graph
from dlc.graph.op import Array
from dlc.graph.sizes import bodies
from dlc.runtime import hash_file

MIN_WEIGHT_BYTES = 16 << 20  # less are packed and written in a tenth of a second
MIN_NODES = 64  # fewer are through all passes in a third of a second, of open sizes as well
_PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class ArtifactCache:
    """The place of one artefact in the cache; none where it is not worth its room."""

    key: bytes | None
    cache: Cache

    @staticmethod
    def of(
        imported: Imported, target: Target, options: object, *, own: bool = True
    ) -> ArtifactCache:
        """The place of what a model becomes; `options` prints all else that it depends on.

        Whoever asks for dumps or logs gets a whole build, and so does who schedules kernels
        otherwise than dlc's `own` rules.
        """
        cache = default_cache()
        graphs = list(_graphs(imported.graph))
        arrays = [array for graph in graphs for array in graph.constants.values()]
        light = sum(array.nbytes for array in arrays) < MIN_WEIGHT_BYTES
        short = sum(len(graph.nodes) for graph in graphs) < MIN_NODES
        if (light and short) or not own or dump_dir() or log_topics():
            return ArtifactCache(None, cache)
        with ThreadPoolExecutor() as pool:  # hashing does not hold Python's lock
            digests = list(pool.map(_digest, arrays))
        parts = (
            f"artefact {compiler_version()} {_gpu_compiler(target)}",
            f"{replace(target, features=frozenset())} {sorted(target.features)} {options}",
            f"{imported.interface}",
            *(_description(graph) for graph in graphs),
            *digests,
        )
        return ArtifactCache(hashlib.sha256("\n".join(parts).encode()).digest(), cache)

    def find(self, out: Path) -> Mapping[str, object] | None:
        """Put the artefact at `out`; what `keep` was told of it, or None if there is none."""
        if self.key is None:
            return None
        try:
            with staging(out) as draft:
                note = self.cache.get_file(self.key, draft, hash_file)
                if note is None:
                    return None
                mode = draft.stat().st_mode
                draft.chmod(mode | (mode & 0o444) >> 2)  # as a linker does
                draft.replace(out)
        except (OSError, UserError):
            return None  # a build says why it cannot write there
        found = json.loads(note)
        assert isinstance(found, dict)
        return found

    def keep(self, path: Path, note: Mapping[str, object]) -> None:
        """Store the artefact at `path`, and what to say about it when it is found again."""
        if self.key is not None:
            self.cache.put_file(self.key, path, json.dumps(dict(note)).encode(), hash_file)


def _graphs(graph: Graph) -> Iterator[Graph]:
    """A graph and those inside of it."""
    yield graph
    for node in graph.nodes:
        for body in bodies(node.op):
            yield from _graphs(body)


def _description(graph: Graph) -> str:
    """All of a graph but the data of its constants."""
    sources = [node.source for node in graph.nodes]
    return f"{graph}\n{dict(graph.size_ranges)}\n{sources}\n{[str(v) for v in graph.constants]}"


def _digest(array: Array) -> str:
    flat = np.ascontiguousarray(array).reshape(-1)
    data = repr(flat.tolist()).encode() if array.dtype.hasobject else flat.view("u1").data  # texts
    return f"{array.dtype} {array.shape} {hashlib.sha256(data).hexdigest()}"


def _sources() -> list[Path]:
    """The files of dlc but those made from others: kernels for GPUs begin with one that is C++."""
    found = (path for path in _PACKAGE.rglob("*") if path.is_file() and path.suffix != ".so")
    return sorted(path for path in found if path.parent.name != "__pycache__")


def _gpu_compiler(target: Target) -> str:
    """What compiles kernels for GPUs, if the target has one; none where all stays on the host."""
    if target.gpu is None:
        return ""
    try:
        return str(find_compiler())
    except TargetError:
        return ""


@functools.cache
def compiler_version() -> str:
    """A hash of the source of all of dlc, and the versions of what computes constants and code."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(_PACKAGE)}\n".encode())
        digest.update(path.read_bytes())
    libraries = [f"{m.__name__} {m.__version__}" for m in (llvmlite, ml_dtypes, np)]
    return f"{digest.hexdigest()} {' '.join(libraries)}"
