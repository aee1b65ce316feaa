"""graph -> host program: each fused group becomes a kernel and a call of it, reshapes become views,
a scan becomes a loop of the host, and every intermediate gets a place in the arena.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dlc.core.errors import InternalError
from dlc.graph.conditions import Condition, conditions, late_counts, where
from dlc.graph.direct import direct_form
from dlc.graph.graph import Graph, Node, Value
from dlc.graph.lower_control import lower_if, lower_loop
from dlc.graph.lower_nest import is_nest, lower_nest
from dlc.graph.lower_scan import lower_scan
from dlc.graph.op import Array
from dlc.graph.ops.bind_sizes import BindSizes
from dlc.graph.ops.bits import BitCast
from dlc.graph.ops.checked_indices import CheckedIndices
from dlc.graph.ops.control import If, Loop
from dlc.graph.ops.fused import FusedGroup, compose
from dlc.graph.ops.scan import Scan
from dlc.graph.ops.shape import Empty, Reshape
from dlc.graph.ops.text import TextOp
from dlc.graph.size_conditions import conditions_of_sizes
from dlc.graph.sizes import known_sizes, names_in
from dlc.schedule.abstract_sizes import abstract_sizes
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.lower import lower_tensors
from dlc.schedule.memory import Request, plan_arena
from dlc.schedule.program import (
    Allocate,
    BindSize,
    CallKernel,
    CallRuntime,
    Check,
    CheckRange,
    Copy,
    HostIf,
    HostStmt,
    Place,
    Program,
    Provide,
    Release,
    SizeVar,
    View,
    with_kernel_names,
)
from dlc.schedule.text import canonical_text
from dlc.schedule.verify_program import verify_program
from dlc.te.expr import ZERO, Expr
from dlc.te.simplify import canonical
from dlc.te.tensor import placeholder
from dlc.te.transform import free_vars, rename_buffers
from dlc.te.types import TensorType


def lower_graph(graph: Graph) -> tuple[Program, Mapping[str, Array]]:
    """The program of a graph whose nodes are groups, views and scans, and its constants' data.

    Inputs, outputs and size variables of the program are the graph's, in order.
    """
    given = frozenset(graph.sizes)
    waiting = conditions(graph) + late_counts(graph, given)
    lowering = Lowering(waiting, set(given), given, graph.operators)
    lowering.claim("", graph)
    for value in (*graph.inputs, *graph.constants):
        lowering.adopt(value)
    checks = lowering.checks()
    body = lowering.block(graph, {v: v.name for v in (*graph.inputs, *graph.constants)})
    outputs, opening, closing = lowering.give_outputs(graph)
    body = lowering.provide(body)
    body, kernels = lowering.name_kernels(body, known_sizes(graph))
    found, arena = plan_arena(lowering.requests())
    places = [Place(lowering.arena[name], *where) for name, where in found.items()]
    program = Program(
        graph.name,
        tuple(SizeVar(s, *graph.size_ranges.get(s, (0, None))) for s in graph.sizes),
        tuple(Buffer(v.name, v.type) for v in graph.inputs),
        outputs,
        tuple(Buffer(v.name, v.type) for v in graph.constants),
        kernels,
        arena,
        (*checks, *opening, *places, *body, *closing),
    )
    verify_program(program, when="after lower_graph")
    return program, {v.name: data for v, data in graph.constants.items()}


def lower_group(body: Graph, name: str) -> Func:
    """The loop nests of one fused group. Its parameters are called in0, in1, ..., out."""
    if is_nest(body):
        return lower_nest(body, name)
    inputs = tuple(placeholder(f"in{i}", v.type) for i, v in enumerate(body.inputs))
    return lower_tensors(name, body.sizes, inputs, compose(body, inputs))


@dataclass
class Lowering:
    """Names: a *buffer* is a name in the program; its *root* is the buffer that owns the memory.

    A root whose size is known only after a node has bound it is allocated, not placed in the arena.
    """

    waiting: list[Condition]
    """What is to be checked once the sizes it reads are known."""
    known: set[str]
    """The size variables that have a value at this point."""
    given: frozenset[str]
    """The size variables that are known before the run."""
    operators: Mapping[str, str] = field(default_factory=dict)
    """Those of `Graph.operators`, for messages."""
    allocated: dict[str, Buffer] = field(default_factory=dict)  # roots outside of the arena
    fresh: list[str] = field(default_factory=list)  # those that no statement allocates yet
    provided: set[str] = field(default_factory=set)  # those that are outputs
    unreleased: list[str] = field(default_factory=list)  # what the last block's results are in
    kernels: dict[str, Func] = field(default_factory=dict)  # text without any names -> kernel
    taken: dict[str, int] = field(default_factory=dict)  # how often a kernel name was used
    roots: dict[str, str] = field(default_factory=dict)  # buffer -> root
    claimed: set[str] = field(default_factory=set)  # names that are taken, or will be
    arena: dict[str, Buffer] = field(default_factory=dict)  # roots that need a place
    first: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    step: int = 0
    repeated: bool = False  # whether a loop is around
    buffer_of: dict[Value, str] = field(default_factory=dict)  # of the model's own values
    decided: Mapping[Value, Expr] = field(default_factory=dict)  # what sizes decide in this block

    def adopt(self, value: Value) -> None:
        """Register a buffer whose memory is given: an input or a constant."""
        self.roots[value.name] = value.name

    def claim(self, prefix: str, body: Graph) -> str:
        """Keep names for what a body has; its prefix, made longer where others have such names.

        What lowering itself makes is named later, by `unused`.
        """
        made = (v for n in body.nodes for v in n.outputs)
        names = [v.name for v in (*body.inputs, *body.constants, *made)]
        while not self.claimed.isdisjoint(prefix + name for name in names):
            prefix += "_"
        self.claimed.update((prefix + name for name in names), known_sizes(body))
        return prefix

    def unused(self, stem: str) -> str:
        """A name that nothing else has or will have."""
        while stem in self.claimed:
            stem += "_"
        self.claimed.add(stem)
        return stem

    def own(self, name: str, type_: TensorType) -> str:
        """A new buffer with memory of its own."""
        assert name not in self.roots, f"buffer '{name}' is made twice"
        self.roots[name] = name
        if names_in(type_.shape) - self.given:
            self.allocated[name] = Buffer(name, type_)
            self.fresh.append(name)
            return name
        self.arena[name] = Buffer(name, type_)
        return self.touch(name)

    def view(self, name: str, type_: TensorType, source: str, offset: Expr = ZERO) -> View:
        """A new buffer that is part of another's memory."""
        assert name not in self.roots, f"buffer '{name}' is made twice"
        self.roots[name] = self.roots[source]
        return View(Buffer(name, type_), source, canonical(offset))

    def fresh_name(self, stem: str) -> str:
        """A name no buffer has, for a buffer."""
        name = self.unused(stem)
        self.roots[name] = name
        return name

    def touch(self, buffer: str) -> str:
        """Note that a buffer is alive at this step."""
        root = self.roots[buffer]
        self.first.setdefault(root, self.step)
        self.last[root] = self.step
        return buffer

    def requests(self) -> list[Request]:
        """What the arena must hold."""
        return [
            Request(
                n, canonical(b.type.elems * b.type.dtype.size_bytes), self.first[n], self.last[n]
            )
            for n, b in self.arena.items()
        ]

    def block(
        self, graph: Graph, buffers: dict[Value, str], prefix: str = "", *, repeated: bool = False
    ) -> list[HostStmt]:
        """The statements of the model's graph, or of a body, whose names get a prefix.

        `buffers` holds the buffer of each value and is extended. All of what is `repeated`, bodies
        in it included, is one step: what a later iteration reads must not be written over by an
        earlier one's end.
        """
        outside, self.repeated = self.repeated, self.repeated or repeated
        steps: list[list[HostStmt]] = []
        last: dict[str, int] = {}  # where a root that this block allocates is used last
        around, self.fresh = self.fresh, []
        before, self.decided = self.decided, conditions_of_sizes(graph)
        for node in graph.nodes:
            if node.outputs[0] in self.decided:
                continue
            made = self.node(node, buffers, prefix)
            own, self.fresh = self.fresh, []
            last |= dict.fromkeys(own, len(steps))
            said = where(node, self.operators)
            steps.append([*(Allocate(self.allocated[name], said) for name in own), *made])
            for value in (*node.inputs, *node.outputs):
                if value in self.decided:
                    continue
                self.touch(buffers[value])
                if (root := self.roots[buffers[value]]) in last:
                    last[root] = len(steps) - 1
            self.step += not self.repeated
        self.fresh, self.repeated, self.decided = around, outside, before
        if not prefix:
            self.buffer_of = buffers
        read_later = {self.roots[buffers[v]] for v in graph.outputs}
        for root, step in last.items():
            if root not in read_later:
                steps[step].append(Release(root))
        self.unreleased = [root for root in last if root in read_later]
        return [stmt for step in steps for stmt in step]

    def checks(self) -> list[HostStmt]:
        """The checks of all conditions whose sizes have become known."""
        ready = [c for c in self.waiting if free_vars(c.cond) <= self.known]
        self.waiting = [c for c in self.waiting if c not in ready]
        return [Check(c.cond, c.message) for c in ready]

    def bind(self, node: Node, op: BindSizes, buffers: dict[Value, str]) -> list[HostStmt]:
        """Sizes computed from elements; what they must fulfil is checked at once."""
        names = {f"in{i}": buffers[v] for i, v in enumerate(node.inputs)}
        statements: list[HostStmt] = []
        for name, value in zip(op.names, op.values, strict=True):
            statements.append(BindSize(name, rename_buffers(value, names), op.message))
        self.known |= set(op.names)
        return [*statements, *self.checks()]

    def node(self, node: Node, buffers: dict[Value, str], prefix: str) -> list[HostStmt]:
        """The statements of one node."""
        match node.op:
            case Reshape() | BitCast():
                name = buffers[node.output] = prefix + node.output.name
                return [self.view(name, node.output.type, buffers[node.inputs[0]])]
            case CheckedIndices(sizes=sizes, negative=negative, message=message):
                name, source = prefix + node.output.name, buffers[node.inputs[0]]
                buffers[node.output] = name
                view = self.view(name, node.output.type, source)
                return [CheckRange(source, sizes, negative, message), view]
            case Empty():
                buffers[node.output] = self.own(prefix + node.output.name, node.output.type)
                return []
            case BindSizes():
                buffers[node.output] = self.own(prefix + node.output.name, node.output.type)
                return self.bind(node, node.op, buffers)
            case TextOp():
                return self.call_runtime(node, node.op, buffers, prefix)
            case FusedGroup(body=body):
                return self.calls(node, body, buffers, prefix)
            case Loop():
                return lower_loop(self, node, node.op, buffers, prefix)
            case If():
                return lower_if(self, node, node.op, buffers, prefix)
            case Scan():
                return lower_scan(self, node, node.op, buffers, prefix)
            case _:
                raise InternalError(detail=f"{node.op.name} reached lowering outside of a group")

    def calls(
        self, node: Node, body: Graph, buffers: dict[Value, str], prefix: str
    ) -> list[HostStmt]:
        """The call of a group's kernel, or of one of two."""
        call = self.call(node, body, buffers, prefix)
        if (found := direct_form(body)) is None:
            return [call]
        cond, other = found
        given = zip(body.inputs, node.inputs, strict=True)
        operands = tuple(v for param, v in given if param in other.inputs)
        direct = self.call(replace(node, inputs=operands), other, buffers, prefix)
        return [HostIf(cond, (direct,), (call,))]

    def call(self, node: Node, body: Graph, buffers: dict[Value, str], prefix: str) -> CallKernel:
        """The call of a group's kernel. A result placed in an operand is that operand's buffer."""
        kernel, sizes = self.kernel(body)
        operands = dict(zip((b.name for b in kernel.inputs), node.inputs, strict=True))
        shared = dict(kernel.in_place)
        for value, param in zip(node.outputs, kernel.outputs, strict=True):
            if param.name in shared:
                buffers[value] = buffers[operands[shared[param.name]]]
            elif value not in buffers:
                buffers[value] = self.own(prefix + value.name, value.type)
        names = tuple(buffers[v] for v in (*node.inputs, *node.outputs))
        sources = (n.source for n in body.nodes if n.source)
        return CallKernel(kernel.name, sizes, names, tuple(dict.fromkeys(sources)))

    def call_runtime(
        self, node: Node, op: TextOp, buffers: dict[Value, str], prefix: str
    ) -> list[HostStmt]:
        """The call of a function of the runtime."""
        types = [v.type for v in node.inputs]
        buffers[node.output] = self.own(prefix + node.output.name, node.output.type)
        names = tuple(buffers[v] for v in (*node.inputs, node.output))
        return [CallRuntime(op.function(*types), op.sizes(*types), names)]

    def kernel(self, body: Graph) -> tuple[Func, tuple[Expr, ...]]:
        """The kernel of a group's body, and what to pass as sizes.

        It is made once for bodies that are equal but for the names of sizes.
        """
        func, sizes = abstract_sizes(lower_group(body, "kernel"))
        key = canonical_text(func)
        if key not in self.kernels:
            base = body.name.rstrip("0123456789").rstrip("_")
            number = self.taken[base] = self.taken.get(base, 0) + 1
            self.kernels[key] = replace(func, name=base if number == 1 else f"{base}_{number}")
        return self.kernels[key], sizes

    def name_kernels(
        self, body: list[HostStmt], sizes: tuple[str, ...]
    ) -> tuple[list[HostStmt], tuple[Func, ...]]:
        """Give kernels other names than buffers and sizes have; only now are these known."""
        others = {*self.roots, *sizes}
        taken = others | {kernel.name for kernel in self.kernels.values()}
        names = {}
        for kernel in self.kernels.values():
            name = kernel.name
            while name in others or (name != kernel.name and name in taken):
                name += "_kernel"
            names[kernel.name] = name
            taken.add(name)
        kernels = tuple(replace(k, name=names[k.name]) for k in self.kernels.values())
        return [with_kernel_names(stmt, names) for stmt in body], kernels

    def renew(
        self, values: tuple[Value, ...], carried: list[str], buffers: dict[Value, str], own: str
    ) -> list[HostStmt]:
        """Replace the carries by what the body computed; copy those that change places."""
        moves: list[HostStmt] = []
        late: list[HostStmt] = []
        for value, target in zip(values, carried, strict=True):
            source = buffers[value]
            if source == target:
                continue
            if self.roots[source] in carried:
                spare = self.own(self.unused(f"{own}{target}_next"), value.type)
                moves.append(Copy(spare, source))
                source = spare
            late.append(Copy(target, source))
        return [*moves, *late]

    def give_outputs(
        self, graph: Graph
    ) -> tuple[tuple[Buffer, ...], list[HostStmt], list[HostStmt]]:
        """Let results be computed where the caller wants them; copy those that cannot.

        Returns the output buffers, the statements to open with and those to close with.
        """
        outputs: list[Buffer] = []
        opening: list[HostStmt] = []
        closing: list[HostStmt] = []
        for value in graph.outputs:
            buffer = self.buffer_of[value]
            if names_in(value.type.shape) - self.given:
                outputs.append(self.late_output(value, buffer, closing))
                continue
            root = self.arena.get(self.roots[buffer])
            if root is not None and root.name == value.name and root.type == value.type:
                outputs.append(root)
                del self.arena[root.name]
                continue
            name = self.result_name(value)
            outputs.append(Buffer(name, value.type))
            if root is not None:
                opening.append(View(root, name))
                del self.arena[root.name]
            else:
                closing.append(Copy(name, buffer))
        return tuple(outputs), opening, closing

    def result_name(self, value: Value) -> str:
        """A name for the memory of an output that is computed elsewhere."""
        return self.fresh_name(f"{value.name}_result")

    def late_output(self, value: Value, buffer: str, closing: list[HostStmt]) -> Buffer:
        """An output whose shape the program finds out."""
        root = self.allocated.get(self.roots[buffer])
        own = root is not None and (root.name, root.type) == (value.name, value.type)
        if root is not None and own and root.name not in self.provided:
            self.provided.add(root.name)
            return root
        name = self.result_name(value)
        closing += [Provide(name), Copy(name, self.touch(buffer))]
        return Buffer(name, value.type)

    def provide(self, statements: list[HostStmt]) -> list[HostStmt]:
        """Let the caller provide the memory of outputs, rather than allocate and copy it."""
        return [
            Provide(s.buffer.name, s.node)
            if isinstance(s, Allocate) and s.buffer.name in self.provided
            else s
            for s in statements
        ]
