import gc
import subprocess
import sys

import pytest

from dlc.core.garbage import collected_rarely


def test_the_limits_come_back():
    before = gc.get_threshold()
    inside = []

    @collected_rarely()
    def fail():
        inside.append(gc.get_threshold()[0])
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside[0] > 100 * before[0]
    assert gc.get_threshold() == before


def test_the_last_of_several_builds_at_a_time_brings_the_limits_back():
    before = gc.get_threshold()
    first, second = collected_rarely(), collected_rarely()
    with first:
        second.__enter__()
    assert gc.get_threshold()[0] > 100 * before[0]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before


def test_a_worker_collects_rarely_for_good():
    text = (
        "import gc; from dlc.core.garbage import collect_rarely; collect_rarely();"
        "print(gc.get_threshold()[0] > 10000, gc.get_freeze_count() > 1000)"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
