"""The faults for `make mutants` fit the sources, and one of them is found."""

from __future__ import annotations

import shutil

import pytest

from tests.mutants.run import ROOT, TESTS, faults, find, inject, nearest_tests, stale

FAULTS = faults()


def test_there_are_sixty_of_all_parts():
    assert len(FAULTS) >= 60
    assert len({f["about"] for f in FAULTS}) == len(FAULTS)
    assert {f["file"].split("/")[1] for f in FAULTS} == {part.split("/")[0] for part in TESTS}


def test_the_tests_named_exist():
    assert all((ROOT / name).exists() for f in FAULTS for name in nearest_tests(f))


def test_few_faults_are_stale():
    """Sources change; a fault whose text is gone is replaced by another one now and then."""
    assert sum(map(stale, FAULTS)) <= 6


def test_a_fault_changes_its_file(tmp_path):
    fault = next(f for f in FAULTS if not stale(f))
    (tmp_path / fault["file"]).parent.mkdir(parents=True)
    shutil.copy(ROOT / fault["file"], tmp_path / fault["file"])
    inject(fault, tmp_path)
    assert (tmp_path / fault["file"]).read_text() != (ROOT / fault["file"]).read_text()


@pytest.mark.slow
def test_a_fault_is_found_by_random_models(tmp_path):
    known = tmp_path / "known.json"
    known.write_text("{}")
    fault = next(f for f in FAULTS if f["about"] == "a difference becomes a sum")
    assert find(fault, known, 40)[0]
