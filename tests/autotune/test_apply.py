import logging
from dataclasses import replace

import numpy as np
import pytest

import dlc
from dlc import tuning
from dlc.autotune.apply import Records, find_records, load_records, shipped_records
from dlc.autotune.build import scheduled
from dlc.autotune.design import families
from dlc.autotune.exchange import export_log, write_lines
from dlc.autotune.log import TuningLog
from dlc.autotune.nest import nest_hash
from dlc.autotune.record import Choice
from dlc.autotune.search.searcher import make_design
from dlc.autotune.told import default_log
from dlc.autotune.versions import versions
from dlc.codegen.llvm.worker import KernelJob
from dlc.compiler import build
from dlc.core.errors import UserError
from dlc.schedule.pipeline import optimize
from dlc.schedule.primitive import steps_to_json
from dlc.schedule.text import parse_func
from dlc.tune_plan import plan_tuning
from tests.autotune import examples
from tests.cli.models import perceptron

OLD = (("compiler", "an older one"),)


def choice_for(task, made_with=OLD):
    """A schedule that is not the default, as a record."""
    default = nest_hash(optimize(task.func, task.target))
    family = families(task)[0]
    for point in family.space.points():
        design = make_design(family, point)
        data = {"kind": "design", "family": family.name, "knobs": dict(design.knobs)}
        steps, func = scheduled(task, data)
        if nest_hash(func) != default:
            text = steps_to_json(steps)
            return Choice(task.key, text, nest_hash(func), default, 1.5, 1.2, 0.0, made_with)
    raise AssertionError("every schedule is the default")


@pytest.fixture(scope="module")
def task():
    return examples.matmul(target=examples.Target(features=frozenset({"avx2", "fma"})))


@pytest.fixture(scope="module")
def choice(task):
    return choice_for(task)


def records(task, choice):
    return Records({task.key: task}, {choice.task: choice})


def job(task):
    return KernelJob("k", task.func, task.target)


def test_a_record_is_used_for_its_kernel_whatever_that_is_called(task, choice):
    found = records(task, choice)
    assert len(found) == 1
    assert found.tuned(job(task)).steps == choice.plan
    text = (
        str(task.func).replace("acc", "sum").replace("for y ", "for row ").replace("[y,", "[row,")
    )
    renamed = KernelJob("k", parse_func(text), task.target)
    tuned = found.tuned(renamed)
    assert tuned.func == task.func  # whose names the steps know
    assert nest_hash(optimize(tuned.func, tuned.target, tuned.steps)) == choice.nest


def test_a_record_of_another_kernel_or_machine_is_not_used(task, choice):
    found = records(task, choice)
    other = examples.matmul(14, target=task.target)
    assert found.tuned(job(other)).steps is None
    elsewhere = replace(task.target, features=frozenset({"avx2", "fma", "avx512f"}))
    assert found.tuned(KernelJob("k", task.func, elsewhere)).steps is None
    # Even if two tasks had one key.
    wrong = Records({task.key: other}, {task.key: choice})
    assert wrong.tuned(job(task)).steps is None


def test_a_record_is_used_whatever_an_engine_took_when_it_was_made(task, choice):
    later = replace(task.target, tile_cycles=45)
    assert records(task, choice).tuned(KernelJob("k", task.func, later)).steps == choice.plan


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"default_nest": "another"}, "the default schedule is another one"),
        ({"nest": "another"}, "lead to another loop nest"),
        ({"steps": '[["split", ["gone", 4, ["a", "b"]]]]'}, "no loop 'gone'"),
        ({"steps": '[["vanish", []]]'}, "no such primitive"),
        ({"steps": "not json"}, "not a schedule"),
    ],
)
def test_a_record_that_no_longer_holds_is_not_used(task, choice, change, reason, caplog):
    found = records(task, replace(choice, **change))
    with caplog.at_level(logging.INFO, logger="dlc.tune"):
        assert found.tuned(job(task)).steps is None
    assert reason in caplog.text


def test_a_record_of_this_very_compiler_is_trusted(task, choice):
    found = records(task, replace(choice, default_nest="?", versions=versions()))
    assert found.tuned(job(task)).steps is not None


def test_only_what_won_alone_and_in_a_model_is_used(task, choice):
    for change in ({"speedup": 0.99}, {"model_speedup": 1.0}, {"model_speedup": 0.0}):
        found = records(task, replace(choice, **change))
        assert len(found) == 0
        assert found.tuned(job(task)).steps is None


def test_records_are_found_where_they_lie(task, choice, tmp_path):
    model = tmp_path / "m.onnx"
    assert find_records("none", model) == Records()
    assert find_records("auto", model) == shipped_records()
    with TuningLog(default_log(model)) as log:
        log.add_task(task)
        log.add_choice(choice)
        with (tmp_path / "m.jsonl").open("w") as out:
            export_log(log, out)
    expected = {task.key: choice}
    for source in (default_log(model), tmp_path / "m.jsonl", str(default_log(model))):
        assert find_records(source).choices == expected
    assert find_records("auto", model).choices[task.key] == choice
    assert task.key not in find_records("auto").choices
    with tuning.apply_best(default_log(model)) as found:
        assert find_records("auto") == found == tuning.load(default_log(model))
        assert find_records("none") == Records()
    assert find_records("auto") == shipped_records()
    with pytest.raises(UserError, match="no such log"):
        load_records(tmp_path / "none.db")
    with pytest.raises(UserError, match="No such file"):
        load_records(tmp_path / "none.jsonl")


@pytest.mark.parametrize("damage", ["cut", "empty", "junk"])
def test_a_log_that_nobody_named_does_not_stop_a_build(task, choice, tmp_path, caplog, damage):
    model = tmp_path / "m.onnx"
    log = default_log(model)
    with TuningLog(log) as written:
        written.add_task(task)
        written.add_choice(choice)
    content = {"cut": log.read_bytes()[:5000], "empty": b"", "junk": b"junk" * 500}[damage]
    log.write_bytes(content)
    assert find_records("auto", model) == shipped_records()
    assert str(log) in caplog.text
    assert "the build goes on without it" in caplog.text
    with pytest.raises(UserError) as caught:
        find_records(log)
    assert caught.value.hint
    assert log.read_bytes() == content


def test_later_records_win_and_some_can_be_picked(task, choice):
    better = replace(choice, speedup=3.0)
    both = records(task, choice) | records(task, better)
    assert both.choices == {task.key: better}
    assert both.only([]).choices == {}
    assert both.only([task.key, "other"]) == both


def test_a_schedule_that_lost_says_nothing_against_one_that_won(task, choice, tmp_path):
    lost = replace(choice, nest="another", model_speedup=0.0, made_at=9.0)
    later = replace(choice, speedup=1.7, made_at=10.0)
    path = tmp_path / "m.tune.db"
    with TuningLog(path) as log:
        log.add_task(task)
        for verdict, now in ((lost, lost), (choice, choice), (replace(lost, made_at=8.0), choice)):
            log.add_choice(verdict)
            assert log.choices() == {task.key: now}
        with (tmp_path / "m.jsonl").open("w") as lines:
            export_log(log, lines)
            write_lines([choice, lost], lines)
        assert load_records(tmp_path / "m.jsonl").choices == log.choices()
        log.add_choice(later)
        assert log.choices() == {task.key: later}
    shipped, mine = records(task, choice), records(task, lost)
    assert (shipped | mine).choices == shipped.choices
    assert (mine | shipped).choices == shipped.choices
    assert (shipped | records(task, later)).choices == {task.key: later}


def test_a_model_is_built_with_records(tmp_path):
    model = perceptron()
    (weighted,) = plan_tuning([model], dims={"batch": 32}).tasks
    found = records(weighted.task, choice_for(weighted.task))
    plain = build(model, tmp_path / "a.so", dims={"batch": 32}, tuning="none")
    tuned = build(model, tmp_path / "b.so", dims={"batch": 32}, tuning=found)
    assert (plain.tuned, tuned.tuned) == (0, 1)
    x = np.arange(160, dtype=np.float32).reshape(32, 5) % 7
    results = [dlc.load(tmp_path / name)(x) for name in ("a.so", "b.so")]
    np.testing.assert_array_equal(*results)
    events = []
    dlc.compile(model, dims={"batch": 32}, tuning=found, progress=events.append)
    assert [e.detail for e in events if e.stage == "tuning"] == ["records for 1 of 1 kernel"]


def test_shipped_records_can_be_read():
    found = shipped_records()
    assert set(found.choices) <= set(found.tasks)
