"""16-bit floats on a CPU: what is computed in float32, what stays rounded, what it means."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.core.target_parse import parse_target
from dlc.graph.evaluate import evaluate
from dlc.graph.graph import Graph
from dlc.graph.pass_ import PASSES, PassContext
from dlc.graph.sizes import bodies
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from tests.graph.pass_cases import read


def widened(text: str, half: str = "f16") -> Graph:
    """The graph behind the pass alone."""
    done = PASSES["widen_halves"](read(text.replace("f16", half)), PassContext())
    verify_graph(done, when="after widen_halves")
    return done


def operators(graph: Graph) -> dict[str, list[str]]:
    """The names of operators, in order, by the type of what they make."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for value in node.outputs:
            found.setdefault(str(value.type.dtype), []).append(node.op.name)
    return found


MODEL = """
def main(x: f16[6, 5], i: i64[6]):
    w: f16[5, 8] = const()
    b: f16[8] = const()
    g: f16[6, 5] = gather(x, i)
    a: f16[6, 8] = matmul(g, w)
    s: f16[6, 8] = add(a, b)
    t: f16[8, 6] = transpose(s, perm=(1, 0))
    y: f16[8, 6] = softmax(t, axis=1)
    return y
"""


@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_nothing_is_rounded_between_operators(half: str) -> None:
    found = operators(widened(MODEL, half))
    assert found == {
        "f32": ["cast", "matmul", "add", "transpose", "softmax"],
        half: ["gather", "cast"],  # what is moved before it is computed with, and the result
    }


def test_what_the_model_rounds_stays_rounded() -> None:
    found = widened("""
def main(x: f32[7], z: f16[7]):
    a: f16[7] = cast(x, to=f16)
    b: f32[7] = cast(a, to=f32)
    c: f16[7] = mul(a, z)
    d: f32[7] = cast(c, to=f32)
    y: f32[7] = add(b, d)
    return y
""")
    assert operators(found) == {"f16": ["cast"], "f32": ["cast", "cast", "mul", "cast", "add"]}
    tiny = np.float32(2.0**-20)
    given = {"x": np.full(7, 1 + tiny, np.float32), "z": np.full(7, 1 + 2.0**-9, np.float16)}
    assert (evaluate(found, given)["y"] == 2 + 2.0**-9).all()


@pytest.mark.parametrize("jump", [
    "y: f16[7] = floor(s)", "y: f16[7] = round(s)", "y: bool[7] = less(s, x)",
    "y: i64[7] = cast(s, to=i64)", "y: f64[7] = cast(s, to=f64)",
    "y: f16[7] = shrink(s, lambd=0.5)", "y: f16[7] = thresholded_relu(s)",
])  # fmt: skip
def test_what_jumps_reads_rounded_numbers(jump: str) -> None:
    found = widened(f"""
def main(x: f16[7]):
    s: f16[7] = mul(x, x)
    {jump}
    return y
""")
    assert found.nodes[-1].inputs[0].name == "s"
    assert operators(found)["f16"][0] == "cast"


def test_places_to_sample_from_are_rounded() -> None:
    """Of the nearest pixel another one is read where a place lies a little further on."""
    found = widened("""
def main(x: f16[1, 2, 5, 5], g: f16[1, 3, 3, 2]):
    s: f16[1, 3, 3, 2] = mul(g, g)
    y: f16[1, 2, 3, 3] = grid_sample(x, s, mode="nearest")
    return y
""")
    assert operators(found)["f16"] == ["cast", "grid_sample"]


@pytest.mark.parametrize(("reduction", "dtype"), [("none", "f16"), ("add", "f32")])
@pytest.mark.parametrize(
    "scatter", ["scatter_nd(x, i, z, {})", "scatter_elements(x, i, z, axis=0, {})"]
)
def test_updates_are_moved_as_they_are(scatter: str, reduction: str, dtype: str) -> None:
    """Unless they are added to what is there."""
    call = scatter.format(f'reduction="{reduction}"')
    shape = "3" if "nd" in scatter else "3, 1"
    found = widened(f"""
def main(x: f16[7, 1], i: i64[3, 1], z: f16[{shape}{", 1" * ("nd" in scatter)}]):
    y: f16[7, 1] = {call}
    return y
""")
    assert operators(found)[dtype][-1].startswith("scatter")
    assert ("cast" in str(found)) is (dtype == "f32")


def test_updates_that_are_computed_are_rounded_behind() -> None:
    found = widened("""
def main(x: f16[7], i: i64[3, 1], z: f16[3]):
    a: f16[7] = mul(x, x)
    b: f16[3] = mul(z, z)
    y: f16[7] = scatter_nd(a, i, b)
    return y
""")
    assert operators(found)["f16"] == ["cast"]


def test_a_value_that_is_read_in_both_types_is_made_once_in_each() -> None:
    found = operators(
        widened("""
def main(x: f16[7], z: f16[7]):
    s: f16[7] = mul(x, z)
    f: f16[7] = floor(s)
    g: f16[7] = ceil(s)
    y: f16[7] = sub(s, f)
    u: f16[7] = sub(x, g)
    return y, u
""")
    )
    assert found["f16"] == ["cast", "floor", "ceil", "cast", "cast"]
    assert found["f32"] == ["cast", "cast", "mul", "cast", "sub", "cast", "sub"]


@pytest.mark.parametrize(("dtype", "is_wide"), [("i8", True), ("u8", True), ("i32", False)])
def test_bytes_are_exact_in_both(dtype: str, is_wide: bool) -> None:
    found = operators(
        widened(f"""
def main(x: {dtype}[7], z: f16[7]):
    s: f16[7] = cast(x, to=f16)
    y: f16[7] = mul(s, z)
    return y
""")
    )
    assert len(found["f16"]) == (1 if is_wide else 2)


def test_bodies_compute_in_float32_and_keep_their_types() -> None:
    graph = widened("""
def main(h: f16[2, 4], z: f16[3, 2, 4]):
    def step(h: f16[2, 4], e: f16[2, 4]):
        w: f16[4, 4] = const()
        p: f16[2, 4] = matmul(h, w)
        n: f16[2, 4] = add(p, e)
        return n
    k: f16[2, 4] = neg(h)
    y: f16[2, 4] = scan(k, z, body=step, carries=1)
    return y
""")
    assert operators(graph) == {"f32": ["cast", "neg"], "f16": ["cast", "scan"]}
    (body,) = bodies(graph.nodes[-1].op)
    assert operators(body)["f16"] == ["cast"]


def test_other_graphs_and_gpus_are_left_alone() -> None:
    run = PASSES["widen_halves"]
    plain = read(MODEL.replace("f16", "f32"))
    assert run(plain, PassContext()) is plain
    moves = parse_graph("""
def main(x: f16[6, 5]):
    y: f16[5, 6] = transpose(x, perm=(1, 0))
    return y
""")
    assert run(moves, PassContext()) is moves
    halves = read(MODEL)
    assert run(halves, PassContext(target=parse_target("cuda"))) is halves
