"""What a graph pass is, and how a list of them runs: each verified, timed and dumped.

A pass is nothing but a function from graph to graph; checking, timing and dumping happen here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dlc.core.dump import Dumper
from dlc.core.errors import InternalError
from dlc.core.fork import Choices, Fork
from dlc.core.target import Target
from dlc.graph.graph import Graph, Node, SizeRanges
from dlc.graph.half import Half
from dlc.graph.ops.bodies import LOOPS, map_bodies
from dlc.graph.verify import verify_graph

PLANES = {"highest": 3, "high": 2, "tf32": 2, "medium": 1}


@dataclass(frozen=True, slots=True)
class PassContext:
    """What a pass may know besides the graph."""

    target: Target = field(default_factory=Target)
    precision: str = "highest"  # "highest", "high", "tf32" or "medium"
    half: Half | None = None
    fold_limit_bytes: int = 64 << 20
    """The largest constant that folding may make where it is larger than what it replaces."""
    is_repeated: bool = False
    """Whether the graph runs many times in a row: it is inside of a loop."""
    choices: Choices = field(default_factory=Choices)
    """Ways to take where the default is not the best; see `dlc.graph.forks`."""
    on_fork: Callable[[Fork], None] | None = None
    """Called with each decision that is taken."""
    size_ranges: SizeRanges = field(default_factory=dict)
    """What bounds the sizes of the model, in the graphs inside of its operators too."""

    @property
    def is_asked(self) -> bool:
        """Whether somebody chose ways, or wants to know which there are."""
        return len(self.choices) > 0 or self.on_fork is not None

    @property
    def channel_block(self) -> int:
        """How many channels stand side by side in a blocked tensor: one vector of floats."""
        return max(8, self.target.lanes(4))

    @property
    def has_fma(self) -> bool:
        """Whether the target multiplies and adds in one rounding."""
        return "fma" in self.target.features or self.target.arch != "x86_64"

    @property
    def has_matrix_engine(self) -> bool:
        """Whether the target multiplies tiles of bf16."""
        return self.target.has_matrix_engine

    @property
    def planes(self) -> int:
        """How many bf16 a float32 is the sum of, where a matrix engine multiplies it."""
        return PLANES[self.precision]

    @property
    def has_pair_products(self) -> bool:
        """Whether the target's vectors add products of pairs of bf16, and no tiles do so faster."""
        return self.target.has_pair_products and not self.has_matrix_engine

    @property
    def byte_products(self) -> int:
        """How many products of bytes vectors add in a lane; 0 for GPUs."""
        return 0 if self.target.gpu is not None else self.target.byte_products

    @property
    def looks_up_vectors(self) -> bool:
        """Whether the target's vectors pick from a table of 256 bytes, one in each lane."""
        return "avx512vbmi" in self.target.features

    @property
    def multiplies_pairs(self) -> bool:
        """Whether products of one bf16 for each float32 are wanted, and vectors have them."""
        return self.rounds_to_bf16 and self.has_pair_products

    @property
    def rounds_to_bf16(self) -> bool:
        """Whether products of one bf16 for each float32 are wanted, and the target rounds to it."""
        return self.precision == "medium" and "avx512bf16" in self.target.features


Run = Callable[[Graph, PassContext], Graph]


@dataclass(frozen=True, slots=True)
class GraphPass:
    """A named function from graph to graph."""

    name: str
    run: Run
    after: tuple[str, ...]
    """Passes that must have run before this one."""
    bodies: bool
    """Whether the pass is applied to the graphs inside of scans too."""

    def __call__(self, graph: Graph, context: PassContext) -> Graph:
        """The graph that the pass makes of this one."""
        context = replace(context, size_ranges={**context.size_ranges, **graph.size_ranges})
        return self.run(self._in_bodies(graph, context) if self.bodies else graph, context)

    def _in_bodies(self, graph: Graph, context: PassContext) -> Graph:
        nodes = tuple(self._in_body(node, context) for node in graph.nodes)
        same = all(a is b for a, b in zip(nodes, graph.nodes, strict=True))
        return graph if same else replace(graph, nodes=nodes)

    def _in_body(self, node: Node, context: PassContext) -> Node:
        inside = replace(context, is_repeated=context.is_repeated or isinstance(node.op, LOOPS))
        op = map_bodies(node.op, lambda body: self(body, inside))
        return node if op is node.op else replace(node, op=op)


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did, for `dlc build`'s table."""

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int


PASSES: dict[str, GraphPass] = {}


def graph_pass(*, after: tuple[str, ...] = (), bodies: bool = False) -> Callable[[Run], GraphPass]:
    """Declare a pass. Its name is the function's name."""

    def declare(fn: Run) -> GraphPass:
        assert fn.__name__ not in PASSES, f"pass '{fn.__name__}' is declared twice"
        PASSES[fn.__name__] = GraphPass(fn.__name__, fn, after, bodies)
        return PASSES[fn.__name__]

    return declare


def run_passes(
    graph: Graph,
    passes: Sequence[GraphPass],
    context: PassContext,
    *,
    dumper: Dumper | None = None,
    report: Callable[[PassReport], None] | None = None,
) -> Graph:
    """Run passes in order; verify after each and dump those that changed something.

    Raises:
        VerifyError: a pass made an ill-formed graph.
        InternalError: the order breaks a pass's `after`.
    """
    dumper = dumper or Dumper(None)
    done: set[str] = set()
    if dumper.wanted:
        dumper.write("import.graph.txt", str(graph))
    for step in passes:
        missing = set(step.after) - done
        if missing:
            raise InternalError(detail=f"pass {step.name} must run after {sorted(missing)}")
        started = time.perf_counter()
        before, graph = graph, step(graph, context)
        if graph is not before:
            verify_graph(graph, when=f"after {step.name}")
            if dumper.wanted and graph != before:
                dumper.write(f"{step.name}.graph.txt", str(graph))
        done.add(step.name)
        if report is not None:
            seconds = time.perf_counter() - started
            report(PassReport(step.name, seconds, len(before.nodes), len(graph.nodes)))
    return graph
