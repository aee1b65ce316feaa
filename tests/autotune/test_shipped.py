"""What comes with dlc: which machine it is for, how it is made, and who begins with it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from dlc.autotune import shipped, task_search
from dlc.autotune.apply import find_records, load_records, shipped_records
from dlc.autotune.budget import Budget
from dlc.autotune.cost_model import Sample, XGBoostModel, rank_correlation
from dlc.autotune.log import TuningLog
from dlc.autotune.session import Machines, Options, Weighted
from dlc.autotune.tuner import Tuner
from dlc.core.target import Gpu, Target
from tests.autotune import examples, landscape
from tests.autotune.landscape import Landscape
from tests.cli.models import model

TASK = examples.matmul(target=examples.OTHER)


def samples(count, score):
    rng = np.random.default_rng(7)
    found = []
    for _ in range(count):
        knobs = {n: int(rng.choice(v)) for n, v in landscape.SPACE.knobs.items()}
        found.append(Sample("t", landscape.seen(knobs), score(knobs)))
    return found


def truth(knobs):
    return -landscape.time_of(knobs) / 1e4


@pytest.fixture
def learned(tmp_path, monkeypatch):
    """A folder of what comes with dlc, with a cost model for the target of `TASK`."""
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "records")
    shipped.FOLDER.mkdir()
    made = XGBoostModel()
    made.fit(samples(200, truth))
    made.save(shipped.FOLDER / "x86_64.ubj")
    return made


def test_families_are_told_by_their_widest_engine():
    def family(*features, triple="x86_64-unknown-linux-gnu"):
        return shipped.family_of(Target(triple=triple, features=frozenset(features)))

    assert family("sse2") == "x86_64"
    assert family("avx", "avx2", "fma") == "x86_64-avx2"
    assert family("avx2", "avx512f") == "x86_64-avx512f"
    assert family("avx2", "avx512f", "amx-tile") == "x86_64-amx-tile"
    assert family("neon", triple="aarch64-unknown-linux-gnu") == "aarch64"


def test_a_model_goes_on_from_what_it_loaded(learned):
    path = shipped.shipped_model(examples.OTHER)
    begun = XGBoostModel()
    assert begun.load(path)
    test = samples(60, truth)
    seen = [s.seen for s in test]
    assert begun.predict(seen) == learned.predict(seen)
    begun.fit(samples(5, truth))  # too few to learn from, so nothing is forgotten
    assert begun.predict(seen) == learned.predict(seen)
    begun.fit([replace(s, score=-s.score) for s in samples(60, truth)])
    assert begun.predict(seen) != learned.predict(seen)
    assert rank_correlation(begun.predict(seen), [-s.score for s in test]) > 0.5


def test_a_model_that_says_nothing_here_is_not_used(learned, monkeypatch, tmp_path):
    path = shipped.shipped_model(examples.OTHER)
    assert shipped.shipped_model(replace(examples.OTHER, features=frozenset({"avx2"}))) is None
    assert shipped.shipped_model(replace(examples.OTHER, gpu=Gpu())) is None
    assert not XGBoostModel("rank").load(path)
    (tmp_path / "damaged.ubj").write_bytes(path.read_bytes()[:100])
    assert not XGBoostModel().load(tmp_path / "damaged.ubj")
    monkeypatch.setattr("dlc.autotune.cost_model._FEATURES", "others")
    fresh = XGBoostModel()
    assert not fresh.load(path)
    assert not fresh.is_ready


@pytest.mark.parametrize("transfer", [True, False])
def test_a_session_begins_with_the_model_of_its_family(learned, monkeypatch, tmp_path, transfer):
    monkeypatch.setattr(task_search, "families", lambda task: (landscape.family(),))
    machine = Landscape()
    options = Options(Budget(trials=4), transfer=transfer)
    with TuningLog(tmp_path / "a.db") as log:
        Tuner([Weighted(TASK)], log, Machines(machine, machine), options).run()
        predicted = [t.predicted is not None for t in log.trials()]
    assert predicted == [transfer] * 4


def test_shipped_records_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert len(shipped_records()) == 0
    choice = examples.choice(TASK)
    lines = [{"task": TASK.to_json()}, {"choice": choice.to_json()}]
    text = "".join(json.dumps({"schema": "dlc.tuning/1", **line}) + "\n" for line in lines)
    (tmp_path / "x86_64.jsonl").write_text(text)
    assert find_records("auto").choices == {TASK.key: choice}
    assert len(find_records("none")) == 0


@pytest.mark.slow
def test_one_command_makes_records_and_a_model(tmp_path):
    weights = numpy_helper.from_array(np.ones((40, 56), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    onnx.save(model([node], ["x"], ["y"], [weights], (24, 40), (24, 56)), tmp_path / "m.onnx")
    command = [sys.executable, "-m", "benchmarks.tuning.ship", str(tmp_path / "m.onnx")]
    out = tmp_path / "records"
    for total in (12, 24):  # the second call goes on
        subprocess.run(
            [*command, "--budget", "12trials", "--log", str(tmp_path / "a.db"), "--out", str(out),
             "--json", str(tmp_path / "f.json")],
            cwd=Path(__file__).parents[2],
            check=True,
        )  # fmt: skip
        figures = json.loads((tmp_path / "f.json").read_text())
        assert figures["trials"] == total
    also = [*command, "--budget", "1trials", "--log", str(tmp_path / "b.db"), "--out", str(out)]
    also += ["--also", str(tmp_path / "a.db"), "--json", str(tmp_path / "f.json")]
    subprocess.run(also, cwd=Path(__file__).parents[2], check=True)
    assert json.loads((tmp_path / "f.json").read_text())["trials"] == 25
    family = shipped.family_of(examples.native())
    kept = out / f"{family}.jsonl"  # only if something won
    assert {p.name for p in out.iterdir()} - {kept.name} == {f"{family}.ubj"}
    assert (len(load_records(kept)) if kept.exists() else 0) == figures["records"]
    assert XGBoostModel().load(out / f"{family}.ubj")
