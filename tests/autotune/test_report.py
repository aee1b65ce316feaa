import json
import re
from dataclasses import replace

import pytest

from dlc.autotune.decision import Decision
from dlc.autotune.log import TuningLog
from dlc.autotune.record import Status
from dlc.autotune.report import TaskSummary, render_report, summarize
from dlc.core.fork import Fork
from tests.autotune import examples

pytest.importorskip("plotly")
TASK = examples.matmul(target=examples.OTHER)


def trials():
    made = [examples.trial(TASK, n) for n in range(8)]
    times = (400, 100, 300, 50)
    for n, time in enumerate(times):
        predicted = None if n == 0 else 6.0 - time / 50
        made[n] = replace(made[n], times_ns=(time,), anchor_ns=(200,), predicted=predicted)
    for n in range(4, 8):
        made[n] = replace(made[n], status=Status.WRONG if n < 6 else Status.TIMEOUT, times_ns=())
    return made


def test_a_report_holds_the_curves_and_what_failed(tmp_path):
    odd = replace(examples.scale(target=examples.OTHER))
    with TuningLog(tmp_path / "a.db") as log:
        for task in (odd, TASK):
            log.add_task(task)
        for trial in trials():
            log.add_trial(trial)
        log.add_choice(examples.choice(TASK))
        found = summarize(log)
    assert [s.task.name for s in found] == ["matmul", "scale"]
    assert found[0].curve == [1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 4.0, 4.0]
    assert found[0].failures == {"timeout": 2, "wrong": 2}
    assert found[0].predicted == [(16.0, 2.0), (1.0, pytest.approx(2 / 3)), (32.0, 4.0)]
    assert found[0].default_ns == 200
    assert found[1].default_ns is None
    assert found[0].correlation is None  # of three trials
    html = render_report(found, "title <&>", corrupt=2)
    assert "<title>title &lt;&amp;&gt;</title>" in html
    assert "2 tasks, 8 trials; 2 damaged rows" in html
    assert html.count("timeout 2, wrong 2") == 2  # of all tasks, and of one
    assert "<td>200 ns</td>" in html
    assert "Measured on x86_64, 1 cores" in html
    figures = re.findall(r'\["(curves|predictions)", (\{.*?\}\})\]', html)
    data = {name: json.loads(text)["data"] for name, text in figures}
    assert data["curves"][0]["y"] == found[0].curve
    assert data["predictions"][0]["x"] == [16.0, 1.0, 32.0]
    assert data["predictions"][1]["x"] == data["predictions"][1]["y"] == [2 / 3, 32.0]  # exact
    assert "https://cdn" not in html.split("</script>")[-2]


def test_a_report_says_which_ways_won_and_lost():
    fork = Fork("engine", 1, "def fork():", TASK.target, "highest", ("vectors", "matrix"), "matrix")
    won = Decision(fork, "vectors", 1.25, 1.0625)
    verdicts = (replace(won, speedup=0.5, model_speedup=0.0), replace(won, model_speedup=0.0), won)
    html = render_report([], "title", 0, verdicts)
    _, *rows = (
        html.split("<h2>Ways through the graph</h2>")[1].split("</table>")[0].split("<tr>")[1:]
    )
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    assert cells == [
        ["engine of", "vectors", "matrix", "1.25×", "1.06×", "won"],
        ["engine of", "vectors", "matrix", "1.25×", "–", "lost in the model"],
        ["engine of", "vectors", "matrix", "0.50×", "–", "slower"],
    ]
    assert "Ways through" not in render_report([], "title")


def test_tasks_of_one_name_are_told_apart_and_too_many_are_not_drawn():
    tasks = [examples.matmul(m, target=examples.OTHER) for m in range(2, 20)]
    found = [
        TaskSummary(task, tuple(examples.trial(task, n) for n in range(3)), None) for task in tasks
    ]
    html = render_report(found, "many")
    assert "Of the 16 tasks tried most." in html
    assert f'"matmul {tasks[3].key[:6]}"' in html
    assert html.count('"mode": "lines"') == 16


def test_an_empty_log_has_a_report():
    assert "0 tasks, 0 trials" in render_report([], "empty")
