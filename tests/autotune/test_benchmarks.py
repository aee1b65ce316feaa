"""The benchmarks of the tuner: their tasks exist, and a session runs."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from benchmarks.tuning import common, naive, replay, searches
from dlc.autotune.budget import Budget
from dlc.autotune.build import scheduled
from dlc.autotune.design import families
from dlc.autotune.nest import nest_hash
from dlc.autotune.session import Machines, Options, Weighted
from dlc.schedule.primitive import steps_to_json
from dlc.tune_model import plan_tuning
from tests.autotune.landscape import Landscape

TARGET = "llvm -mcpu=haswell -num-cores=2"


def test_ten_different_tasks_all_offer_a_choice():
    tasks = common.ten_tasks(TARGET)
    assert len({t.key for t in tasks.values()}) == 10
    for name, task in tasks.items():
        assert sum(len(f.space) for f in families(task)) >= 20, name
    steps = naive.naive(tasks["dense"].func, tasks["dense"].target)
    _, func = scheduled(tasks["dense"], {"kind": "steps", "steps": steps_to_json(steps)})
    assert func.outputs == tasks["dense"].func.outputs


@pytest.mark.parametrize(
    "model",
    [
        common._product("dense", (160, 256), (256, 256)),
        common._convolution((1, 64, 14, 14), 64, 3, 1, 1, 1),
    ],
)
def test_nearly_each_point_of_a_matrix_engine_is_a_nest_of_its_own(model):
    tasks = [w.task for w in plan_tuning([model], "llvm -mcpu=sapphirerapids -num-cores=2").tasks]
    (family,) = (f for t in tasks for f in families(t) if f.name == "rule.matrix")
    points = list(family.space.points())
    points = Random(0).sample(points, min(24, len(points)))
    assert len(points) >= 4
    nests = {nest_hash(family.schedule(point).func) for point in points}
    assert len(nests) > 0.9 * len(points)  # of a low strip, no tile is higher


def test_tiles_are_no_larger_than_the_nest():
    (weighted,) = plan_tuning([common._product("dense", (3, 40), (40, 24))], TARGET).tasks
    family = families(weighted.task)[0]
    assert family.name == "rule.contract"
    knobs = family.space.knobs
    assert knobs["rows"] == (0, 1, 2, 3)
    assert (knobs["high"], knobs["first_summand"]) == ((0, 1), (0,))


def test_what_was_recorded_is_the_whole_space_of_a_replay():
    choices = {"rows": (1, 2), "steps": (4, 8)}
    known = replay._Known(choices, (), frozenset({(("rows", 1), ("steps", 8))}))
    assert (len(known), list(known.points())) == (1, [{"rows": 1, "steps": 8}])
    assert not known.allows({"rows": 1, "steps": 4})


def test_a_curve_and_when_it_reaches_a_goal():
    assert searches._reach([1.0, 1.5, 1.97], 2.0) == 3
    assert searches._reach([1.0, 1.5], 2.0) is None
    model = common._product("dense", (8, 12), (12, 20))
    (weighted,) = plan_tuning([model], TARGET).tasks
    machine = Landscape()
    options = Options(Budget(trials=0))
    tuner = common.session([Weighted(weighted.task)], Machines(machine, machine), options)
    assert tuner.trials == 0


def test_tuners_that_are_killed_lose_nothing(tmp_path):
    figures = {}
    for kills in ("2", "1"):  # the second call finds that all is done
        command = [sys.executable, "-m", "benchmarks.tuning.kill", "--kills", kills]
        subprocess.run(
            [*command, "--seconds", "1", "--json", str(tmp_path / "kill.json")],
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            check=True,
        )
        figures = json.loads((tmp_path / "kill.json").read_text())
        assert figures["kills"] == sum(figures["moments"].values()) == 2
    assert {figures[name] for name in ("lost", "corrupt", "orphans", "files_left")} == {0}


def test_an_unknown_option_is_refused():
    with pytest.raises(SystemExit):
        common.parser("Title\nMore").parse_args(["--unknown"])
