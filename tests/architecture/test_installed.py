"""What `python -m dlc.runtime` says is where it says it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlc.runtime.__main__ import HOME, PLACES


@pytest.mark.parametrize("option", PLACES)
def test_each_option_prints_one_path(option):
    done = subprocess.run(
        [sys.executable, "-m", "dlc.runtime", f"--{option}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{HOME / PLACES[option]}\n"


@pytest.mark.skipif(not (HOME / "include").exists(), reason="the extension was built in place")
def test_an_installed_package_holds_headers_library_and_cmake_package():
    assert (HOME / PLACES["include-dir"] / "dlc" / "runtime.hpp").is_file()
    assert (HOME / PLACES["library"]).is_file()
    assert (HOME / PLACES["cmake-dir"] / "dlc-config.cmake").is_file()


def test_no_option_is_an_error():
    done = subprocess.run(
        [sys.executable, "-m", "dlc.runtime"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "--include-dir" in done.stderr
    assert not done.stdout


def test_home_is_the_folder_of_the_extension():
    assert list(Path(HOME).glob("_runtime.*"))
