"""An operator that says its own loops -> loop IR: its text, parsed under the names of its group."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace

from dlc.core.errors import InternalError
from dlc.graph.graph import Graph, Value
from dlc.graph.ops.nest import NestOp
from dlc.graph.sizes import names_in
from dlc.schedule.abstract_sizes import replace_sizes
from dlc.schedule.loop import Buffer, Func
from dlc.schedule.lower import used_names
from dlc.schedule.text import INDENT, parse_func, print_type
from dlc.schedule.verify import verify_func
from dlc.te.expr import ZERO, Var
from dlc.te.transform import substitute

_WORDS = re.compile(r'"[^"]*"|[A-Za-z_]\w*')


def is_nest(body: Graph) -> bool:
    """Whether a group is one operator that says its own loops."""
    return any(isinstance(n.op, NestOp) for n in body.nodes)


def lower_nest(body: Graph, name: str) -> Func:
    """The function of such a group. Its parameters are called in0, in1, ..., out, out1, ...

    Results that nobody reads are local.
    """
    if len(body.nodes) != 1 or not isinstance(op := body.nodes[0].op, NestOp):
        raise InternalError(detail=f"'{body.name}' joins an operator that stands alone to others")
    (node,) = body.nodes
    types = [v.type for v in (*body.inputs, *node.outputs)]
    read = names_in(size for type_ in types for size in type_.shape)
    places = {f"size_{i}": size for i, size in enumerate(s for s in body.sizes if s in read)}
    env = {size: Var(place) for place, size in places.items()}

    def buffer(word: str, value: Value) -> Buffer:
        shape = tuple(substitute(size, env) for size in value.type.shape)
        return Buffer(word, replace(value.type, shape=shape))

    inputs = {v: buffer(f"in{i}", v) for i, v in enumerate(body.inputs)}
    outputs = {v: buffer(f"out{i}" if i else "out", v) for i, v in enumerate(body.outputs)}
    unread = {v: buffer(f"unread{i}", v) for i, v in enumerate(node.outputs) if v not in outputs}
    results = tuple((outputs | unread)[v] for v in node.outputs)
    lines = [f'{b.name} = alloc({print_type(b.type)}, "local")' for b in unread.values()]
    empty = all(b.type.elems == ZERO for b in results)
    lines += ["pass" if empty else op.nest(tuple(inputs[v] for v in node.inputs), results)]
    params = [f"{place}: size" for place in places]
    params += [f"{b.name}: {print_type(b.type)}" for b in inputs.values()]
    params += ["*", *(f"{b.name}: {print_type(b.type)}" for b in outputs.values())]
    head = f"def {name}({', '.join(params)}):\n"
    text = head + textwrap.indent("\n".join(lines), INDENT)
    func = _parsed(_apart(text, places))
    func = replace_sizes(func, {Var(place): Var(size) for place, size in places.items()})
    used = used_names(func.body, func.params)
    func = replace(func, sizes=tuple(s for s in places.values() if s in used))
    verify_func(func, when="after lower_nest")
    return func


# A detector says the same for each class, but for the names of sizes.
_parsed = functools.lru_cache(maxsize=256)(parse_func)


def _apart(text: str, places: Mapping[str, str]) -> str:
    """The text with other names for what is called as the size in a place will be."""
    own, sizes = set(_WORDS.findall(text)) - places.keys(), set(places.values())
    renamed: dict[str, str] = {}
    for word in own & sizes:
        renamed[word] = _fresh(word, (*own, *places, *sizes, *renamed.values()))
    return _WORDS.sub(lambda found: renamed.get(found[0], found[0]), text) if renamed else text


def _fresh(word: str, taken: Sequence[str]) -> str:
    while word in taken:
        word += "_"
    return word
