"""Workers elsewhere: by ssh, and on a dask cluster that runs on this machine."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dlc
from dlc.autotune import job as jobs
from dlc.autotune.apply import load_records
from dlc.autotune.bench_method import Method
from dlc.autotune.budget import Budget
from dlc.autotune.duel import LEAST_LIVES
from dlc.autotune.peer_version import check_peer
from dlc.autotune.record import Trial
from dlc.autotune.runners import open_machines, open_runners, ssh_command
from dlc.autotune.session import Options
from dlc.autotune.trial_program import compile_candidate, make_artefact
from dlc.compiler import build
from dlc.core.errors import UserError
from dlc.core.target_parse import parse_target
from dlc.schedule.text import parse_func
from tests.autotune import examples
from tests.cli.models import perceptron

ROOT = Path(__file__).parents[2]
HELLO = jobs.Job({"job": "hello"})


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """A command `ssh` that runs what it is given on this machine."""
    command = tmp_path / "ssh"
    command.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do shift; done\nshift\necho "$1" > "$0.host"\nshift 2\n'
        f'exec "{sys.executable}" -m dlc "$@"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return command


def test_another_machine_by_ssh_builds_and_measures(ssh):
    task = examples.matmul()
    pool = open_runners(["ssh://far.example", "local"])
    try:
        replies = dict(pool.run([HELLO] * 8))
        assert {r.data["status"] for r in replies.values()} == {"ok"}
        built = dict(pool.run(jobs.build_anchor(task)))
        anchor = jobs.Anchor(*(built[n].blobs[0] for n in range(3)))
        method = Method(rounds=3)
        work = [jobs.measure(task, anchor.default, anchor, method)] * 6
        assert [r.data["status"] for _, r in pool.run(work)] == ["ok"] * 6
    finally:
        pool.close()
    assert Path(f"{ssh}.host").read_text() == "far.example\n"
    assert ssh_command("h")[-3:] == ["dlc", "worker", "--stdio"]


def other_dlc(command, patch):
    """Let `ssh` start a dlc where some words of Python have come true."""
    start = f"{patch}; from dlc.cli import main; main()"
    command.write_text(
        "#!/bin/sh\n"
        'while [ "$1" != -- ]; do shift; done\nshift 3\n'
        f"exec '{sys.executable}' -c '{start}' \"$@\"\n"
    )


def test_a_machine_with_another_version_is_told_and_used(ssh, caplog):
    other_dlc(ssh, 'import dlc; dlc.__version__ = "9.8.7"')
    pool = open_runners(["ssh://far.example", "local"])
    try:
        assert [r.data["status"] for _, r in pool.run([HELLO] * 3)] == ["ok"] * 3
    finally:
        pool.close()
    told = [r.message for r in caplog.records if "9.8.7" in r.message]
    assert len(told) == 1
    assert "the machine far.example" in told[0]


def test_a_machine_that_is_asked_otherwise_is_refused(ssh):
    patch = 'import dlc; dlc.__version__ = "9.8.7"; import dlc.autotune.peer_version as p'
    other_dlc(ssh, f"{patch}; p.PROTOCOL += 1")
    before = children()
    with pytest.raises(UserError, match=r"the machine far.example has dlc 9\.8\.7") as caught:
        open_runners(["local", "ssh://far.example"])
    assert caught.value.hint == f"install dlc {dlc.__version__} there"
    assert children() <= before
    with pytest.raises(UserError, match="has dlc unknown"):
        check_peer("it", {"status": "error"})  # before there were versions


def test_a_machine_that_does_not_answer_is_told(ssh):
    ssh.write_text("#!/bin/sh\nexit 255\n")
    with pytest.raises(UserError, match=r"far\.example: ended: 255") as caught:
        open_runners(["ssh://far.example"])
    assert "ssh far.example dlc" in caught.value.hint


@pytest.mark.parametrize(
    "runner", ["", "ssh://", "ssh://-oProxyCommand=x", "telnet://host", "here", "run:"]
)
def test_a_runner_that_is_not_understood_is_refused(runner):
    with pytest.raises(UserError, match="not understood"):
        open_runners([runner])


def test_nobody_is_left_running_where_a_runner_is_refused():
    before = children()
    with pytest.raises(UserError, match="not understood"):
        open_machines(["nowhere"], jobs=1)
    deadline = time.monotonic() + 10
    while children() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert children() <= before


def children() -> set[str]:
    found = subprocess.run(
        ["ps", "-o", "pid=,stat=,comm=", "--ppid", str(os.getpid())],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line.split() for line in found.stdout.splitlines()]
    return {pid for pid, state, name in lines if not state.startswith("Z") and name != "ps"}


OTHER = "from dlc.autotune import peer_version\npeer_version.PROTOCOL += 1\n"


@pytest.fixture
def cluster(tmp_path, request):
    """The address of a dask scheduler, and its two workers; one loads the text of a parameter."""
    pytest.importorskip("distributed")
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    file = tmp_path / "scheduler.json"
    shared = ["--no-dashboard", "--scheduler-file", str(file)]

    def start(module, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", f"distributed.cli.{module}", *shared, *arguments],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=tmp_path,
        )

    running = [start("dask_scheduler", "--host", "127.0.0.1", "--port", "0")]
    deadline = time.monotonic() + 60
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    for number in range(2):
        arguments = ["--no-nanny", "--nthreads", "1", "--name", f"w{number}"]
        if number and hasattr(request, "param"):
            (tmp_path / "first.py").write_text(request.param)
            arguments += ["--preload", str(tmp_path / "first.py")]
        running.append(start("dask_worker", *arguments))
    yield file, running[1:]
    for process in reversed(running):
        process.kill()
        process.wait()


def dask_pool(cluster):
    """An executor over a cluster, once both workers are there."""
    from distributed import Client

    from dlc.autotune.dask_executor import DaskExecutor

    address = json.loads(cluster[0].read_text())["address"]
    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=60)
    return DaskExecutor(address)


@pytest.mark.slow
def test_a_dask_cluster_measures_though_a_worker_is_killed(cluster):
    workers = cluster[1]
    pool = dask_pool(cluster)
    try:
        assert pool.slots == 2
        task = examples.matmul()
        built = dict(pool.run(jobs.build_anchor(task)))
        anchor = jobs.Anchor(*(built[n].blobs[0] for n in range(3)))
        work = [jobs.measure(task, anchor.default, anchor, Method(rounds=3))] * 40
        seen = []
        for position, reply in pool.run(work):
            seen.append(position)
            assert reply.data["status"] == "ok", reply.data
            if len(seen) == 3:
                workers[0].send_signal(signal.SIGKILL)
            if len(seen) == 6:  # one that is far slower than the rest
                workers[1].send_signal(signal.SIGSTOP)
                time.sleep(0.5)
                workers[1].send_signal(signal.SIGCONT)
        assert sorted(seen) == list(range(40))
    finally:
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("cluster", [OTHER], ids=["other"], indirect=True)
def test_a_cluster_with_another_version_is_refused(cluster):
    with pytest.raises(UserError, match=r"the dask worker tcp://\S+ has dlc .* cannot be asked"):
        dask_pool(cluster)


def test_a_cluster_that_is_not_there_is_told():
    pytest.importorskip("distributed")
    with pytest.raises(UserError, match="measures alone"):
        open_runners(["dask://127.0.0.1:1", "local"])


CC, QEMU = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
ARM = parse_target("llvm -mtriple=aarch64-linux-gnu")


@pytest.mark.skipif(not (CC and QEMU), reason="no aarch64 cross compiler or no qemu")
def test_candidates_for_another_architecture_are_built_here_and_measured_there():
    task = examples.matmul(13, 37, 11, ARM)
    machines = open_machines(["run:qemu-aarch64 -L /usr/aarch64-linux-gnu"], jobs=1)
    try:
        built = dict(machines.build.run(jobs.build_anchor(task)))
        anchor = jobs.Anchor(*(built[n].blobs[0] for n in range(3)))
        wrong = copy_of(task, "max(acc[y, x], 1.0)")
        late = copy_of(task, "max(acc[y, x], 0.0)", y="y * 99999999")
        work = [
            jobs.measure(task, artefact, anchor, Method(rounds=3))
            for artefact in (anchor.default, wrong, late)
        ]
        replies = dict(machines.measure.run([*work, HELLO]))
    finally:
        machines.close()
    statuses = [replies[n].data["status"] for n in range(4)]
    assert statuses == ["ok", "wrong", "crash", "error"]
    assert len(replies[0].data["times_ns"]) == len(replies[0].data["anchor_ns"]) == 3
    assert "instead of" in replies[1].data["detail"]


@pytest.mark.skipif(not (CC and QEMU), reason="no aarch64 cross compiler or no qemu")
def test_models_for_another_architecture_are_raced_there(tmp_path):
    paths = (str(tmp_path / "a.so"), str(tmp_path / "b.so"))
    for path in paths:
        build(perceptron(), path, ARM, tuning="none")
    pool = open_runners(["run:qemu-aarch64 -L /usr/aarch64-linux-gnu"])
    sized = jobs.race(paths, sizes={"batch": 5}, threads=1, rounds=4, budget_seconds=8.0)
    try:
        ((_, reply),) = pool.run([sized])
        endless = {"rounds": 10**6, "budget_seconds": 60.0}
        ((_, late),) = pool.run([jobs.race(paths, sizes={}, threads=1, seconds=0.0, **endless)])
        ((_, gone),) = pool.run([jobs.race((paths[0], "gone.so"), sizes={}, threads=1)])
    finally:
        pool.close()
    lives = reply.data["lives"]
    assert (len(lives), {len(times) for life in lives for times in life}) == (LEAST_LIVES, {4})
    assert all(t > 0 for life in lives for times in life for t in times)
    assert [r.data["status"] for r in (late, gone)] == ["timeout", "crash"]
    assert "gone.so" in gone.data["detail"]


@pytest.mark.slow
@pytest.mark.skipif(not (CC and QEMU), reason="no aarch64 cross compiler or no qemu")
def test_a_model_is_tuned_here_for_a_machine_elsewhere(tmp_path, monkeypatch, caplog):
    # Each schedule counts as better here: what is asked is whether one reaches a build.
    monkeypatch.setattr(Trial, "speedup", property(lambda t: 2.0 if t.times_ns else 0.0))
    monkeypatch.setattr("dlc.autotune.confirm.LEAST_GAIN", 0.0)
    monkeypatch.setattr("dlc.autotune.duel.Duel.is_faster", True)
    monkeypatch.setattr("dlc.autotune.duel.Duel.speedup", 1.5)
    log = tmp_path / "m.tune.db"
    machines = open_machines(["run:qemu-aarch64 -L /usr/aarch64-linux-gnu"], jobs=1)
    options = Options(Budget(trials=8), method=Method(rounds=3))
    try:
        report = dlc.tune(
            perceptron(), log, ARM, dims={"batch": 40}, options=options, machines=machines
        )
    finally:
        machines.close()
    assert "cannot be raced" not in caplog.text
    assert report.found == len(report.choices) == 1
    (held,) = load_records(log).holding().choices.values()
    assert (held.model_speedup, held.nest != held.default_nest) == (1.5, True)


def copy_of(task, value, y="y"):
    """An artefact of a task that writes something else, or elsewhere."""
    text = task.text.replace("max(acc[y, x], 0.0)", value).replace("out[y, x]", f"out[{y}, x]")
    return make_artefact(task, compile_candidate(parse_func(text), task.target))
