"""Ways at forks of the graph: kept, exchanged, and used by builds only where they belong."""

import io
import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc.autotune.apply import Records, load_records
from dlc.autotune.decision import Decision, best_decisions, decision_from_json
from dlc.autotune.exchange import export_log, import_lines, merge_logs
from dlc.autotune.log import SCHEMA_VERSION, TuningLog
from dlc.compiler import build
from dlc.core.errors import UserError
from dlc.core.fork import Fork, Way
from dlc.core.target import Target
from dlc.core.target_parse import parse_target
from dlc.lowering import lower_model
from tests.autotune import examples
from tests.cli.models import model

FORK = Fork(
    "winograd", 1, "def fork()", examples.OTHER, "highest", ("a", "b", "c"), "a", (1.0, 2.0, 3.0)
)
WON = Decision(FORK, "b", 1.2, 1.1, 5.0, (("dlc", "0.1.0"),))
LOST = replace(WON, option="c", model_speedup=0.0)
DATA = Path(__file__).parent / "data"
WIDE = Target(features=frozenset({"avx512f", "fma", "avx2"}), l2_bytes=1 << 20)


def test_decisions_survive_json_and_a_log(tmp_path):
    again = decision_from_json(WON.to_json() | {"later": 1})
    assert (again, again.digest) == (WON, WON.digest)
    with TuningLog(tmp_path / "a.db") as log:
        for decision in (WON, LOST, WON):
            log.add_decision(decision)
    with TuningLog(tmp_path / "a.db", read_only=True) as log:
        assert list(log.decisions()) == [WON, LOST]
    found = load_records(tmp_path / "a.db")
    assert found.ways.ways == {FORK.key: Way("b", "a")}
    for data in ({}, {"fork": {}}, WON.to_json() | {"speedup": "fast"}, {"fork": [], "option": 3}):
        with pytest.raises(UserError, match="not a"):
            decision_from_json(data)


def test_a_decision_holds_whatever_an_engine_took_when_it_was_made():
    ways = Records(decisions={FORK.key: WON}).ways
    later = replace(FORK, target=replace(FORK.target, tile_cycles=45))
    assert ways.option(later) == "b"
    assert ways.option(replace(later, default="c")) == "c"  # which was not what b was better than


def test_what_lost_takes_nothing_back():
    better = replace(WON, option="c", model_speedup=1.3)
    assert best_decisions([LOST, WON, LOST]) == {FORK.key: WON}
    assert best_decisions([WON, better]) == {FORK.key: better}
    first, second = (Records(decisions={FORK.key: d}) for d in (WON, LOST))
    assert (first | second).decisions == {FORK.key: WON}
    assert (second | first).decisions == {FORK.key: WON}
    assert not second.ways
    assert first.holding().decisions == {FORK.key: WON}
    assert not second.holding().decisions
    assert not first.only(["other"]).decisions


def test_decisions_travel_as_lines_and_from_log_to_log(tmp_path):
    with TuningLog(tmp_path / "a.db") as log:
        log.add_decision(WON)
        log.add_decision(LOST)
        text, best = io.StringIO(), io.StringIO()
        assert export_log(log, text) == 2
        assert export_log(log, best, choices_only=True) == 1
    with TuningLog(tmp_path / "b.db") as log:
        assert import_lines(log, text.getvalue().splitlines()) == (2, 0)
        assert list(log.decisions()) == [WON, LOST]
    with TuningLog(tmp_path / "c.db") as log:
        assert merge_logs(log, [tmp_path / "a.db", tmp_path / "b.db"]) == 0
        assert list(log.decisions()) == [WON, LOST]
    (tmp_path / "best.jsonl").write_text(best.getvalue())
    assert load_records(tmp_path / "best.jsonl").decisions == {FORK.key: WON}


def test_a_log_of_the_first_format_has_none_and_gets_room_for_them(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "log-1.sql").read_text())
    with TuningLog(path, read_only=True) as log:
        assert list(log.decisions()) == []
        assert log.corrupt == 0
    with TuningLog(path) as log:
        log.add_decision(WON)
        assert not log.pending
    assert load_records(path).decisions == {FORK.key: WON}
    assert len(load_records(path).tasks) == 1


def test_the_second_format_is_still_read(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as db:
        db.executescript((DATA / "log-2.sql").read_text())
    for read_only in (True, False):
        with TuningLog(path, read_only=read_only) as log:
            (decision,) = log.decisions()
            assert (decision.option, decision.way.default) == ("b", "a")
            assert decision.is_better
            assert [t.speedup for t in log.trials()] == [2.0]
            assert log.corrupt == 0
    assert SCHEMA_VERSION == 2, "keep a log of each format"


def convolution(channels=48, pixels=14):
    """Of few enough channels that one tile of Winograd's is accurate, and exact."""
    w = np.random.default_rng(0).integers(-3, 4, (channels, channels, 3, 3)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    shape = (1, channels, pixels, pixels)
    return model([node], ["x"], ["y"], [numpy_helper.from_array(w, "w")], shape, shape)


def test_lowering_takes_the_way_that_won_and_no_other():
    source = convolution()
    (fork,) = [f for f in lower_model(source, WIDE, lists_forks=True).forks if f.kind == "winograd"]
    (other,) = fork.others
    won = Decision(fork, other, 1.2, 1.1)
    default = lower_model(source, WIDE)
    assert default.forks == ()
    changed = lower_model(source, WIDE, choices=Records(decisions={won.key: won}).ways)
    assert changed.decided == 1
    assert str(changed.program) != str(default.program)
    for unlike in (
        replace(won, model_speedup=0.0),
        replace(won, fork=replace(fork, version=99)),
        replace(won, fork=replace(fork, target=replace(WIDE, l1_bytes=1 << 14))),
        replace(won, fork=replace(fork, default=other), option=fork.default),
        replace(won, option="sideways"),
    ):
        records = Records(decisions={unlike.key: unlike})
        found = lower_model(source, WIDE, choices=records.ways)
        assert str(found.program) == str(default.program)
        assert found.decided == 0


def test_a_build_with_a_way_of_its_own_gives_the_same_results(tmp_path):
    source = convolution()
    target = examples.native()
    forks = lower_model(source, target, lists_forks=True).forks
    own = [f for f in forks if f.kind == "winograd"]
    decisions = [Decision(f, f.others[0], 1.2, 1.1) for f in dict.fromkeys(own)]
    records = Records(decisions={d.key: d for d in decisions})
    events = []
    build(source, tmp_path / "a.so", target, tuning="none")
    build(source, tmp_path / "b.so", target, tuning=records, progress=events.append)
    details = [e.detail for e in events if e.stage == "tuning"]
    count = len(decisions)
    if count:  # a machine with vectors of other sizes may have nothing to decide
        ways = f"{count} way{'s' * (count > 1)} through the graph"
        assert [d.split(", ")[1] for d in details] == [ways]
    x = np.random.default_rng(1).integers(-3, 4, (1, 48, 14, 14)).astype(np.float32)
    one, two = (dlc.load(tmp_path / name)(x) for name in ("a.so", "b.so"))
    np.testing.assert_array_equal(one, two)


def test_engines_are_chosen_for_machines_that_are_elsewhere(tmp_path):
    source, target = convolution(64), parse_target("llvm -mcpu=sapphirerapids -num-cores=2")
    forks = lower_model(source, target, lists_forks=True).forks
    (fork,) = [f for f in forks if f.kind == "engine"]
    assert fork.default == "matrix"
    won = Decision(fork, "vectors", 1.2, 1.1)
    texts = []
    for name, tuning in (("a.so", Records()), ("b.so", Records(decisions={won.key: won}))):
        lowered = lower_model(source, target, choices=tuning.ways)
        texts.append(str(lowered.program))
        assert build(source, tmp_path / name, target, tuning=tuning).kernels
    assert "bf16" in texts[0]
    assert "bf16" not in texts[1]
