"""Each pass does what its docstring and its golden files show, and never changes a result."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from dlc.graph.pass_ import PASSES
from dlc.graph.text import parse_graph
from tests.graph.pass_cases import read, run, same

FOLDER = Path(__file__).parents[1] / "golden" / "graph"
FILES = sorted(FOLDER.glob("*.txt"))


def example(name):
    doc = sys.modules[PASSES[name].run.__module__].__doc__
    parts = re.split(r"\n(?:Before|After|Position):", doc)
    assert len(parts) == 4, f"{name} has no Before, After and Position"
    return textwrap.dedent(parts[1]).strip(), textwrap.dedent(parts[2]).strip()


def without_data(text):
    return re.sub(r"const\([^)]*\)", "const()", text).strip()


@pytest.mark.parametrize("name", sorted(PASSES))
def test_the_docstring_example_holds(name):
    before, after = example(name)
    assert without_data(str(run(name, read(before)))) == without_data(str(parse_graph(after)))


@pytest.mark.parametrize(
    # Those left out group nodes, or mean other types than float64.
    "name",
    sorted(
        set(PASSES)
        - {
            "fuse_groups",
            "group_nodes",
            "number_texts",
            "store_narrow",
            "halve_floats",
            "keep_few_bits",
            "narrow_weights",
            "requantize",
            "tabulate_bytes",
            "use_byte_products",
            "use_pair_products",
            "widen_halves",
        }
    ),
)
def test_the_docstring_example_keeps_its_results(name):
    graph = read(example(name)[0].replace("f32[", "f64["))
    same(graph, run(name, graph), {name: 3 for name in graph.sizes})


@pytest.mark.parametrize("path", FILES, ids=[f.stem for f in FILES])
def test_golden(path, bless):
    head, text = path.read_text().split("\n", 1)
    name = head.removeprefix("# pass: ")
    before, _, after = text.partition("# ---\n")
    found = without_data(str(run(name, read(before)))) + "\n"
    if bless:
        path.write_text(f"# pass: {name}\n{before}# ---\n{found}")
    else:
        assert found == after


@pytest.mark.parametrize("path", FILES, ids=[f.stem for f in FILES])
def test_golden_files_keep_their_results(path):
    head, text = path.read_text().split("\n", 1)
    graph = read(text.partition("# ---\n")[0].replace("f32[", "f64["))
    sizes = {name: 3 + i for i, name in enumerate(graph.sizes)}
    same(graph, run(head.removeprefix("# pass: "), graph), sizes)
