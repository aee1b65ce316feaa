"""A graph under change: what a pass that moves many nodes works on before it returns a new graph.

Nodes stay immutable values; the editor only keeps the tables (who makes, who reads a value) up to
date while nodes come and go, so that a pass of n changes costs about n steps and not n graphs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from dlc.core.errors import InternalError
from dlc.core.types import DType
from dlc.graph.arrays import is_heavy, round_to, spilled
from dlc.graph.graph import Graph, Node, Value, call
from dlc.graph.op import Array, Op
from dlc.graph.sizes import bound_sizes, known_sizes, sizes_read
from dlc.te.types import TensorType


class GraphEditor:
    """Mutable tables over the nodes of one graph; a node is known by its first result's name."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.changed = False
        self.touched: list[Node] = []
        """Nodes made or changed since the caller last emptied this list."""
        self._constants = {v.name: (v, a) for v, a in graph.constants.items()}
        self._heavy = is_heavy(graph.constants.values())
        self._outputs = list(graph.outputs)
        self._nodes: dict[str, Node] = {}
        self._makers: dict[str, str] = {}
        self._users: dict[str, dict[str, None]] = {}
        self._place: dict[str, tuple[int, int]] = {}
        self._serial = itertools.count()
        self._names = {v.name for v in (*graph.inputs, *graph.constants)} | set(known_sizes(graph))
        self._counts: dict[str, int] = {}
        self._binder_of = {
            name: n.outputs[0].name for n in graph.nodes for name in bound_sizes((n,))
        }
        for position, node in enumerate(graph.nodes):
            self._register(node, position)
        self.touched.clear()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes now, in the order of their places."""
        return tuple(self._nodes[k] for k in sorted(self._nodes, key=self._place.__getitem__))

    def current(self, node: Node) -> Node | None:
        """The node of that name as it is now, or None if it is gone."""
        return self._nodes.get(node.outputs[0].name)

    def producer(self, value: Value) -> Node | None:
        """The node that makes a value."""
        key = self._makers.get(value.name)
        return None if key is None else self._nodes[key]

    def users(self, value: Value) -> tuple[Node, ...]:
        """The nodes that read a value."""
        return tuple(self._nodes[k] for k in self._users.get(value.name, ()))

    def is_output(self, value: Value) -> bool:
        """Whether a value is a result of the graph."""
        return any(v.name == value.name for v in self._outputs)

    def sole_user(self, value: Value) -> Node | None:
        """The one node that reads a value; None for several, for none and for graph results."""
        users = self._users.get(value.name, {})
        if len(users) != 1 or self.is_output(value):
            return None
        return self._nodes[next(iter(users))]

    def array(self, value: Value) -> Array | None:
        """The elements of a constant; None for any other value."""
        found = self._constants.get(value.name)
        return None if found is None else found[1]

    def call(self, op: Op, *inputs: Value, at: Node, hint: str = "") -> Value:
        """Add a node of one result and return that result.

        Args:
            op: The operator.
            inputs: Its operands.
            at: The node in whose place it stands.
            hint: What to call the result; a number is added where that is taken. By default the
                name of the result of `at`.
        """
        name = self.fresh(hint or at.outputs[0].name)
        return self.add(call(op, *inputs, name=name, source=at.source), at=at).output

    def add(self, node: Node, *, at: Node) -> Node:
        """Add a node in the place of another one."""
        place = self._place.get(at.outputs[0].name)
        self._register(node, place[0] if place else -1)
        self.changed = True
        return node

    def constant(self, array: Array, dtype: DType, hint: str) -> Value:
        """Add a constant; the elements are rounded to `dtype`."""
        array = np.ascontiguousarray(round_to(array, dtype)).reshape(array.shape)
        value = Value(self.fresh(hint), TensorType(array.shape, dtype))
        self._constants[value.name] = (value, spilled(array) if self._heavy else array)
        return value

    def fresh(self, hint: str) -> str:
        """A name nobody has: the hint itself, or the hint and a number."""
        name = hint
        while name in self._names:
            self._counts[hint] = count = self._counts.get(hint, 0) + 1
            name = f"{hint}_{count}"
        self._names.add(name)
        return name

    def can_replace(self, old: Value, new: Value) -> bool:
        """Whether `new` may stand for `old`: a result of the graph needs a value to rename."""
        if not self.is_output(old):
            return True
        return new.name in self._makers and not self.is_output(new)

    def replace(self, old: Value, new: Value, *, keep_name: bool = False) -> None:
        """Let everybody who reads `old` read `new`.

        The node that makes `old` is removed if nothing else needs it. A result of the graph keeps
        its name, and `new` takes the name of `old` where `keep_name` says so.
        """
        if old.type != new.type or not self.can_replace(old, new):
            raise InternalError(detail=f"'{old.name}: {old.type}' cannot become '{new}'")
        self.changed = True
        for user in self.users(old):
            self.set_inputs(user, tuple(new if v.name == old.name else v for v in user.inputs))
        unread = old
        if self.is_output(old) or keep_name:
            unread = Value(self.fresh(f"{old.name}_old"), old.type)
            self._rename(old, unread)
            self._rename(new, old)
        self.discard([unread])

    def set_inputs(self, node: Node, inputs: tuple[Value, ...]) -> Node:
        """Give a node other operands; they must have the types of the old ones."""
        self.changed = True
        return self._put(node, replace(node, inputs=inputs))

    def update(self, node: Node) -> Node:
        """Put a node in the place of the one that has its results."""
        old = self.current(node)
        assert old is not None, f"'{node.outputs[0].name}' is gone"
        self.changed = True
        return self._put(old, node)

    def discard(self, values: Iterable[Value]) -> None:
        """Remove the nodes that make these values, and what only they needed, if nobody reads."""
        pending = [v.name for v in values]
        while pending:
            node = self._nodes.get(self._makers.get(pending.pop(), ""))
            if node is None or any(map(self._is_needed, node.outputs)):
                continue
            self._unregister(node)
            self.changed = True
            for value in dict.fromkeys(node.inputs):
                pending.append(value.name)
                self.touched.extend(self.users(value))
                if (maker := self.producer(value)) is not None:
                    self.touched.append(maker)

    def _is_needed(self, value: Value) -> bool:
        return bool(self._users.get(value.name)) or self.is_output(value)

    def finish(self) -> Graph:
        """The graph as it is now, nodes in order; the very same graph where nothing changed."""
        if not self.changed:
            return self.graph
        nodes = tuple(self._sorted())
        read = {v.name for n in nodes for v in n.inputs} | {v.name for v in self._outputs}
        constants = {v: a for v, a in self._constants.values() if v.name in read}
        return replace(self.graph, nodes=nodes, constants=constants, outputs=tuple(self._outputs))

    def _sorted(self) -> list[Node]:
        """Nodes by place, each after what it reads."""
        done: dict[str, Node] = {}
        for root in self.nodes:
            stack = [root]
            while stack:
                node = stack[-1]
                made = (*map(self.producer, node.inputs), *self._binders(node))
                missing = [p for p in made if p is not None and p.outputs[0].name not in done]
                if missing:
                    stack.extend(reversed(missing))
                    continue
                done.setdefault(node.outputs[0].name, node)
                stack.pop()
        return list(done.values())

    def _binders(self, node: Node) -> Iterator[Node]:
        """The nodes that bind the sizes that a node reads."""
        if self._binder_of:
            keys = {self._binder_of[n] for n in sizes_read(node) if n in self._binder_of}
            yield from (self._nodes[k] for k in sorted(keys) if k != node.outputs[0].name)

    def _rename(self, old: Value, new: Value) -> None:
        """Change the name of a value where it is made and where it is read."""
        maker = self.producer(old)
        users = self.users(old)
        if maker is not None:
            outputs = tuple(new if v.name == old.name else v for v in maker.outputs)
            self._put(maker, replace(maker, outputs=outputs))
        for user in users:
            user = self._nodes[user.outputs[0].name]
            self.set_inputs(user, tuple(new if v.name == old.name else v for v in user.inputs))

    def _put(self, old: Node, new: Node) -> Node:
        place = self._place[old.outputs[0].name][0]
        self._unregister(old)
        self._register(new, place)
        return new

    def _register(self, node: Node, place: int) -> None:
        key = node.outputs[0].name
        self._nodes[key] = node
        self._place[key] = (place, next(self._serial))
        for value in node.outputs:
            self._makers[value.name] = key
            self._names.add(value.name)
        for value in node.inputs:
            self._users.setdefault(value.name, {})[key] = None
        self.touched.append(node)

    def _unregister(self, node: Node) -> None:
        key = node.outputs[0].name
        del self._nodes[key], self._place[key]
        for value in node.outputs:
            self._makers.pop(value.name, None)
        for value in dict.fromkeys(node.inputs):
            self._users[value.name].pop(key, None)
