"""Where layouts meet is a decision: any side gives the same results."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dlc.core.fork import Choices, Fork, Way
from dlc.core.target import Gpu
from dlc.graph.estimate import node_cycles
from dlc.graph.pass_ import PassContext
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import AVX512, CONTEXT, PAIRS, read, run, same

# Blocks of 8 channels. An image, two convolutions, an addition of what is planar, and a reshape.
NET = """
def main(x: f32[1, 3, 9, 11], r: f32[1, 16, 7, 9]):
    w: f32[16, 3, 3, 3] = const()
    v: f32[16, 16, 1, 1] = const()
    a: f32[1, 16, 7, 9] = conv(x, w)
    b: f32[1, 16, 7, 9] = relu(a)
    c: f32[1, 16, 7, 9] = conv(b, v)
    d: f32[1, 16, 7, 9] = add(c, r)
    y: f32[16, 63] = reshape(d, shape=(16, 63))
    return y
"""


def asked(text, choices=None):
    """The graph in blocked form, and what is decided about it."""
    found: list[Fork] = []
    context = replace(CONTEXT, on_fork=found.append, choices=choices or Choices())
    return run("choose_layouts", read(text), context), found


def operators(graph):
    return [node.op.name for node in graph.nodes]


def test_what_stands_between_blocked_tensors_is_no_decision():
    graph, forks = asked(NET)
    assert operators(graph) == operators(run("choose_layouts", read(NET), CONTEXT))
    kinds = [(f.kind, f.name.split()[2], f.default) for f in forks]
    # An image of three channels is read as it is; nobody asks about relu and the second one.
    assert kinds == [
        ("source", "conv", "planar"),
        ("layout", "conv", "blocked"),
        ("layout", "add", "blocked"),
    ]


def test_each_side_of_a_border_gives_the_same_results():
    _, forks = asked(NET)
    plain = read(NET)
    seen = [operators(asked(NET)[0])]
    for fork in forks:
        ways = Choices({fork.key: Way(fork.others[0], fork.default)})
        graph, _ = asked(NET, ways)
        same(plain, graph)
        assert operators(graph) not in seen
        seen.append(operators(graph))
    _, by_blocks, by_image, by_sum = seen
    assert by_blocks.count("pack_channels") == 2  # x and r
    # The second convolution multiplies the pixels that the first one leaves in lines.
    assert by_image == ["conv", "relu", "reshape", "matmul", "reshape", "add", "reshape"]
    assert by_sum[-3:] == ["unpack_channels", "add", "reshape"]


def test_what_is_taken_back_leaves_nothing():
    reshape = "    y: f32[16, 63] = reshape(d, shape=(16, 63))\n    return y"
    text = NET.replace(reshape, "    return d")
    ways: dict[str, Way] = {}
    graph = read(text)
    while True:  # a border moves along until no operator is left behind it
        after, found = asked(text, Choices(ways))
        new = {f.key: Way("planar", f.default) for f in found if f.default == "blocked"}
        if new.keys() <= ways.keys():
            break
        ways |= new
    assert operators(after) == operators(graph)
    assert after.constants.keys() == graph.constants.keys()
    verify_graph(after, when="in a test")


@pytest.mark.parametrize(("channels", "options"), [(3, 2), (7, 2), (8, 0)])
def test_full_blocks_are_never_read_plane_by_plane(channels, options):
    text = NET.replace("f32[1, 3,", f"f32[1, {channels},").replace(
        "16, 3, 3, 3]", f"16, {channels}, 3, 3]"
    )
    forks = [f for f in asked(text)[1] if f.kind == "source"]
    assert [len(f.options) for f in forks] == ([options] if options else [])


def test_nobody_is_asked_where_nobody_listens(monkeypatch):
    wanted = operators(asked(NET)[0])
    monkeypatch.setattr("dlc.graph.blocking.Blocking.remember", None)
    graph = run("choose_layouts", read(NET), PassContext(target=CONTEXT.target))
    assert operators(graph) == wanted


def test_estimates_know_the_summands_of_convolutions():
    conv = read(NET).nodes[0]
    moved = 3 * 9 * 11 + 16 * 3 * 3 * 3 + 16 * 7 * 9
    work = 16 * 7 * 9 * 27 / (2 * 8 * 0.8)
    assert node_cycles([conv], CONTEXT.target) == pytest.approx(work + moved * 4 / 8 + 2000)


# Of 24 channels one is made, and one of two by a larger kernel, for each pixel of a line.
FEW = """
def main(x: f32[1, 16, 20, 33]):
    w: f32[24, 16, 1, 1] = const()
    v: f32[1, 24, 3, 3] = const()
    a: f32[1, 24, 20, 33] = conv(x, w)
    b: f32[1, 24, 20, 33] = relu(a)
    c: f32[1, 1, 20, 33] = conv(b, v, pads=(1, 1, 1, 1))
    y: f32[1, 1, 20, 33] = sigmoid(c)
    return y
"""
WIDE = replace(CONTEXT, target=AVX512.target)


def made(text, context=WIDE):
    graph = run("choose_layouts", read(text), context)
    same(read(text), graph)
    return [n for n in operators(graph) if n not in ("relu", "where")]


def test_few_results_are_pixels_side_by_side():
    """Of a block, fifteen lanes would be idle, and nobody packs or unpacks them."""
    assert made(FEW) == [
        "pack_channels",
        "conv_blocked",
        "unpack_channels",
        "pad",
        "conv",
        "sigmoid",
    ]
    plain = FEW.replace("conv(b, v, pads=(1, 1, 1, 1))", "conv(x, v)").replace(
        "1, 20, 33]", "1, 18, 31]"
    )
    assert made(plain.replace("v: f32[1, 24", "v: f32[1, 16"))[-2:] == ["conv", "sigmoid"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("conv(b, v, pads", "conv(b, v, stride=(1, 2), pads"), ("1, 20, 33]", "1, 20, 17]")),
        (("v: f32[1, 24", "v: f32[9, 24"), ("1, 1, 20, 33]", "1, 9, 20, 33]")),
        (("20, 33]", "20, 15]"), ("20, 33]", "20, 15]")),
        (("f32[", "f64["), ("f32[", "f64[")),
        (("24, 3, 3]", "24, 1, 1]"), (", pads=(1, 1, 1, 1)", "")),
    ],
    ids=["strided", "many", "narrow", "double", "pixel"],
)
def test_other_results_are_blocks(old, new):
    assert made(FEW.replace(*old).replace(*new)).count("conv_blocked") == 2


def test_few_results_that_blocks_are_made_of_again_are_not_worth_it():
    """A convolution of each channel by itself reads blocks, and so may what is behind a relu."""
    text = """
def main(x: f32[1, 3, 34, 34]):
    w: f32[8, 3, 3, 3] = const()
    v: f32[8, 1, 3, 3] = const()
    a: f32[1, 8, 32, 32] = conv(x, w)
    b: f32[1, 8, 32, 32] = relu(a)
    y: f32[1, 8, 30, 30] = conv(b, v, groups=8)
    return y
"""
    assert made(text)[:2] == ["conv_planar", "conv_depthwise"]
    alone = text.replace(
        "    y: f32[1, 8, 30, 30] = conv(b, v, groups=8)\n    return y", "    return b"
    )
    assert made(alone) == ["conv"]
    sums = text.replace(
        "y: f32[1, 8, 30, 30] = conv(b, v, groups=8)", "y: f32[1, 8, 32, 32] = add(b, r)"
    )
    assert made(sums.replace("(x:", "(r: f32[1, 8, 32, 32], x:")) == ["conv", "add"]


def test_one_pixel_of_a_planar_image_waits_for_memory():
    text = FEW.replace("conv(b, v, pads=(1, 1, 1, 1))", "conv(x, v)").replace(
        "1, 24, 3, 3", "1, 16, 1, 1"
    )
    assert "conv" not in made(text)


def test_few_results_are_blocks_on_a_gpu():
    gpu = replace(WIDE, target=replace(WIDE.target, gpu=Gpu()))
    assert made(FEW, gpu).count("conv_blocked") == 2


def test_narrow_products_of_a_block_are_held_against_pixels():
    """Six results of sixteen lanes gain by pairs of bf16 what pixels would gain."""
    many = FEW.replace("v: f32[1, 24", "v: f32[6, 24").replace("1, 1, 20, 33]", "1, 6, 20, 33]")
    many = many.replace("20, 33]", "20, 32]")
    pairs = replace(WIDE, target=replace(WIDE.target, features=PAIRS), precision="medium")
    assert made(many).count("conv_blocked") == 1
    assert made(many, pairs).count("conv_blocked") == 2


def test_blocks_that_are_transformed_are_held_against_pixels():
    """Seven results gain by fewer products what pixels would; dilated ones have no transform."""
    many = FEW.replace("v: f32[1, 24", "v: f32[7, 24").replace("1, 1, 20, 33]", "1, 7, 20, 33]")
    many = many.replace("20, 33]", "20, 32]")
    dilated = many.replace("pads=(1, 1, 1, 1)", "pads=(2, 2, 2, 2), dilation=(2, 2)")
    assert made(many).count("conv_blocked") == 2
    assert made(dilated).count("conv_blocked") == 1


def test_where_few_results_lie_is_a_decision():
    found: list[Fork] = []
    context = replace(WIDE, on_fork=found.append)
    run("choose_layouts", read(FEW), context)
    (fork,) = [f for f in found if f.kind == "results"]
    assert (fork.default, fork.others) == ("planar", ("blocked",))
    choices = Choices({fork.key: Way("blocked", "planar")})
    assert made(FEW, replace(WIDE, choices=choices)).count("conv_blocked") == 2


@pytest.mark.parametrize("kernel", [(13, 13), (131,), (5, 5, 5)], ids=str)
def test_small_groups_of_large_kernels_are_shuffled(kernel):
    sizes = ", ".join(str(k + 2) for k in kernel)
    ones = f"stride={(1,) * len(kernel)}, dilation={(1,) * len(kernel)}"
    text = f"""
def main(x: f32[1, 16, {sizes}]):
    w: f32[16, 8, {", ".join(map(str, kernel))}] = const()
    y: f32[1, 16{", 3" * len(kernel)}] = conv(x, w, {ones}, pads={(0, 0) * len(kernel)}, groups=2)
    return y
"""
    assert "conv_lanes" in made(text)


PRODUCT = ["reshape", "matmul", "reshape", "add"]


def pixels(
    last="y = relu(b)", *, image="20, 33", channels=24, before="", attributes="", made="20, 33"
):
    """A convolution of single pixels between planar images."""
    size = f"f32[3, 40, {made}]"
    name, _, call = last.partition(" = ")
    kind = name if ":" in name else f"{name}: {size}"
    operand = "q" if before else "x"
    lines = [
        f"def main(x: f32[3, {channels}, {image}], r: {size}):",
        f"w: f32[40, {channels}, {', '.join('1' for _ in image.split(','))}] = const()",
        f"u: f32[{channels}, {channels}, 3, 3] = const()",
        "v: f32[40, 40, 3, 3] = const()",
        *([f"q: f32[3, {channels}, {image}] = {before}"] if before else []),
        *([f"s: {size} = conv(r, v, pads=(1, 1, 1, 1))"] if "s)" in last else []),
        f"a: {size} = conv({operand}, w{attributes})",
        f"b: {size} = add(a, r)",
        f"{kind} = {call}",
        "return y",
    ]
    return "\n    ".join(lines) + "\n"


def test_pixels_of_planar_images_are_multiplied_as_they_are():
    assert made(pixels()) == PRODUCT
    assert made(pixels(before="transpose(x, perm=(0, 1, 2, 3))"))[1:] == PRODUCT
    line = ", stride=(1,), pads=(0, 0), dilation=(1,)"
    assert made(pixels(image="660", made="660", attributes=line)) == PRODUCT


@pytest.mark.parametrize(("groups", "product"), [(8, PRODUCT), (2, PRODUCT), (24, None)])
def test_pixels_of_groups_are_products_of_their_own(groups, product):
    """Of each channel by itself, one result is no product; blocks multiply lane by lane."""
    text = pixels(attributes=f", groups={groups}").replace(
        "w: f32[40, 24", f"w: f32[40, {24 // groups}"
    )
    if product is None:
        text = text.replace("40, ", "24, ")
    found = made(text)
    assert found == product if product else "matmul" not in found


def test_pixels_of_many_channels_are_lines_that_no_tile_keeps_near():
    assert made(pixels(channels=250).replace("40", "160")) == PRODUCT


def test_weights_of_bytes_stay_in_blocks_where_bytes_are_multiplied():
    text = pixels()
    graph = read(text)
    whole = {v: np.ones_like(a) for v, a in graph.constants.items()}
    bytes_ = replace(
        WIDE, target=replace(WIDE.target, features=AVX512.target.features | {"avx512vnni"})
    )
    for context, found in ((WIDE, True), (bytes_, False)):
        after = run("choose_layouts", replace(graph, constants=whole), context)
        assert ("matmul" in operators(after)) is found
    assert made(text, bytes_) == PRODUCT


def test_no_pixels_are_no_product():
    assert made(pixels(image="0, 33", made="0, 33"))[-1] == "add"


def test_an_open_number_of_pixels_is_multiplied_too():
    text = pixels(image="h, 33", made="h, 33").replace("[3, ", "[n, ")
    text = text.replace("(x:", "(n: size, h: size, x:")
    graph = run("choose_layouts", read(text), WIDE)
    same(read(text), graph, {"n": 2, "h": 5})
    assert operators(graph)[:-1] == PRODUCT


@pytest.mark.parametrize(
    "last",
    [
        "y: f32[3, 40, 19, 32] = max_pool(b, kernel=(2, 2))",
        "y: f32[3, 40, 18, 31] = conv(b, v)",
        "y: f32[3, 8, 20, 33] = slice(b, starts=(0, 8, 0, 0), sizes=(3, 8, 20, 33))",
        "y = add(b, s)",
    ],
    ids=["pool", "conv", "slice", "sum"],
)
def test_pixels_that_may_be_read_in_blocks_are_blocks(last):
    assert "matmul" not in made(pixels(last))


@pytest.mark.parametrize(
    "text",
    [
        pixels().replace("f32[", "f64["),
        pixels(before="conv(x, u, pads=(1, 1, 1, 1))"),
        pixels(attributes=", stride=(2, 1)", made="10, 33"),
        pixels(attributes=", pads=(1, 0, 1, 0)", made="22, 33"),
        pixels(channels=1200).replace("40", "160"),
        pixels(channels=120, image="2, 3", made="2, 3").replace("40", "160"),
    ],
    ids=["double", "blocked", "strided", "padded", "deep", "few"],
)
def test_other_pixels_are_blocks(text):
    assert "matmul" not in made(text)


def test_pixels_are_blocks_where_these_are_multiplied_faster():
    pairs = replace(WIDE, target=replace(WIDE.target, features=PAIRS), precision="medium")
    text = pixels(channels=192).replace("40", "192")
    assert made(text) == PRODUCT
    assert "matmul" not in made(text, pairs)
    # One block alone pays for rounded rows, which costs what two transforms do.
    assert made(pixels(channels=96).replace("40", "192"), pairs) == PRODUCT
    assert "matmul" not in made(text, replace(WIDE, target=replace(WIDE.target, gpu=Gpu())))
