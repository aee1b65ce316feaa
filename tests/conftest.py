from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from dlc import artifact_key, verified
from dlc.artifact_cache import BuiltBefore
from tests.codegen.jit import NATIVE
from tests.codegen.tiles import why_no_tiles

# The same examples on every run, and no time limit for each: machines may be slow or busy.
settings.register_profile("dlc", deadline=None, derandomize=True)
settings.load_profile("dlc")


QUICK = {"architecture", "core", "te", "frontend", "graph", "schedule"}  # need no compiled code


def pytest_ignore_collect(collection_path, config):
    """For the quick tour, files without a test of it are not imported, which takes as long."""
    if config.getoption("markexpr") != "fast" or collection_path.suffix != ".py":
        return None
    return (
        None if _is_quick(collection_path) or "mark.fast" in collection_path.read_text() else True
    )


def pytest_collection_modifyitems(items):
    for item in items:
        long = any(item.iter_markers("slow")) or any(item.iter_markers("thorough"))
        if _is_quick(item.path) and not long:
            item.add_marker("fast")


def _is_quick(path):
    return path.relative_to(Path(__file__).parent).parts[0] in QUICK


def pytest_addoption(parser):
    parser.addoption(
        "--bless", action="store_true", help="rewrite the expectations of golden tests"
    )
    parser.addoption(
        "--models", metavar="DIR", type=Path, help="also compile the large models, and those in DIR"
    )


def pytest_sessionfinish():
    """Look for garbage before a worker says that it has finished, so that pytest finds none later.

    That takes seconds after thousands of tests, and xdist interrupts a worker that takes more than
    five to end: whatever it interrupts then is told as a warning.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _whole_builds():
    """Every build is a whole one: an earlier run's artefact would come without what it reports.

    Nor does a compiler that a test has changed leave artefacts to be found, and none was compared
    before. Tests of the cache itself set this back.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BuiltBefore, "of", lambda *_: BuiltBefore(Path(), None))
        patch.setattr(artifact_key, "MIN_NODES", sys.maxsize)
        patch.setattr(artifact_key, "MIN_WEIGHT_BYTES", sys.maxsize)
        patch.setattr(verified, "find_comparison", lambda key: None)
        patch.setattr(verified, "keep_comparison", lambda key, report: None)
        yield


@pytest.fixture
def bless(request):
    return request.config.getoption("--bless")


@pytest.fixture(scope="session")
def matrix_engine(tmp_path_factory):
    """This process may execute the instructions of AMX, which are emulated where need be."""
    if why := why_no_tiles(NATIVE, tmp_path_factory.mktemp("tiles")):
        pytest.skip(why)
