"""Candidates in processes of their own, good ones and bad ones."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dlc.autotune import job as jobs
from dlc.autotune.bench_method import Method
from dlc.autotune.bench_trial import Prepared
from dlc.autotune.confine import Limits, confined
from dlc.autotune.design import Design, families
from dlc.autotune.evict import eviction_task
from dlc.autotune.executor import SEAT, WorkerPool
from dlc.autotune.guarded import Guarded, why_different
from dlc.autotune.job import Anchor
from dlc.autotune.record import Status
from dlc.autotune.station import Station, piece_name
from dlc.autotune.task import make_task
from dlc.autotune.trial_program import _program, compile_candidate, interface, make_artefact
from dlc.autotune.worker import LOST, Worker, local_command
from dlc.core.errors import UserError
from dlc.core.target import Target
from dlc.schedule.interpret import run_func
from dlc.schedule.loop import Buffer
from dlc.schedule.text import parse_func
from dlc.schedule.verify_program import verify_program
from dlc.te.types import TensorType
from tests.autotune import examples

METHOD = Method(rounds=3)
OK = {"status": "ok"}
IN_PLACE = """
@in_place(out="a")
def scaled(a: f32[5, 7], b: f32[7], *, out: f32[5, 7]):
    for i in range(5):
        for j in range(7):
            out[i, j] = a[i, j] * 2.0 + b[j]
"""
BAD = {
    "far": "out[i + 1000000000000] = x[i]",
    "near": "out[i + 40] = x[i]",
    "before": "out[i - 3] = x[i]",
    "wrong": "out[i] = x[i] + (1.0 if i == 39 else 0.0)",
    "none": "if 40 < i:\n            out[i] = x[i]",
}
COPY = "def copy(x: f32[40], *, out: f32[40]):\n    for i in range(40):\n        {}\n"


@pytest.fixture(scope="module")
def worker():
    worker = Worker()
    yield worker
    worker.close()


def ok(reply):
    assert reply.data["status"] == "ok", reply.data
    return reply


def anchor_of(worker, task):
    return Anchor(*(ok(worker.ask(job)).blobs[0] for job in jobs.build_anchor(task)))


def copy_task():
    return make_task(parse_func(COPY.format("out[i] = x[i]")), examples.native())


def fake(text):
    """An artefact of the copy task that does something else."""
    task = copy_task()
    return make_artefact(task, compile_candidate(parse_func(text), task.target))


@pytest.mark.parametrize("make", [examples.matmul, examples.softmax, examples.scale])
def test_the_default_is_right_and_is_timed(worker, make):
    task = make()
    anchor = anchor_of(worker, task)
    assert anchor.default != anchor.reference
    for method in (METHOD, Method(cache="warm", rounds=4, threads=2, budget_seconds=5)):
        data = ok(worker.ask(jobs.measure(task, anchor.default, anchor, method))).data
        assert len(data["times_ns"]) == len(data["anchor_ns"]) >= 2
        assert min(data["times_ns"]) > 0


def test_a_result_may_take_the_place_of_an_operand(worker):
    task = make_task(parse_func(IN_PLACE), examples.native())
    assert [b.name for b in interface(task)[0]] == ["b"]
    anchor = anchor_of(worker, task)
    ok(worker.ask(jobs.measure(task, anchor.default, anchor, METHOD)))


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("far", Status.CRASH, "SIGSEGV"),
        ("near", Status.CRASH, "SIGSEGV"),
        ("before", Status.WRONG, "bytes before 'out'"),
        ("wrong", Status.WRONG, "1 of 40 elements"),
        ("none", Status.WRONG, "40 of 40 elements"),
    ],
)
def test_a_bad_candidate_is_found_out(worker, name, status, detail):
    task = copy_task()
    anchor = anchor_of(worker, task)
    artefact = fake(COPY.format(BAD[name]))
    data = worker.ask(jobs.measure(task, artefact, anchor, METHOD)).data
    assert data["status"] == status
    assert detail in data["detail"]
    # The same worker goes on.
    ok(worker.ask(jobs.measure(task, anchor.default, anchor, METHOD)))
    assert worker.restarts == 0


def test_a_candidate_that_crashed_is_replaced_at_once(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    crash = jobs.measure(task, fake(COPY.format(BAD["far"])), anchor, METHOD)
    good = jobs.measure(task, anchor.default, anchor, METHOD)
    ok(worker.ask(good))  # what all candidates of the task share is made once
    seconds = []
    for _ in range(5):  # the least: others work on this machine, too
        began = time.monotonic()
        assert worker.ask(crash).data["status"] == Status.CRASH
        ok(worker.ask(good))
        seconds.append(time.monotonic() - began)
    assert min(seconds) < 0.2


def test_a_candidate_that_changes_its_input_is_found_out(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    text = "def copy(*, x: f32[40], out: f32[40]):\n    for i in range(40):\n"
    changes = fake(text + "        out[i] = 1.0\n        x[i] = 2.0\n")
    data = worker.ask(jobs.measure(task, changes, anchor, METHOD)).data
    assert (data["status"], data["detail"]) == (Status.CRASH, "SIGSEGV")


def test_a_candidate_that_never_ends_is_stopped(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    endless = "for j in range(1000000000000000):\n            out[i] = x[i]"
    job = jobs.measure(task, fake(COPY.format(endless)), anchor, METHOD, seconds=0.5)
    began = time.monotonic()
    assert worker.ask(job).data == {"status": "timeout", "detail": "no result in 0.5 s"}
    assert time.monotonic() - began < 5


def test_what_tasks_should_give_is_computed_once(monkeypatch):
    held = Station()
    pieces = [make_artefact(copy_task(), compile_candidate(copy_task().func, copy_task().target))]
    held.store(piece_name(pieces[0]), pieces[0])
    name = piece_name(pieces[0])
    data = dict.fromkeys(("anchor", "reference", "eviction"), name)
    data |= {"reference_seconds": 20, "memory_bytes": 1 << 30}
    tasks = [examples.scale(n) for n in (3, 5, 7)]
    monkeypatch.setattr("dlc.autotune.bench_trial.Prepared.compute_expected", lambda *_: OK)
    monkeypatch.setattr("dlc.autotune.bench_trial.Prepared.open_beside", lambda *_: None)
    made = [held.prepare(task, data) for task in tasks]
    assert [held.prepare(task, data) for task in tasks] == made
    monkeypatch.setattr("dlc.autotune.station._MAX_PREPARED_BYTES", made[2].nbytes)
    held.prepare(copy_task(), data)
    assert list(held.prepared.values())[:-1] == made[2:]


def test_a_candidate_far_slower_than_the_default_is_stopped_early(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    slow = fake(COPY.format("for j in range(1000000000):\n            out[i] = x[i]"))
    began = time.monotonic()
    data = worker.ask(jobs.measure(task, slow, anchor, METHOD, default_ns=1000.0, seconds=60)).data
    assert data == {"status": Status.SLOW, "detail": "far slower than the default"}
    assert time.monotonic() - began < 20
    ok(worker.ask(jobs.measure(task, anchor.default, anchor, METHOD, default_ns=1000.0)))


def test_few_runs_tell_that_a_candidate_is_slower(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    slower = fake(COPY.format("for j in range(3000):\n            out[i] = x[i]"))
    method = Method(cache="warm", rounds=25, budget_seconds=60)
    runs = {
        name: len(ok(worker.ask(jobs.measure(task, code, anchor, method))).data["times_ns"])
        for name, code in (("slower", slower), ("equal", anchor.default))
    }
    assert runs["slower"] == 2
    assert runs["equal"] >= 4


def test_a_candidate_that_eats_memory_is_stopped(worker):
    task = copy_task()
    anchor = anchor_of(worker, task)
    greedy = """
def copy(x: f32[40], *, out: f32[40]):
    big = alloc(f32[1000000000], "local")
    for i in range(40):
        big[i] = x[i]
    for k in range(40):
        out[k] = big[k]
"""
    data = worker.ask(jobs.measure(task, fake(greedy), anchor, METHOD)).data
    assert data["status"] == Status.MEMORY


def test_a_refused_schedule_and_a_broken_job_are_answers(worker):
    task = examples.matmul()
    reply = worker.ask(jobs.build_steps(task, '[["split", ["q", 4, ["a", "b"]]]]'))
    assert reply.data["status"] == Status.INVALID
    assert "no loop 'q'" in reply.data["detail"]
    assert worker.ask(jobs.Job({"job": "dance"})).data["status"] == "error"
    assert worker.ask(jobs.Job({"job": "build", "task": {}})).data["status"] == "error"


def test_a_candidate_whose_nest_is_known_is_not_compiled(worker):
    task = examples.matmul()
    family = families(task)[0]
    point = next(iter(family.space.points()))
    design = Design(family.name, tuple(point.items()))
    first = worker.ask(jobs.build_design(task, design, known=["another nest"]))
    assert len(first.blobs) == 1
    again = worker.ask(jobs.build_design(task, design, known=[first.data["nest"]]))
    assert again.blobs == ()
    assert {**again.data, "code": first.data["code"]} == first.data


def test_a_worker_that_dies_is_replaced():
    worker = Worker()
    try:
        pid = ok(worker.ask(jobs.Job({"job": "hello"}))).data["pid"]
        os.kill(pid, signal.SIGKILL)
        assert worker.ask(jobs.Job({"job": "hello"})).data["status"] == LOST
        assert ok(worker.ask(jobs.Job({"job": "hello"}))).data["pid"] != pid
        os.kill(worker.pid, signal.SIGSTOP)
        reply = worker.ask(jobs.Job({"job": "hello"}, seconds=0.3))
        assert reply.data["status"] == LOST
        assert "no answer in 0.3 s" in reply.data["detail"]
    finally:
        worker.close()
    assert worker.ask(jobs.Job({"job": "hello"})).data["status"] == LOST


def test_a_pool_answers_every_job_though_workers_die():
    workers = [Worker(name=str(n)) for n in range(2)]
    pool = WorkerPool(workers, speculate=True)
    try:
        assert pool.slots == 2
        killed = False
        seen = []
        for position, reply in pool.run([jobs.Job({"job": "hello"})] * 40):
            seen.append(position)
            assert reply.data["status"] == "ok"
            if not killed and workers[0].pid:
                killed = True
                os.kill(workers[0].pid, signal.SIGKILL)
        assert sorted(seen) == list(range(40))
        assert list(pool.run([])) == []
    finally:
        pool.close()


def test_jobs_of_one_affinity_go_to_one_worker_if_it_is_free():
    class Noted:
        def __init__(self):
            self.seen = []

        def start(self):
            pass

        def ask(self, job):
            self.seen.append(job.affinity)
            time.sleep(0.05)
            return jobs.Reply({"status": "ok"})

        def close(self):
            pass

    workers = [Noted(), Noted()]
    pool = WorkerPool(workers)
    try:
        for affinities, firsts in (([0, 1] * 4, [[0, 0], [1, 1]]), ([0] * 8, [[0, 0], [0, 0]])):
            work = [jobs.Job({"job": "hello"}, affinity=a) for a in affinities]
            answers = dict(pool.run(work))
            assert len(answers) == len(work)
            if len(set(affinities)) > 1:
                assert [answers[n].data[SEAT] for n in (0, 1)] == [0, 1]
            assert [w.seen[:2] for w in workers] == firsts
            for worker in workers:
                worker.seen.clear()
    finally:
        pool.close()


def test_a_slow_worker_holds_up_nobody():
    fast, slow = Worker(name="fast"), Worker(name="slow")
    pool = WorkerPool([fast, slow], speculate=True)
    try:
        for _ in pool.run([jobs.Job({"job": "hello"})] * 4):
            pass
        slow.start()
        os.kill(slow.pid, signal.SIGSTOP)
        began = time.monotonic()
        found = [p for p, r in pool.run([jobs.Job({"job": "hello"}, seconds=60)] * 6)]
        assert sorted(found) == list(range(6))
        assert time.monotonic() - began < 20
    finally:
        if slow.pid:
            os.kill(slow.pid, signal.SIGKILL)
        pool.close()


def test_workers_end_with_the_program_that_started_them():
    program = """
import os, sys, time
from dlc.autotune import job as jobs
from dlc.autotune.worker import Worker
worker = Worker()
print(worker.ask(jobs.Job({"job": "hello"})).data["pid"], flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        env=dict(os.environ, PYTHONPATH="."),
    )
    assert parent.stdout
    with contextlib.closing(parent.stdout):
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 5
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def test_a_worker_whose_parent_ended_before_it_began_ends_too():
    gone = "import os; print(os.getpid())"
    pid = subprocess.run([sys.executable, "-c", gone], capture_output=True, check=True).stdout
    start = local_command()
    start[start.index(str(os.getpid()))] = pid.decode().strip()
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as late:
        assert late.wait(20) == 1  # though its input is open


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_end_of_a_child_is_told():
    def die(number):
        os.kill(os.getpid(), number)
        return {}

    limits = Limits(seconds=5)
    assert confined(lambda: {"x": 1}, limits) == {"x": 1}
    for number in (signal.SIGILL, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT):
        found = confined(functools.partial(die, number), limits)
        assert found == {"status": "crash", "detail": signal.Signals(number).name}
    found = confined(lambda: os._exit(3), limits)
    assert found == {"status": "crash", "detail": "exit status 3"}
    found = confined(lambda: 1 / 0, limits)
    assert (found["status"], "ZeroDivisionError" in found["detail"]) == ("crash", True)
    found = confined(lambda: bytearray(1 << 40), limits)
    assert found["status"] == "memory"


def test_comparison_sees_what_matters():
    base = np.array([1.0, -2.0, np.nan, np.inf, 0.0], np.float32)
    assert why_different(base, base) == ""
    near = base.copy()
    near[0] = np.nextafter(near[0], np.float32(2))
    assert why_different(near, base) == ""
    for position, value in [(0, 1.001), (2, 0.0), (3, -np.inf), (3, 9.0), (4, np.nan)]:
        other = base.copy()
        other[position] = value
        assert "1 of 5 elements" in why_different(other, base)
    whole = np.array([1, 2], np.int64)
    assert why_different(whole + 1, whole)
    assert not why_different(whole, whole)


def test_arrays_lie_between_guards():
    guarded = Guarded(Buffer("x", TensorType((3, 5))))
    guarded.fill()
    assert guarded.array.shape == (3, 5)
    assert not guarded.was_overrun()
    guarded._raw[guarded._first - 1] = 0
    assert guarded.was_overrun()


def test_the_program_around_a_candidate_is_well_formed():
    for task in (examples.matmul(), examples.scale(17)):
        verify_program(_program(task), when="in a test")
    inputs, outputs = interface(examples.scale(17))
    assert inputs[0].type.static_shape == outputs[0].type.static_shape == (17,)


def test_a_method_of_timing_is_checked():
    with pytest.raises(UserError, match="lukewarm"):
        Method(cache="lukewarm")


def test_all_cores_read_other_data_before_each_run(worker, monkeypatch):
    target = Target(features=frozenset({"sse2"}), cores=3, l2_bytes=1 << 12)
    task = eviction_task(target)
    x = np.arange(128 * 8).reshape(128, 8)
    y = run_func(task.func, {}, {"x": x})["y"]
    assert y[:, 0].tolist() == [x[:, 0].sum()] * 3
    anchor = anchor_of(worker, copy_task())
    prepared = Prepared(copy_task())
    prepared.compute_expected(anchor.reference)
    prepared.open_beside(anchor.default, anchor.eviction)
    evictions = []
    monkeypatch.setattr(prepared, "evict", SimpleNamespace(run=lambda: evictions.append(1)))
    for cache, each in (("cold", 2), ("warm", 0)):
        evictions.clear()
        method = Method(rounds=3, cache=cache, threads=2)

        def measure(method=method):
            return prepared.measure(anchor.default, method) | {"n": len(evictions)}

        measured = confined(measure, Limits())
        assert measured["n"] == each * len(measured["times_ns"]), measured
