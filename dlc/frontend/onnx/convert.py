"""ONNX model -> graph: every node by its converter, all that cannot be converted named at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from numpy.typing import ArrayLike

from dlc.core.count import show_count
from dlc.core.errors import LimitError, ModelError, ShapeError, UnsupportedOperator
from dlc.core.types import INDEX
from dlc.frontend.onnx.context import Context, OnlySize
from dlc.frontend.onnx.fallback import as_standard, function_body
from dlc.frontend.onnx.forks import of_wanted_rank, results_behind
from dlc.frontend.onnx.interface import (
    Dim,
    Inputs,
    Interface,
    check_outputs,
    resolve_inputs,
    with_values,
)
from dlc.frontend.onnx.limits import DEFAULT_LIMITS, Limits
from dlc.frontend.onnx.loops import RanksDiffer
from dlc.frontend.onnx.model import OnnxGraph, OnnxModel, OnnxNode, Unreadable
from dlc.frontend.onnx.names import Names
from dlc.frontend.onnx.order import in_order
from dlc.frontend.onnx.registry import Entry, find
from dlc.frontend.onnx.sequence_parts import Items, Nothing, nothing, sequence, taken_apart
from dlc.frontend.onnx.sequences import READERS
from dlc.frontend.onnx.stretch import Stretcher
from dlc.frontend.onnx.structure import Structure
from dlc.frontend.onnx.unsupported import Issue, advice, declared, unsupported
from dlc.graph.graph import Graph, Value
from dlc.graph.verify import verify_graph
from dlc.te.expr import Const, Expr
from dlc.te.transform import free_vars
from dlc.te.types import TensorType

_LOG = logging.getLogger(__name__)
_MAX_FORKS = 3
_DEEPEST = 3  # how deep function bodies of ONNX's own operators may call each other


@dataclass(frozen=True, slots=True)
class Imported:
    """A model as a graph, and the names under which its user knows it."""

    graph: Graph
    interface: Interface
    assumed: tuple[Expr, ...] = ()
    """Equal sizes that are taken for granted where a 1 would broadcast: conditions on sizes."""
    variants: tuple[Mapping[str, Dim], ...] = ()
    """The sizes that the graph has programs of their own for, as they were asked for."""


def convert_model(
    model: OnnxModel,
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Graph:
    """The graph of a model; see `import_model`."""
    return import_model(model, dims=dims, shapes=shapes, values=values, limits=limits).graph


def import_model(
    model: OnnxModel,
    *,
    dims: Mapping[str, Dim] | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Imported:
    """The graph of a model, verified.

    A dimension for which only one size gives the model a meaning (a batch that is reshaped to
    `[1, 1000]`) gets that size, with a warning.

    Args:
        model: What `load_model` read.
        dims: Fixes or bounds dimensions by name: `{"batch": 1}`, `{"seq": (1, 512)}`.
        shapes: Fixes shapes of inputs: `{"x": (1, 3, 224, 224)}`; of a sequence that of each
            element, `{"s": [(2, 3), (4, 3)]}`; None stands for an optional without a value.
        values: Makes inputs constants: `{"sample_rate": 16000}`.
        limits: What may be computed while importing.

    Raises:
        ModelError: the model is not valid, or `dims` or `shapes` do not fit it.
        ShapeError: operands of a node do not fit together.
        UnsupportedModel: at least one node cannot be converted; all of them are listed.
    """
    model = with_values(model, values or {})
    return import_beside(model, dims or {}, shapes or {}, limits, Names(), {})


def import_beside(
    model: OnnxModel,
    dims: Mapping[str, Dim],
    shapes: Mapping[str, Structure],
    limits: Limits,
    names: Names,
    sizes: Mapping[str, str],
    *,
    decides: bool = False,
) -> Imported:
    """The graph of a model that shares no name of a value with others made of these `names`.

    `sizes` are the size variables of dimensions that have one already; see `import_model`. If it
    `decides`, a run finds out which of two sizes is a 1 that broadcasts; else they are equal.
    """
    fixed: dict[str, Dim] = dict(dims)
    while True:
        attempt = names.copy()
        try:
            imported = _import(model, fixed, shapes, limits, attempt, sizes, decides=decides)
            names.become(attempt)
            return imported
        except _FixDimension as found:
            _LOG.warning("%s: %s", model.label, found)
            fixed[found.dim] = found.value


class _FixDimension(Exception):
    """The model has a meaning for one size of a dimension only."""

    def __init__(self, dim: str, found: OnlySize) -> None:
        super().__init__(f"dimension '{dim}' is fixed to {found.value}: {found}")
        self.dim = dim
        self.value = found.value


def _import(
    model: OnnxModel,
    dims: Mapping[str, Dim],
    shapes: Mapping[str, Structure],
    limits: Limits,
    names: Names,
    known: Mapping[str, str],
    *,
    decides: bool,
) -> Imported:
    inputs = resolve_inputs(model, names, dims, shapes, known)
    ctx = Context(names, limits)
    ctx.stretcher = Stretcher(decides=decides)
    ctx.bounds = {name: _bound(*limits) for name, limits in inputs.ranges.items()}
    driver = _Driver(model, ctx)
    try:
        outputs = driver.run(inputs)
    except OnlySize as found:
        low, high = inputs.ranges.get(found.variable, (0, None))
        if not low <= found.value <= (found.value if high is None else high):
            raise ModelError(model=model.label, reason=str(found)) from found
        raise _FixDimension(inputs.sizes[found.variable], found) from found
    except RecursionError as error:  # expressions over sizes are walked recursively
        raise LimitError(what=model.label, reason="sizes are computed too deeply") from error
    check_outputs(model, dict(zip(driver.wanted, outputs, strict=True)))
    ranges = inputs.ranges_from(ctx.least)
    graph = ctx.graph("main", tuple(inputs.sizes), inputs.values, outputs, ranges)
    verify_graph(graph, when="after import")
    interface = Interface(inputs.names, tuple(driver.wanted), inputs.sizes)
    own = frozenset(inputs.sizes)
    assumed = dict.fromkeys(c for c in ctx.stretcher.assumed if free_vars(c) <= own)
    return Imported(graph, interface, tuple(assumed))


def _bound(low: int, high: int | None) -> tuple[Expr, Expr]:
    """The range of a size variable as the simplifier takes it."""
    return Const(low, INDEX), Const(_LARGEST if high is None else high, INDEX)


_LARGEST = 1 << 40  # no dimension is larger, and products of two still are exact


@dataclass(frozen=True, slots=True)
class _Missing:
    """A value nobody can compute, since the node that makes it is not supported."""


class _Driver:
    """Walks the nodes of a model in order."""

    def __init__(self, model: OnnxModel, ctx: Context) -> None:
        self.model = model
        self.ctx = ctx
        self.env: dict[str, Value | _Missing] = {}
        self.issues: list[Issue] = []
        self.sizes: dict[str, str] = {}  # name of a dimension -> its size variable
        self.forks = 0  # branches that go on to the end of a graph, around each other
        self.wanted: list[str] = []  # names of the outputs, those of a sequence's elements
        ctx.run_graph = self.subgraph

    def run(self, inputs: Inputs) -> tuple[Value, ...]:
        self.env.update(zip(inputs.names, inputs.values, strict=True))
        self.sizes = {dim: variable for variable, dim in inputs.sizes.items()}
        for name, parts in inputs.parts.items():
            self.env[name] = self.whole(inputs, parts)
        self.constants(self.model.graph)
        self.walk(self.model.graph, self.model.graph.nodes, self.node)
        if self.issues:
            total = len(self.model.graph.nodes)
            raise unsupported(self.model.label, self.issues, self.ctx.nodes, total)
        results: list[Value] = []
        for name in dict.fromkeys(output.name for output in self.model.graph.outputs):
            value = self.env[name]
            assert isinstance(value, Value), "what is missing was reported"
            if isinstance(value, Nothing):
                continue
            items = self.listed(name, value) if isinstance(value, Items) else (value,)
            results += items
            self.wanted += [
                f"{name}[{i}]" if isinstance(value, Items) else name for i in range(len(items))
            ]
        return tuple(results)

    def listed(self, name: str, value: Items) -> tuple[Value, ...]:
        """The elements of a sequence that is an output."""
        items = taken_apart(self.ctx, value.parts)
        if items is None:
            maker = next(node for node in self.model.graph.nodes if name in node.outputs)
            issue = UnsupportedOperator(
                node=maker.label,
                op=maker.operator,
                reason=f"output '{name}' is a sequence, and only a run knows how long it is",
                hint="let the model join its elements by ConcatFromSequence",
                needs=name,
            )
            found = [Issue(maker, issue, (), ())]
            total = len(self.model.graph.nodes)
            raise unsupported(self.model.label, found, self.ctx.nodes, total)
        return items

    def whole(self, inputs: Inputs, parts: tuple[str, ...] | None) -> Value:
        """An input that is no tensor: a sequence of inputs, or nothing."""
        if parts is None:
            return nothing(self.ctx)
        values = dict(zip(inputs.names, inputs.values, strict=True))
        return sequence(self.ctx, [values[part] for part in parts])

    def constants(self, graph: OnnxGraph) -> None:
        for name, array in graph.constants.items():
            if not isinstance(array, Unreadable):
                self.env[name] = self.ctx.constant(array, name)

    def walk(
        self, graph: OnnxGraph, nodes: Sequence[OnnxNode], convert: Callable[[OnnxNode], None]
    ) -> None:
        """Convert nodes in order; behind an If of two ranks, in each of its branches."""
        for place, node in enumerate(nodes):
            try:
                convert(node)
            except RanksDiffer as found:
                self.ctx.node = node
                left = {name for later in nodes[place:] for name in later.outputs}
                wanted = [v for v in graph.outputs if v.name in left]
                self.forks += 1
                made = None
                if self.forks <= _MAX_FORKS:
                    made = results_behind(self.ctx, found, nodes[place + 1 :], wanted)
                self.forks -= 1
                if made is not None:
                    self.env.update(zip((v.name for v in wanted), made, strict=True))
                    return
                self.bind(node, of_wanted_rank(self.ctx, found))

    def node(self, node: OnnxNode) -> None:
        """Convert a node, or note why it cannot be."""
        try:
            self.convert(node, 0)
        except UnsupportedOperator as error:
            if not (self.issues and error.fields["needs"]):  # perhaps a result of one of those
                self.report(node, error)
            self.assume_results(node)
        except (ModelError, OnlySize):
            if not self.issues:
                raise
            self.assume_results(node)  # nobody vouches for the declared types it got

    def assume_results(self, node: OnnxNode) -> None:
        """Go on as if a node could be converted: its results have the types the model declares."""
        for name in filter(None, node.outputs):
            type_ = self.declared(name)
            fresh = self.ctx.names.fresh
            self.env[name] = _Missing() if type_ is None else Value(fresh(name), type_)

    def declared(self, name: str) -> TensorType | None:
        """The type of a value, as the model has it."""
        known = {v.name: v for v in self.model.graph.outputs} | {**self.model.graph.values}
        return declared(known.get(name), self.sizes, self.ctx.names.fresh)

    def report(self, node: OnnxNode, error: UnsupportedOperator) -> None:
        fields = dict(error.fields)
        for name, value in self.env.items():  # the context knows values by other names
            if isinstance(value, Value) and value.name == fields["needs"]:
                fields["needs"] = name
                break
        if fields["node"] != node.label:
            fields["reason"] = f"{fields['op']} '{fields['node']}' in it: {fields['reason']}"
        issue = UnsupportedOperator(hint=error.hint, **fields)
        known = [self.env.get(name) for name in node.inputs if name]
        operands = tuple(v.type if isinstance(v, Value) else None for v in known)
        results = tuple(self.declared(name) for name in node.outputs if name)
        self.issues.append(Issue(node, issue, operands, results))

    def convert(self, node: OnnxNode, depth: int) -> None:
        if not any(node.outputs):
            return  # operators have no effect but their results
        operands = [self.operand(node, name) for name in node.inputs]
        entry = find(node)
        self.ctx.node = node
        if entry is None:
            self.fall_back(node, depth)
            return
        if reason := entry.why_not(node):
            self.ctx.refuse(reason)
        entry.check_required(self.model.label, node)
        if any(isinstance(v, _Missing) for v in operands):
            self.env.update({name: _Missing() for name in node.outputs if name})
            return
        if any(isinstance(v, Items | Nothing) for v in operands) and node.op_type not in READERS:
            self.ctx.refuse(
                "an operand is a sequence or an optional; it is handled for tensors only"
            )
        self.bind(node, self.results(node, entry, operands))

    def operand(self, node: OnnxNode, name: str) -> Value | _Missing | None:
        if not name:
            return None
        if name not in self.env:
            constant = self.model.graph.constants.get(name)
            if isinstance(constant, Unreadable):
                self.ctx.node = node
                self.ctx.refuse(f"constant '{name}' is not supported: {constant.reason}")
            reason = f"node '{node.label}' reads '{name}', which nothing computes"
            raise ModelError(model=self.model.label, reason=reason)
        return self.env[name]

    def results(
        self, node: OnnxNode, entry: Entry, operands: list[Value | _Missing | None]
    ) -> tuple[Value, ...]:
        since = len(self.ctx.nodes)
        while operands and operands[-1] is None:
            operands.pop()
        try:
            made = entry.fn(self.ctx, *operands, **{**entry.numbers, **node.attributes})
        except ShapeError as error:
            where = f"node '{node.label}' ({node.operator}), {error.fields['op']}"
            raise ShapeError(hint=error.hint, **{**error.fields, "op": where}) from error
        results = made if isinstance(made, tuple) else (made,)
        if any(node.outputs[len(results) :]):
            extra = next(name for name in node.outputs[len(results) :] if name)
            self.ctx.refuse(f"its result '{extra}' is not handled")
        named = []
        for name, value in zip(node.outputs, results, strict=False):
            named.append(self.ctx.rename(value, name, since) if name else value)
        return tuple(named)

    def bind(self, node: OnnxNode, results: tuple[Value, ...]) -> None:
        for name, value in zip(node.outputs, results, strict=False):
            if name:
                self.env[name] = value

    def fall_back(self, node: OnnxNode, depth: int) -> None:
        """Convert a node by the function that ONNX defines its operator with."""
        node = as_standard(self.ctx, self.env, node)
        operands = [self.env.get(name) if name else None for name in node.inputs]
        if any(isinstance(v, _Missing) for v in operands):
            self.ctx.refuse("there is no converter", advice(node))
        types = [v.type if isinstance(v, Value) else None for v in operands]
        body = (
            function_body(node, types, self.model.opsets.get("", 1)) if depth < _DEEPEST else None
        )
        if body is None:
            self.ctx.refuse("there is no converter", advice(node))
        for inner in body:
            try:
                self.convert(inner, depth + 1)
            except RanksDiffer as found:
                self.bind(inner, of_wanted_rank(self.ctx, found))
            except UnsupportedOperator as error:
                self.ctx.node = node
                reason = f"its definition needs {error.fields['op']}: {error.fields['reason']}"
                self.ctx.refuse(reason, error.hint, str(error.fields["needs"]))

    def subgraph(
        self, ctx: Context, graph: OnnxGraph, operands: Sequence[Value]
    ) -> tuple[Value, ...]:
        """Convert the nodes of a subgraph into a context, and give its results."""
        env, mine, node = self.env, self.ctx, self.ctx.node
        self.env, self.ctx = dict(env), ctx
        try:
            if len(graph.inputs) != len(operands):
                inputs = show_count(len(graph.inputs), "input")
                ctx.refuse(f"its subgraph has {inputs}, not {len(operands)}")
            self.env.update(zip((v.name for v in graph.inputs), operands, strict=True))
            self.constants(graph)
            nodes = in_order(self.model.label, graph, set(self.env)).nodes
            self.walk(graph, nodes, lambda inner: self.convert(inner, 0))
            results = [self.operand(node, v.name) for v in graph.outputs]
        finally:
            self.env, self.ctx = env, mine
            ctx.node = mine.node = node
        if any(not isinstance(v, Value) for v in results):
            ctx.refuse("its subgraph reads a value that is not supported")
        return tuple(v for v in results if isinstance(v, Value))
