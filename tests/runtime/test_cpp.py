"""The C++ side: its own tests, and its CMake package as a stranger would use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNTIME = ROOT / "dlc/runtime/cpp"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cmake") is None, reason="cmake is not installed"),
]

PROJECT = """
cmake_minimum_required(VERSION 3.22)
project(stranger LANGUAGES CXX)
find_package(dlc 0.1 CONFIG REQUIRED)
add_executable(stranger main.cc)
target_link_libraries(stranger PRIVATE dlc::runtime)
dlc_add_model(digits MODEL digits.onnx TARGET "llvm -mcpu=x86-64-v3" OPTIONS --precision high)
get_target_property(artifact digits DLC_ARTIFACT)
file(WRITE "${CMAKE_BINARY_DIR}/artifact.txt" "${artifact}")
"""

RULE = """
cmake_minimum_required(VERSION 3.22)
project(rule LANGUAGES CXX)
find_package(dlc CONFIG REQUIRED)
dlc_add_model(model MODEL net.onnx)
"""

# Stands in for the compiler: writes its arguments where the model should go, and a depfile that
# says that there are weights beside it.
COMPILER = """#!/bin/sh
for last; do
  case "$previous" in
  -o) output=$last;;
  --depfile) depfile=$last;;
  esac
  previous=$last
done
printf '%s\\n' "$@" >"$output"
printf '%s: %s\\n' "$output" "${2%.onnx}.data" | sed 's/\\([^:]\\) /\\1\\\\ /g' >"$depfile"
"""

MAIN = """
#include <cstdio>
#include <dlc/runtime.hpp>
int main(int, char **argv) {
  const dlc::Model model = dlc::Model::load(argv[1]);
  std::vector<float> x = {1, 2, 3}, b = {0, 0, 1};
  const auto outputs = model.context().run({dlc::view(x, {1, 3}), dlc::view(b, {3})});
  static_cast<void>(outputs);
  std::printf("%s %s", model.inputs()[0].shape[0].c_str(), model.metadata().c_str());
}
"""


def run(*command: str | Path) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def write_compiler(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(COMPILER)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("with space") / "build"
    python = f"-DPython_EXECUTABLE={sys.executable}"
    run("cmake", "-S", RUNTIME, "-B", folder, python, "-DDLC_WERROR=ON", "-DDLC_BUILD_TESTS=ON")
    run("cmake", "--build", folder, "-j", "2")
    return folder


def test_the_cpp_tests_pass(build: Path) -> None:
    assert "100% tests passed" in run("ctest", "--test-dir", build, "--output-on-failure")


def test_a_stranger_can_use_the_package(build: Path, artifact: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "in stalled"
    run("cmake", "--install", build, "--prefix", prefix)
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(PROJECT)
    (project / "main.cc").write_text(MAIN)
    (project / "digits.onnx").touch()
    compiler = write_compiler(tmp_path / "dlc")
    places = (f"-DCMAKE_PREFIX_PATH={prefix}", f"-DDLC_EXECUTABLE={compiler}")
    run("cmake", "-S", project, "-B", project / "build", *places)
    run("cmake", "--build", project / "build")
    assert run(project / "build/stranger", artifact) == 'batch {"model":"affine"}'
    compiled = project / "build/digits.so"
    assert (project / "build/artifact.txt").read_text() == str(compiled)
    options = ["--target", "llvm -mcpu=x86-64-v3", "-o", str(compiled)]
    options += ["--depfile", f"{compiled}.d", "--precision", "high"]
    assert compiled.read_text().splitlines() == ["build", str(project / "digits.onnx"), *options]


@pytest.fixture
def environment(build: Path, tmp_path: Path) -> Path:
    """A Python environment with the runtime, without a compiler, and a project beside it."""
    installed = tmp_path / "environ ment/lib/python3.11/site-packages/dlc/runtime"
    run("cmake", "--install", build, "--prefix", installed)
    project = tmp_path / "project"
    project.mkdir()
    (project / "CMakeLists.txt").write_text(RULE)
    (project / "net.onnx").touch()
    (project / "net.data").touch()
    return tmp_path / "environ ment"


def configure(environment: Path, generator: str) -> tuple[str, ...]:
    found = next(environment.rglob("dlc-config.cmake")).parent
    project = environment.parent / "project"
    folders = ("-S", str(project), "-B", str(project / "build"))
    return ("cmake", "-G", generator, *folders, f"-Ddlc_DIR={found}")


GENERATORS = ("Unix Makefiles", "Ninja")


@pytest.mark.parametrize("generator", GENERATORS)
def test_a_model_is_built_anew_when_what_it_is_made_of_changes(
    environment: Path, generator: str
) -> None:
    write_compiler(environment / "bin/dlc")
    run(*configure(environment, generator))
    project = environment.parent / "project"
    artefact = project / "build/model.so"

    def built_anew() -> bool:
        before = artefact.stat().st_mtime_ns if artefact.exists() else 0
        run("cmake", "--build", project / "build")
        return artefact.stat().st_mtime_ns != before

    assert built_anew()
    assert not built_anew()
    for name in ("net.onnx", "net.data", "net.tune.db"):
        (project / name).touch()
        assert built_anew(), name
        assert not built_anew(), name


def test_a_project_without_a_compiler_is_told_how_to_name_one(environment: Path) -> None:
    environ = {**os.environ, "PATH": "/usr/bin:/bin"}
    command = configure(environment, GENERATORS[0])
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    assert found.returncode == 1
    assert "-DDLC_EXECUTABLE=/path/to/dlc" in found.stderr
