"""Every module of a folder that holds a registry is in the one visible list of that folder."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LISTS = {
    "dlc/frontend/onnx": "dlc/frontend/onnx/__init__.py",
    "dlc/graph/ops": "dlc/graph/ops/__init__.py",
    "dlc/graph/passes": "dlc/graph/pipeline.py",
    "dlc/graph/rules": "dlc/graph/rules/__init__.py",
    "dlc/schedule/passes": "dlc/schedule/pipeline.py",
    "dlc/schedule/primitives": "dlc/schedule/primitives/__init__.py",
    "dlc/schedule/rules": "dlc/schedule/rules/__init__.py",
}


def imported(text: str) -> set[str]:
    """The dotted names a module imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def missing(folder: Path, listing: str) -> list[str]:
    """The public modules of `folder` that `listing` does not import."""
    modules = [path.stem for path in sorted(folder.glob("[!_]*.py"))]
    package = ".".join(folder.relative_to(ROOT).parts)
    names = imported(listing)
    return [module for module in modules if f"{package}.{module}" not in names]


@pytest.mark.parametrize("folder", LISTS)
def test_every_module_is_listed(folder):
    assert list((ROOT / folder).glob("[!_]*.py")), f"{folder} holds no module"
    assert missing(ROOT / folder, (ROOT / LISTS[folder]).read_text()) == []


def test_a_module_that_is_not_listed_is_found():
    folder = ROOT / "dlc" / "core"
    assert "env" in missing(folder, "import dlc.core.errors\nfrom dlc.core import target\n")
    assert "target" not in missing(folder, "from dlc.core import target\n")
