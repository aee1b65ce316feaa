"""The C++ example: built as its readers build it, from an installed package, and run."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dlc
from dlc.runtime.__main__ import HOME, PLACES

EXAMPLES = Path(__file__).parents[2] / "examples"
DIGITS = EXAMPLES / "digits"

installed = pytest.mark.skipif(
    not (HOME / PLACES["library"]).exists(), reason="the C++ side of the runtime is not installed"
)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    path = tmp_path_factory.mktemp("digits") / "digits.so"
    dlc.compile(DIGITS / "digits.onnx").save(path)
    return path


def run(*command: object, fails: bool = False) -> str:
    """The output of a program that must succeed, or fail."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def classify_digits(program: Path, digits: Path) -> float:
    """The share of images the example gets right, by its own account."""
    output = run(program, digits, DIGITS / "digits_test.bin")
    assert output.count("this is a") == 6
    found = re.search(r"accuracy: (\d+) of 360 held-back images", output)
    assert found, output
    return int(found[1]) / 360


def test_the_model_recognises_images_it_never_saw(digits):
    with np.load(DIGITS / "digits_test.npz") as data:
        pixels, labels = data["pixels"], data["labels"]
    logits = dlc.load(digits).run({"image": pixels[:, None].astype(np.float32) / 16})["logits"]
    assert (logits.argmax(1) == labels).mean() > 0.97


@installed
def test_one_plain_command_builds_it(tmp_path, digits):
    program = tmp_path / "classify"
    run(
        *("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", EXAMPLES / "cpp" / "classify.cpp"),
        *("-o", program, "-I", HOME / PLACES["include-dir"], HOME / PLACES["library"]),
        *("-pthread", "-ldl"),
    )
    assert classify_digits(program, digits) > 0.97
    assert "not a compiled model" in run(program, __file__, __file__, fails=True)
    assert "holds no digits" in run(program, digits, __file__, fails=True)


@installed
@pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")
def test_find_package_works_from_a_moved_installation(tmp_path, digits):
    moved = tmp_path / "a path with spaces" / "dlc" / "runtime"
    for folder in ("include", "lib"):
        shutil.copytree(HOME / folder, moved / folder)
    build = tmp_path / "build"
    run("cmake", "-S", EXAMPLES / "cpp", "-B", build, f"-Ddlc_DIR={moved / PLACES['cmake-dir']}")
    run("cmake", "--build", build)
    assert classify_digits(build / "classify", digits) > 0.97
