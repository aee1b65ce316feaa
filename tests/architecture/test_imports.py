"""Who may import whom, statically (import-linter) and in a running process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("llvmlite", "numpy", "onnx", "onnxruntime", "torch", "xgboost")


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package `dlc` in `folder`."""
    program = (
        # The package in this folder, whatever an editable installation would rather import.
        "import importlib.machinery, sys\n"
        "sys.path.insert(0, '.')\n"
        "sys.meta_path.insert(0, importlib.machinery.PathFinder)\n"
        "from importlinter.cli import lint_imports\n"
        "sys.exit(lint_imports(no_cache=True))"
    )
    return subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )


def modules_after(program: str) -> set[str]:
    """The top-level packages in `sys.modules` after a program, in a fresh process."""
    program += "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_the_import_contracts_hold():
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "forbidden", "contract"),
    [
        ("core/errors.py", "import dlc.te", "layers point down"),
        ("graph/__init__.py", "import dlc.frontend.onnx", "layers point down"),
        ("runtime/__init__.py", "import onnx", "the runtime stands alone"),
        ("codegen/__init__.py", "import dlc.graph", "codegen does not know graphs"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(tmp_path, module, forbidden, contract):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(
        ROOT / "dlc", tmp_path / "dlc", ignore=shutil.ignore_patterns("__pycache__", "cpp", "*.so")
    )
    with (tmp_path / "dlc" / module).open("a") as file:
        file.write(f"\n{forbidden}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    broken = [line for line in done.stdout.splitlines() if " BROKEN" in line]
    assert any(line.startswith(contract) for line in broken), done.stdout


def test_importing_dlc_imports_no_library():
    assert modules_after("import dlc").isdisjoint((*HEAVY, "typer", "rich"))


def test_the_runtime_needs_no_compiler():
    found = modules_after("import dlc.runtime")
    assert "numpy" in found
    assert found.isdisjoint(set(HEAVY) - {"numpy"} | {"typer", "rich"})


def test_help_imports_nothing_heavy():
    program = (
        "import sys; sys.argv = ['dlc', '--help']\n"
        "from dlc.cli import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code"
    )
    assert modules_after(program).isdisjoint(HEAVY)
