"""All passes in their order: random networks keep their results, and the order is checked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.dump import Dumper
from dlc.core.errors import InternalError, VerifyError
from dlc.core.types import DType
from dlc.graph.graph import Graph, Value, call
from dlc.graph.ops import activation as act
from dlc.graph.ops.attributes import as_sizes
from dlc.graph.ops.binary import Add, Div, Mul, Sub
from dlc.graph.ops.conv import Conv, ConvTranspose
from dlc.graph.ops.elementwise import Exp
from dlc.graph.ops.layout import ChannelShuffle
from dlc.graph.ops.norm import BatchNorm, InstanceNorm
from dlc.graph.ops.pool import AveragePool, MaxPool
from dlc.graph.ops.reduce import Reduce
from dlc.graph.ops.resize import Resize
from dlc.graph.ops.shape import Concat, Pad, Slice
from dlc.graph.pass_ import GraphPass, run_passes
from dlc.graph.pipeline import PIPELINE
from dlc.te.types import TensorType
from tests.graph.pass_cases import AVX512, CONTEXT, read, same

UNGROUPED = ("fuse_groups", "branch_on_one_query")
PASSES = [p for p in PIPELINE if p.name not in UNGROUPED]


class Network:
    """A random network of images, built node by node."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        channels = int(self.rng.choice([1, 3, 6, 8, 12]))
        self.inputs = [self.value("x", (1, channels, 6, 5))]
        self.images = list(self.inputs)
        self.nodes = []
        self.constants = {}

    def start(self, channels):
        """One image of that many channels, as large as the first."""
        self.inputs = [self.value("x", (1, channels, 6, 5))]
        return self.inputs[0]

    def value(self, name, shape):
        return Value(name, TensorType(shape, DType.F64))

    def constant(self, *shape):
        value = self.value(f"c{len(self.constants)}", shape)
        data = self.rng.integers(1, 9, shape) * self.rng.choice([-0.25, 0.25], shape)
        self.constants[value] = data.astype(np.float64)
        return value

    def positive(self, *shape):
        value = self.constant(*shape)
        self.constants[value] = np.abs(self.constants[value])
        return value

    def call(self, op, *inputs):
        self.nodes.append(call(op, *inputs, name=f"v{len(self.nodes)}"))
        return self.nodes[-1].output

    def pick(self):
        """Some image; late ones are likelier."""
        return self.images[-1 - int(self.rng.geometric(0.6) - 1) % len(self.images)]

    def channels(self, x):
        return int(x.type.shape[1].value)

    def grow(self, steps):
        kinds = [getattr(self, name) for name in dir(self) if name.startswith("add_")]
        while len(self.images) <= steps:
            made = self.rng.choice(kinds)(self.pick())
            if made is not None and all(2 <= int(s.value) <= 14 for s in made.type.shape[2:]):
                self.images.append(made)
        return self.graph()

    def graph(self):
        used = {v for n in self.nodes for v in n.inputs}
        results = tuple(n.output for n in self.nodes if n.output not in used)
        extra = tuple(n.output for n in self.nodes[::5] if n.output not in results)
        return Graph(
            "net", (), tuple(self.inputs), tuple(self.nodes), (*results, *extra), self.constants
        )

    def add_conv(self, x):
        c, oc = self.channels(x), int(self.rng.choice([3, 8, 12, 16]))
        large = all(int(s.value) > 2 for s in x.type.shape[2:])
        k = int(self.rng.choice([1, 3])) if large else 1
        pads = tuple(int(p) for p in self.rng.integers(0, 2, 4)) if k > 1 else (0, 0, 0, 0)
        stride = tuple(int(s) for s in self.rng.choice([1, 1, 2], 2))
        y = self.call(Conv(stride=stride, pads=pads), x, self.constant(oc, c, k, k))
        return self.call(Add(), y, self.constant(oc, 1, 1))

    def add_depthwise(self, x):
        c = self.channels(x)
        w = self.constant(c, 1, 3, 3)
        return self.call(Conv(pads=(1, 1, 1, 1), groups=c), x, w) if c > 1 else None

    def add_grouped(self, x):
        c = self.channels(x)
        if c % 4:
            return None
        return self.call(Conv(groups=4, pads=(1, 1, 1, 1)), x, self.constant(8, c // 4, 3, 3))

    def add_shuffled_groups(self, x):
        c = self.channels(x)
        if c % 3:
            return None
        shuffled = self.call(ChannelShuffle(groups=3), self.call(act.Relu(), x))
        y = self.call(Conv(groups=3), shuffled, self.constant(15, c // 3, 1, 1))
        return self.call(Add(), y, self.constant(15, 1, 1))

    def add_shuffled_dense(self, x):
        c = self.channels(x)
        if c % 2:
            return None
        shuffled = self.call(ChannelShuffle(groups=2), x)
        scaled = self.call(Mul(), shuffled, self.constant(c, 1, 1))
        return self.call(Conv(), scaled, self.constant(7, c, 1, 1))

    def add_shuffled_depthwise(self, x):
        """A depthwise convolution between a shuffle and the groups that read it."""
        c = self.channels(x)
        if c % 3:
            return None
        shuffled = self.call(ChannelShuffle(groups=c // 3), x)
        deep = self.call(Conv(pads=(1, 1, 1, 1), groups=c), shuffled, self.constant(c, 1, 3, 3))
        return self.call(Conv(groups=3), deep, self.constant(12, c // 3, 1, 1))

    def add_shuffled(self, x):
        c = self.channels(x)
        return None if c % 2 else self.call(ChannelShuffle(groups=c // 2), x)

    def add_transposed(self, x):
        c = self.channels(x)
        w = self.constant(c, int(self.rng.choice([5, 8])), 3, 3)
        return self.call(ConvTranspose(stride=(2, 2), pads=(1, 1, 1, 0)), x, w)

    def add_batch_norm(self, x):
        c = self.channels(x)
        vectors = [self.constant(c), self.constant(c), self.constant(c), self.positive(c)]
        return self.call(BatchNorm(), x, *vectors)

    def add_instance_norm(self, x):
        c = self.channels(x)
        return self.call(InstanceNorm(epsilon=0.1), x, self.constant(c), self.constant(c))

    def add_activation(self, x):
        kinds = [act.Relu(), act.Sigmoid(), act.Silu(), act.Clip(min=0.0, max=6.0), Exp()]
        kind = kinds[int(self.rng.integers(len(kinds)))]
        return self.call(kind, self.call(act.Clip(min=-3.0, max=3.0), x))

    def add_sum(self, x):
        same_shape = [v for v in self.images if v.type == x.type and v != x]
        return self.call(Add(), x, same_shape[0]) if same_shape else None

    def add_product_of_constant(self, x):
        shapes = [(self.channels(x), 1, 1), (), (1, 1, int(x.type.shape[3].value))]
        shape = shapes[int(self.rng.integers(3))]
        kind = [Mul(), Div(), Sub()][int(self.rng.integers(3))]
        return self.call(kind, x, self.constant(*shape))

    def add_division(self, x):
        return self.call(Div(), x, self.call(Add(), self.call(act.Sigmoid(), x), self.positive()))

    def add_gate(self, x):
        mean = self.call(Reduce(kind="mean", axes=(2, 3)), x)
        narrow = self.call(Conv(), mean, self.constant(3, self.channels(x), 1, 1))
        wide = self.call(Conv(), narrow, self.constant(self.channels(x), 3, 1, 1))
        return self.call(Mul(), x, self.call(act.Sigmoid(), wide))

    def add_attention(self, x):
        return self.call(Mul(), self.call(Reduce(kind="max", axes=(1,)), x), x)

    def add_pool(self, x):
        if self.rng.integers(2):
            return self.call(MaxPool(kernel=(3, 2), pads=(1, 0, 1, 1), stride=(1, 2)), x)
        count = bool(self.rng.integers(2))
        return self.call(AveragePool(kernel=(2, 3), pads=(1, 1, 0, 1), count_include_pad=count), x)

    def add_concat(self, x):
        parts = [v for v in self.images if v.type.shape[2:] == x.type.shape[2:]][-3:]
        return self.call(Concat(axis=1), *parts) if len(parts) > 1 else None

    def add_slice(self, x):
        c = self.channels(x)
        size = int(self.rng.integers(1, c + 1))
        start = int(self.rng.choice([0, c - size, min(8, c - size)]))
        sizes = as_sizes((1, size, *x.type.shape[2:]))
        return self.call(Slice(starts=as_sizes((0, start, 0, 0)), sizes=sizes), x)

    def add_resize(self, x):
        sizes = as_sizes((*x.type.shape[:2], *(s * 2 for s in x.type.shape[2:])))
        return self.call(Resize(sizes=sizes, coordinates="asymmetric", rounding="floor"), x)

    def add_pad(self, x):
        mode = str(self.rng.choice(["constant", "reflect"]))
        before, after = as_sizes((0, 0, 1, 0)), as_sizes((0, 0, 0, 1))
        return self.call(Pad(before=before, after=after, mode=mode), x)


@pytest.mark.thorough
@pytest.mark.parametrize("context", [CONTEXT, AVX512], ids=["avx2", "avx512"])
@pytest.mark.parametrize("seed", range(20))
def test_random_networks_keep_their_results(seed, context):
    graph = Network(seed).grow(12)
    same(graph, run_passes(graph, PASSES, context), tolerance=1e-8)


def test_no_transform_is_left_inside_of_a_network():
    network = Network(0)
    (x,) = network.images
    for _ in range(3):
        x = network.call(act.Relu(), network.add_conv(network.add_pad(x)))
        x = network.add_gate(network.call(Concat(axis=1), x, network.call(act.Silu(), x)))
    names = [n.op.name for n in run_passes(network.graph(), PASSES, CONTEXT).nodes]
    assert "conv" not in names
    assert "pack_channels" not in names[5:]
    assert names.count("unpack_channels") <= len(network.graph().outputs) * 2


@pytest.mark.parametrize("reader", ["grouped", "dense", "pool", "sum"])
def test_channels_that_are_shuffled_move_only_for_who_cannot_find_them(reader):
    network = Network(0)
    x = network.call(Conv(groups=3), network.start(24), network.constant(24, 8, 1, 1))
    x = network.call(ChannelShuffle(groups=3), network.call(act.Relu(), x))
    if reader == "sum":
        x = network.call(Add(), x, network.call(act.Sigmoid(), x))
    elif reader == "pool":
        x = network.call(MaxPool(kernel=(2, 2)), x)
    groups = 1 if reader == "dense" else 3
    x = network.call(Conv(pads=(1, 1, 1, 1), groups=24), x, network.constant(24, 1, 3, 3))
    x = network.call(Add(), x, network.constant(24, 1, 1))
    y = network.call(Conv(groups=groups), x, network.constant(24, 24 // groups, 1, 1))
    graph = replace(network.graph(), outputs=(y,))
    found = run_passes(graph, PASSES, CONTEXT)
    same(graph, found, tolerance=1e-8)
    names = [n.op.name for n in found.nodes]
    assert ("move_channels" in names) == (reader == "sum")
    assert ("conv_gathered" in names) == (reader in ("grouped", "pool"))


def test_weights_that_a_rule_reshapes_are_packed():
    graph = read("""
def main(x: f64[2, 3, 1, 1]):
    w: f64[3, 4, 5, 2] = const()
    y: f64[2, 4, 5, 2] = conv_transpose(x, w)
    return y
""")
    found = run_passes(graph, PASSES, CONTEXT)
    same(graph, found, tolerance=1e-12)
    assert [n.op.name for n in found.nodes] == ["reshape", "matmul_packed", "reshape"]


def test_a_pass_out_of_order_is_an_error():
    late = [p for p in PIPELINE if p.name == "choose_layouts"]
    with pytest.raises(InternalError, match="must run after"):
        run_passes(read("def main(x: f32[3]):\n    return x\n"), late, CONTEXT)


def test_what_a_pass_breaks_is_found():
    def forget(graph, context):
        return Graph(graph.name, (), graph.inputs, (), graph.outputs)

    graph = read("def main(x: f32[3]):\n    y: f32[3] = relu(x)\n    return y\n")
    with pytest.raises(VerifyError, match="after forget"):
        run_passes(graph, [GraphPass("forget", forget, (), False)], CONTEXT)


def test_passes_are_reported_and_changes_dumped(tmp_path):
    lines = ("a: f32[3] = neg(x)", "y: f32[3] = relu(x)", "return y")
    graph = read("def main(x: f32[3]):\n    " + "\n    ".join(lines) + "\n")
    reports = []
    run_passes(graph, PASSES, CONTEXT, dumper=Dumper(tmp_path), report=reports.append)
    assert [r.name for r in reports] == [p.name for p in PASSES]
    first = next(r for r in reports if r.name == "remove_dead_nodes")
    assert (first.nodes_before, first.nodes_after) == (2, 1)
    assert [f.name for f in sorted(tmp_path.iterdir())] == [
        "00_import.graph.txt",
        "01_remove_dead_nodes.graph.txt",
    ]


def test_the_weights_of_a_loop_are_packed_though_they_are_transposed_outside_of_it():
    before = read(
        """
def main(t: size, h: f64[1, 3], x: f64[t, 1, 3]):
    w: f64[3, 3] = const()
    k: f64[3, 3] = transpose(w, perm=(1, 0))
    def step(h: f64[1, 3], x: f64[1, 3], k: f64[3, 3]):
        p: f64[1, 3] = matmul(h, k)
        n: f64[1, 3] = add(p, x)
        return n
    y: f64[1, 3] = scan(h, x, k, body=step, carries=1)
    return y
"""
    )
    after = run_passes(before, PASSES, CONTEXT)
    same(before, after, {"t": 3})
    assert "matmul_packed(" in str(after)


def test_a_pass_knows_the_bounds_of_sizes_inside_of_operators_too():
    text = """
def main(t: size[2, 9], x: f32[t, t]):
    def step(t: size, x: f32[t]):
        y: f32[t] = neg(x)
        return y
    all: f32[t, t] = scan(x, body=step, carries=0)
    return all
"""
    seen = []

    def look(graph, context):
        seen.append(context.size_ranges)
        return graph

    GraphPass("look", look, (), True)(read(text), CONTEXT)
    assert seen == [{"t": (2, 9)}] * 2
