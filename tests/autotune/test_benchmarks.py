"""The benchmarks of the tuner: their tasks exist, and a session runs."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import onnx
import pytest

from benchmarks.tuning import common, naive, replay, searches
from benchmarks.tuning.figures import Figures
from dlc.autotune.budget import Budget
from dlc.autotune.build import scheduled
from dlc.autotune.design import families
from dlc.autotune.nest import nest_hash
from dlc.autotune.session import Machines, Options, Weighted
from dlc.schedule.primitive import steps_to_json
from dlc.tune_plan import plan_tuning
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
        common._convolution((1, 64, 14, 14), 64, 5, 1, 2, 1),
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


def test_a_row_is_measured_once_for_its_settings(tmp_path):
    path = tmp_path / "new" / "figures.json"
    count = iter(range(9))

    def row(settings, name="a"):
        return Figures(path, settings).get(name, lambda: {"count": next(count)})["count"]

    assert [row({"budget": "3m"}), row({"budget": "3m"})] == [0, 0]
    assert row({"budget": "3m"}, "b") == 1
    assert [row({"budget": "10m"}), row({"budget": "3m"}, "b")] == [2, 1]
    known = json.loads(path.read_text())
    assert set(known) == {"a", "b"}
    assert {"commit", "date", "machine", "settings"} < set(known["a"])
    assert [p.name for p in path.parent.iterdir()] == ["figures.json"]


def test_two_models_are_tuned_and_their_largest_tasks_exhausted(tmp_path):
    for name, columns in (("first", 24), ("second", 40)):
        onnx.save(common._product("dense", (8, 12), (12, columns)), tmp_path / f"{name}.onnx")
    models = [str(tmp_path / f"{name}.onnx") for name in ("first", "second")]
    shared = ["--target", TARGET, "--logs", str(tmp_path / "logs"), "--json"]

    def run(script, *arguments):
        command = [sys.executable, "-m", f"benchmarks.tuning.{script}", *models]
        done = subprocess.run(
            [*command, *shared, str(tmp_path / f"{script}.json"), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            text=True,
            check=True,
        )
        return done.stdout, json.loads((tmp_path / f"{script}.json").read_text())

    said, gains = run("models", "--budget", "2trials")
    assert "geometric mean of 2 models" in said
    assert all(row["trials"] == 2 and row["verdict"] for row in gains.values())
    gains["second"]["speedup"] = 1.5
    (tmp_path / "models.json").write_text(json.dumps(gains))
    assert run("models", "--budget", "2trials")[1] == gains  # nothing was measured
    arguments = ["--trials", "3", "--gains", str(tmp_path / "models.json")]
    said, rows = run("exhaust", *arguments)
    assert "second: left out, it gains 1.500×" in said
    (key,) = set(rows) - {"first"}
    assert (rows["first"]["largest"][0][1], rows[key]["trials"]) == (key, 3)
    assert rows[key]["best_over_default"] >= 1.0
    assert run("exhaust", *arguments)[1] == rows
    del rows[key]  # as if it had been stopped before its row was written
    (tmp_path / "exhaust.json").write_text(json.dumps(rows))
    _, rows = run("exhaust", *arguments, "--trials", "4")
    assert rows[key]["trials"] == 4  # three of them of the log


def test_an_unknown_option_is_refused():
    with pytest.raises(SystemExit):
        common.parser("Title\nMore").parse_args(["--unknown"])
