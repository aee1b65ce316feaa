"""The documents say what the code does."""

from __future__ import annotations

import ast
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

import dlc.core.errors
import dlc.graph.ops  # (declares the operators)
import dlc.runtime
from dlc.cli import app
from dlc.cli.stop import INTERRUPTED, NO_READER
from dlc.core import env
from dlc.graph.text import parse_graph
from dlc.graph.verify import verify_graph
from dlc.schedule.text import parse_func
from dlc.schedule.verify import verify_func
from tests.frontend import operator_table

ROOT = Path(__file__).parents[2]
DEPLOYMENT = ROOT / "docs" / "deployment.md"
COMMANDS: dict[str, Any] = vars(get_command(app))["commands"]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_readme_lists_the_environment_variables():
    rows = re.findall(r"^\| `(DLC_\w+)` \| (.*) \|$", (ROOT / "README.md").read_text(), re.M)
    found = [(name, meaning.replace("`", "")) for name, meaning in rows]
    assert found == [(variable.name, variable.meaning) for variable in env.VARIABLES]


def test_what_the_readme_makes_is_no_part_of_the_repository():
    made = set(re.findall(r" -o (\S+)", (ROOT / "README.md").read_text()))
    rules = (ROOT / ".gitignore").read_text().split()
    kept = [n for n in made if not any(fnmatch(n, rule.removeprefix("/")) for rule in rules)]
    assert "classify" in made
    assert kept == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text())
    local = [target for target in targets if "://" not in target]
    assert not [target for target in local if not (page.parent / target).exists()]


def test_decisions_are_numbered_one_by_one():
    pages = sorted((ROOT / "docs/adr").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    assert [page.name[:4] for page in pages] == [page.read_text()[2:6] for page in pages]


@pytest.mark.thorough
def test_the_page_on_tuning_lists_all_forks():
    trees = [ast.parse(path.read_text()) for path in (ROOT / "dlc/graph").rglob("*.py")]
    calls = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)]
    decided = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "decide"]
    kinds = {ast.literal_eval(k.value) for c in decided for k in c.keywords if k.arg == "kind"}
    table = (
        (ROOT / "docs/tuning.md").read_text().partition("| Fork | Ways |")[2].partition("\n\n")[0]
    )
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.M)) == kinds


def test_the_table_of_operators_is_current():
    """But for what is tried out, which a slow test does."""
    text, found = operator_table.PAGE.read_text(), operator_table.page({})
    strip = operator_table.without_trials
    assert strip(text) == strip(found), "run `make operators`"


@pytest.mark.thorough
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["logits"].shape == (5, 10)
    np.testing.assert_array_equal(names["m"](names["images"]), names["logits"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_documents_name_are_there(page):
    text = page.read_text().replace("\\\n", " ")
    for name, words in re.findall(r"\bdlc ([a-z]+)\b([^`#\n]*)", text):
        if name in COMMANDS:
            assert set(re.findall(r"--[a-z-]+", words)) <= options(COMMANDS[name])


def options(command: Any) -> set[str]:
    """Those of a command, and of the commands in it."""
    own = {o for param in command.params for o in [*param.opts, *param.secondary_opts]}
    return own.union(*map(options, getattr(command, "commands", {}).values()))


def test_the_python_of_deployment_runs(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", DEPLOYMENT.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    dlc.compile(ROOT / "examples/digits/digits.onnx").save("digits.so")
    names: dict[str, Any] = {}
    threads = dlc.runtime.num_threads()
    try:
        exec(code, names)
    finally:
        dlc.runtime.set_num_threads(threads)
    np.testing.assert_array_equal(names["model"](names["images"]), names["bound"].outputs["logits"])


def test_deployment_lists_the_exit_codes():
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", DEPLOYMENT.read_text(), re.M)}
    errors = [kind for kind in vars(dlc.core.errors).values() if hasattr(kind, "exit_code")]
    assert listed == {0, INTERRUPTED, NO_READER, *(kind.exit_code for kind in errors)}


def snippets(heading: str) -> list[str]:
    """The Python blocks of one section of docs/semantics.md."""
    text = (ROOT / "docs" / "semantics.md").read_text()
    section = text.split(f"\n## {heading}")[1].split("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


def test_the_loop_ir_in_the_documents_is_well_formed():
    (text,) = snippets("Loop IR")
    func = parse_func(text)
    verify_func(func, when="in the documents")
    assert str(func).strip() == text.strip()


def test_the_graph_ir_in_the_documents_is_well_formed():
    (text,) = snippets("Graph IR")
    graph = parse_graph(text)
    verify_graph(graph, when="in the documents")
    assert str(graph).strip() == text.strip()
