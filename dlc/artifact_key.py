"""What an artefact is made from: the name of its place in the cache.

That is the graph that was imported, with the data of its constants and the names of its nodes,
what the user asked for, and the compiler itself, of which every source file counts, and the one
that compiles kernels for GPUs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from dlc.artifact_cache import describe_target, wants_whole_build
from dlc.codegen.cuda.compile import find_compiler
from dlc.compiler_version import compiler_version
from dlc.core.errors import TargetError
from dlc.core.target import Target
from dlc.frontend.onnx.convert import Imported
from dlc.graph.graph import Graph
from dlc.graph.op import Array
from dlc.graph.sizes import bodies

MIN_WEIGHT_BYTES = 16 << 20  # less are packed and written in a tenth of a second
MIN_NODES = 64  # fewer are through all passes in a third of a second, of open sizes as well


def artifact_key(imported: Imported, target: Target, options: object) -> bytes | None:
    """The key of what a model becomes; `options` prints all else that it depends on.

    None for models that are built in no time, and where somebody wants to see a build.
    """
    graphs = list(_graphs(imported.graph))
    arrays = [array for graph in graphs for array in graph.constants.values()]
    light = sum(array.nbytes for array in arrays) < MIN_WEIGHT_BYTES
    short = sum(len(graph.nodes) for graph in graphs) < MIN_NODES
    if (light and short) or wants_whole_build():
        return None
    with ThreadPoolExecutor() as pool:  # hashing does not hold Python's lock
        digests = list(pool.map(_digest, arrays))
    parts = (
        f"artefact {compiler_version()} {_gpu_compiler(target)}",
        f"{describe_target(target)} {options}",
        f"{imported.interface}",
        *(_description(graph) for graph in graphs),
        *digests,
    )
    return hashlib.sha256("\n".join(parts).encode()).digest()


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


def _gpu_compiler(target: Target) -> str:
    """What compiles kernels for GPUs, if the target has one; none where all stays on the host."""
    if target.gpu is None:
        return ""
    try:
        return str(find_compiler())
    except TargetError:
        return ""
