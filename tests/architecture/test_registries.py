"""Every module that declares something is in the one visible list of its folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]


class Registry(NamedTuple):
    """Modules of `folder` whose text has a line like `declares` must be imported by `listed_in`."""

    folder: str
    declares: str
    listed_in: str


REGISTRIES = (
    Registry("dlc/frontend/onnx", r"@converter\(", "dlc/frontend/onnx/__init__.py"),
    Registry("dlc/graph/ops", r"@op\(", "dlc/graph/ops/__init__.py"),
    Registry("dlc/graph/passes", r"@graph_pass\(", "dlc/graph/pipeline.py"),
    Registry("dlc/graph/rules", r"@rule\(", "dlc/graph/rules/__init__.py"),
    Registry("dlc/schedule/primitives", r"@primitive\b", "dlc/schedule/primitives/__init__.py"),
    Registry("dlc/schedule/rules", r"def match\(", "dlc/schedule/rules/__init__.py"),
)


def declaring(registry: Registry) -> list[str]:
    """The dotted names of the modules that declare something."""
    pattern = re.compile("^" + registry.declares, re.MULTILINE)
    package = registry.folder.replace("/", ".")
    files = sorted((ROOT / registry.folder).glob("*.py"))
    return [f"{package}.{file.stem}" for file in files if pattern.search(file.read_text())]


def imported(text: str) -> set[str]:
    """The dotted names a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.folder)
def test_every_declaring_module_is_listed(registry):
    modules = declaring(registry)
    assert modules, f"no module of {registry.folder} declares anything"
    names = imported((ROOT / registry.listed_in).read_text())
    assert [module for module in modules if module not in names] == []


def test_an_import_is_seen_in_each_of_its_forms():
    text = "import a.b\nfrom a.c import d\nfrom a import e as f\n"
    assert imported(text) == {"a.b", "a.c", "a.c.d", "a", "a.e"}
