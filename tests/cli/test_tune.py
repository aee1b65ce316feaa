from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rich.console import Console

from dlc.autotune.log import TuningLog
from dlc.autotune.session import Snapshot, TaskView, WayView
from dlc.cli.tune_display import _Screen, bar, open_display, plain_line, sparkline
from tests.cli.models import model

SNAPSHOT = Snapshot(
    tasks=(
        TaskView("conv_relu", "a" * 24, 2, 0.75, 96, 400_000.0, 200_000.0, 1.0, "flat"),
        TaskView("matmul", "b" * 24, 1, 0.25, 8, 300_000.0, 300_000.0, 0.3, "improving"),
        TaskView("later", "c" * 24, 1, 0.0, 0, float("inf"), float("inf"), 0.0, "waiting"),
    ),
    seconds=83.0,
    trials=104,
    resumed=640,
    failures={"timeout": 3, "wrong": 1},
    correlation=0.83,
    eta_seconds=517.0,
    spent=0.14,
)
TIMED = replace(
    SNAPSHOT,
    tasks=(*SNAPSHOT.tasks[:2], replace(SNAPSHOT.tasks[2], status="the default: SIGSEGV")),
)


def test_the_live_table():
    screen = _Screen("Tuning a.onnx · budget 10 min · log a.db")
    screen.render(replace(SNAPSHOT, tasks=SNAPSHOT.tasks[1:2]))
    out = io.StringIO()
    Console(file=out, width=100).print(screen.render(SNAPSHOT))
    lines = out.getvalue().splitlines()
    assert lines[0].endswith("(resumed, 640 old trials) · 3 tasks")
    assert lines[1].split() == ["task", "weight", "trials", "best", "vs", "default", "status"]
    assert lines[2].split() == [
        "conv_relu",
        "75.0%",
        "96",
        "200.00",
        "µs",
        "2.00×",
        "████████",
        "flat",
    ]
    assert lines[4].split() == ["later", "0", "waiting"]
    assert "elapsed 1:23  trials 104 (1.3/s)  failed 4 (timeout 3, wrong 1)" in lines[5]
    assert "model estimate ? (2 of 3 defaults timed)  " in lines[6]  # and no curve of a part
    assert len(screen.estimates) == 1
    assert "model estimate 1.10 ms → 700.00 µs" in screen._model(TIMED)
    assert "rank corr. 0.83   ETA 8:37" in lines[6]


def test_many_tasks_are_cut_to_the_busiest():
    views = tuple(replace(SNAPSHOT.tasks[0], name=f"t{n}", share=n / 1000) for n in range(30))
    out = io.StringIO()
    Console(file=out, width=100).print(_Screen("x").render(replace(SNAPSHOT, tasks=views)))
    assert "… and 10 more tasks" in out.getvalue()
    assert "t29" in out.getvalue()
    assert "t3 " not in out.getvalue()


def test_a_bar_has_eighths():
    assert [bar(x, 2) for x in (0.0, 1 / 16, 0.5, 11 / 16, 1.0)] == ["  ", "▏ ", "█ ", "█▍", "██"]


def test_a_curve_rises_as_times_fall():
    assert sparkline([5.0]) == ""
    assert sparkline([5.0, 5.0], 3) == "▁▁▁"
    assert sparkline([9.0, 8.0, 2.0], 3) == "▁▂█"


def test_plain_and_json_progress(capsys):
    assert "  model ? (2 of 3 defaults timed)  failed" in plain_line(SNAPSHOT)
    assert plain_line(TIMED) == (
        "1:23  trials 104 (1.3/s)  model 1.10 ms → 700.00 µs  failed 4 (timeout 3, wrong 1)  "
        "rank corr. 0.83  ETA 8:37"
    )
    out = io.StringIO()
    console = Console(file=out, width=200)
    with open_display("plain", console, "title") as show:
        for _ in range(3):  # too soon after each other
            show(SNAPSHOT)
        show(replace(SNAPSHOT, finished=True, trials=105))
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[1:2] for line in lines[:3]] == [
        [],
        ["trials 104 (1.3/s)"],
        ["trials 105 (1.3/s)"],
    ]
    assert "ETA" not in lines[2]
    assert [line.split()[0] for line in lines[3:]] == ["task", "conv_relu", "matmul", "later"]
    with open_display("jsonl", console, "title") as show:
        show(SNAPSHOT)
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "dlc.tune_progress/1"
    assert data["tasks"][2]["default_ns"] is None
    with open_display("none", console, "title") as show:
        show(SNAPSHOT)


def test_ways_through_the_graph_are_shown(capsys):
    ways = (
        WayView("fusion of conv relu f32[4]", "0", "1", None, "waiting"),
        WayView("engine of conv f32[4]", "matrix", "vectors", 1.25, "timed"),
        WayView("winograd of conv f32[4]", "direct", "tiles of 2 by 2", 0.7, "slower"),
    )
    alternative = replace(SNAPSHOT.tasks[1], is_alternative=True)
    shown = replace(SNAPSHOT, tasks=(SNAPSHOT.tasks[0], alternative), ways=ways)
    assert (shown.default_ns, shown.best_ns) == (800_000.0, 400_000.0)  # of what a run does now
    out = io.StringIO()
    Console(file=out, width=120).print(_Screen("title").render(shown))
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines if ": " in line] == ["engine", "winograd", "fusion"]
    (line,) = [line for line in lines if "engine" in line]
    assert line.split()[-3:] == ["vectors", "1.25×", "timed"]
    assert "improving (of another way)" in out.getvalue()
    out = io.StringIO()
    console = Console(file=out, width=120)
    with open_display("plain", console, "title") as show:
        show(replace(shown, finished=True))
    assert "winograd of conv f32[4]: direct" in out.getvalue()
    with open_display("jsonl", console, "title") as show:
        show(shown)
    assert json.loads(capsys.readouterr().out)["ways"][1]["option"] == "matrix"


def test_a_dry_run_lists_the_forks(files, dlc_main):
    w = np.ones((24, 24, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1] * 4),
        helper.make_node("Add", ["h", "x"], ["y"]),
    ]
    shape = (1, 24, 9, 11)
    constants = [numpy_helper.from_array(w, "w")]
    onnx.save(model(nodes, ["x"], ["y"], constants, shape, shape), files / "conv.onnx")
    code, out, _ = dlc_main("tune", "conv.onnx", "--dry-run", "--json")
    forks = json.loads(out)["forks"]
    assert code == 0
    assert {"fusion", "layout"} <= {fork["fork"].split()[0] for fork in forks}
    for fork in forks:
        assert fork["met"] == 1
        assert fork["taken"] == fork["default"]
        assert fork["default"] not in [other["way"] for other in fork["others"]]
    code, out, _ = dlc_main("tune", "conv.onnx", "--dry-run")
    assert "layout of conv f32[1, 24, 9, 11]" in " ".join(out.split())


def test_a_dry_run_measures_nothing(files, dlc_main):
    code, out, _ = dlc_main("tune", "mlp.onnx", "--dry-run")
    assert code == 0
    assert "matmul_packed_add_relu" in out
    assert "1 of 1 task to tune · budget 10 min" in out
    assert not (files / "mlp.tune.db").exists()
    code, out, _ = dlc_main("tune", "mlp.onnx", "--dry-run", "--json", "--budget", "7trials")
    assert json.loads(out)["budget"] == "7 trials"


def test_a_model_without_kernels_leaves_nothing_to_tune(files, dlc_main):
    text = helper.make_tensor_value_info
    x, y = (text(name, onnx.TensorProto.STRING, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "texts", [x], [y])
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), files / "texts.onnx")
    code, out, _ = dlc_main("tune", "texts.onnx", "--budget", "2trials")
    assert (code, out) == (0, "There is nothing to tune: a run calls no kernel.\n")
    assert dlc_main("tune", "texts.onnx", "--dry-run")[0] == 0
    code, out, _ = dlc_main("tune", "texts.onnx", "--json")
    assert (code, json.loads(out)["trials"]) == (0, 0)
    assert not list(files.glob("texts.tune.db*"))
    assert dlc_main("tune", "texts.onnx", "--tasks", "relu")[0] == 2


def test_a_search_its_log_and_its_next_session(files, dlc_main):
    command = ("tune", "mlp.onnx", "--dim", "batch=32", "--budget", "3trials", "--no-in-model")
    code, out, said = dlc_main(*command)
    assert (code, out.split(" in ")[0]) == (0, "3 trials")
    assert "Tuning mlp.onnx · budget 3 trials · log mlp.tune.db" in said
    code, out, _ = dlc_main(*command, "--json", "--progress", "none")
    document = json.loads(out)
    assert (code, document["resumed"], document["trials"]) == (0, 3, 3)
    with TuningLog(files / "mlp.tune.db") as log:
        assert len({t.knobs for t in log.trials()}) == 6
    code, out, _ = dlc_main("tune", "export", "mlp.tune.db")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert sum("trial" in line for line in lines) == 6
    (files / "all.jsonl").write_text(out + "a cut line")
    code, out, _ = dlc_main("tune", "merge", "other.db", "mlp.tune.db", "all.jsonl")
    assert (code, out) == (0, "other.db: 6 trials; 1 damaged row was passed over\n")
    code, out, _ = dlc_main("tune", "report", "other.db")
    assert (code, out) == (0, "Wrote other.html: 1 task, 6 trials\n")
    assert "matmul_packed_add_relu" in (files / "other.html").read_text()
    code, _, _ = dlc_main("tune", "export", "mlp.tune.db", "--choices", "-o", "c.jsonl")
    assert code == 0
    assert "trial" not in (files / "c.jsonl").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mlp.onnx", "--budget", "soon"], "budget 'soon'"),
        (["mlp.onnx", "--search", "dowsing"], "search 'dowsing'"),
        (["mlp.onnx", "--cost-model", "oracle"], "cost model 'oracle'"),
        (["mlp.onnx", "--cache", "lukewarm"], "cache mode 'lukewarm'"),
        (["mlp.onnx", "--progress", "loud"], "--progress 'loud' is unknown"),
        (["mlp.onnx", "--precision", "low"], "precision 'low' is unknown"),
        (["mlp.onnx", "--runner", "telnet://x"], "--runner 'telnet://x' is not understood"),
        (["mlp.onnx", "--tasks", "conv"], "there is no task 'conv'"),
        (["mlp.onnx", "--at", "seq=3"], "there is no open size 'seq' to measure at"),
        (["mlp.onnx", "--at", "batch=1..3"], "--at batch: a run needs one size"),
        (["none.onnx"], "none.onnx"),
        (["mlp.onnx", "-o", "no/log.db"], "there is no folder 'no'"),
        (["merge", "all.db", "none.jsonl"], "none.jsonl: No such file"),
        (["export", "none.db"], "there is no such log"),
    ],
)
def test_mistakes_are_explained(files, dlc_main, arguments, message):
    code, _, said = dlc_main("tune", *arguments)
    assert code in (2, 3)
    assert message in said.replace("\n", " ")
    assert "mistake in dlc" not in said


def test_a_log_that_cannot_be_exported_to_a_place(files, dlc_main):
    TuningLog(files / "empty.db").close()
    code, _, said = dlc_main("tune", "export", "empty.db", "-o", "no/log.jsonl")
    assert (code, "cannot write no/log.jsonl" in said) == (2, True)


@pytest.mark.parametrize("command", ["export", "report"])
def test_a_log_is_not_written_over_by_what_is_made_of_it(files, dlc_main, command):
    TuningLog(files / "empty.db").close()
    before = (files / "empty.db").read_bytes()
    code, _, said = dlc_main("tune", command, "empty.db", "-o", "./empty.db")
    assert (code, "it is the log" in said) == (2, True)
    assert (files / "empty.db").read_bytes() == before


def test_what_cannot_be_written_whole_leaves_what_was_there(files, dlc_main, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("dlc.autotune.exchange.export_log", fail)
    TuningLog(files / "empty.db").close()
    (files / "log.jsonl").write_text("what was there")
    code, _, said = dlc_main("tune", "export", "empty.db", "-o", "log.jsonl")
    assert (code, "cannot write log.jsonl: no space left" in said) == (2, True)
    assert (files / "log.jsonl").read_text() == "what was there"


@pytest.mark.parametrize("source", ["none.db", "none.jsonl", "mlp.onnx"])
def test_logs_that_cannot_be_read_make_no_log(files, dlc_main, source):
    TuningLog(files / "empty.db").close()
    assert dlc_main("tune", "merge", "all.db", "empty.db", source)[0] == 2
    assert not list(files.glob("all.db*"))


def test_a_runner_that_measures_nothing_is_an_error(files, dlc_main):
    arguments = ("--dim", "batch=32", "--runner", "run:false", "--budget", "2trials")
    code, _, said = dlc_main("tune", "mlp.onnx", *arguments)
    assert code == 5
    assert "nothing could be measured" in said.replace("\n", " ")


def test_a_worker_is_not_for_people(dlc_main):
    code, _, said = dlc_main("worker")
    assert (code, "dlc worker --stdio" in said) == (2, True)


def test_ctrl_c_keeps_what_was_measured(files):
    root = Path(__file__).parents[2]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = numpy_helper.from_array(np.ones((160, 208), np.float32), "w")
    large = model([node], ["x"], ["y"], [weights], ("batch", 160), ("batch", 208))
    onnx.save(large, files / "large.onnx")  # its space lasts longer than the test
    command = [sys.executable, "-m", "dlc", "tune", "large.onnx", "--progress", "jsonl"]
    running = subprocess.Popen(
        [*command, "--dim", "batch=33", "--budget", "10m"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(root)),
        # A shell starts what it runs in the background with interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert running.stdout
    for line in running.stdout:
        if json.loads(line)["trials"] >= 2:
            break
    running.send_signal(signal.SIGINT)
    began = time.monotonic()
    rest = running.stdout.read()
    assert running.wait() == 130
    running.stdout.close()
    assert time.monotonic() - began < 30
    assert "resume with the same command" in rest
    with TuningLog(files / "large.tune.db") as log:
        assert len(list(log.trials())) >= 2
    assert not [p for p in files.iterdir() if p.name.startswith(".")]
