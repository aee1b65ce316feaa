"""Compiling the kernels of a model: equal ones once, from the cache, in worker processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dlc.codegen.export import export_library
from dlc.codegen.llvm import compile_task, pool, worker
from dlc.codegen.llvm.compile import compile_ir
from dlc.codegen.llvm.compile_task import KernelTask, attempt
from dlc.codegen.llvm.host import emit_program
from dlc.codegen.llvm.pool import Pool, shared_pool
from dlc.codegen.llvm.worker import KernelJob, compile_kernels, start_workers
from dlc.core.cache import Cache
from dlc.core.errors import CodegenError, InternalError, ScheduleError
from dlc.core.manifest import Manifest
from dlc.core.target_parse import parse_target
from dlc.schedule.primitive import Step
from dlc.schedule.program import CallKernel, Program, SizeVar
from dlc.schedule.text import canonical_text, parse_func
from dlc.te.text import parse_expr
from tests.codegen.model_driver import Loaded, buffer, program

NATIVE = parse_target("native")
SCALE = """
def {name}({n}: size, {x}: f32[{n}], *, {y}: f32[{n}]):
    for {i} in range({n}):
        {y}[{i}] = {x}[{i}] * {factor}
"""


def scale(name="scale", factor=2.0, n="n", x="x", y="y", i="i"):
    return parse_func(SCALE.format(name=name, factor=factor, n=n, x=x, y=y, i=i).strip())


def job(func, steps=None):
    return KernelJob(func.name, func, NATIVE, steps)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture(scope="module", autouse=True)
def end_of_workers():
    yield
    if pool._shared:
        pool._shared.close()
        pool._shared = None


def test_names_do_not_count():
    assert canonical_text(scale()) == canonical_text(scale("other", n="m", x="y", y="x", i="k"))
    assert canonical_text(scale()) != canonical_text(scale(factor=3.0))


def test_swapped_buffers_count():
    first = parse_func("def f(x: f32[4], y: f32[4], *, z: f32[4]):\n    z[0] = x[0] - y[0]\n")
    second = parse_func("def f(x: f32[4], y: f32[4], *, z: f32[4]):\n    z[0] = y[0] - x[0]\n")
    assert canonical_text(first) != canonical_text(second)


def test_equal_kernels_are_compiled_once(cache, monkeypatch):
    compiled = []

    def count(task):
        compiled.append(task.func.name)
        return b"object of " + task.symbol.encode()

    monkeypatch.setattr(pool, "_shared", None)
    monkeypatch.setattr(worker, "attempt", count)
    events = []
    found = compile_kernels(
        [job(scale("a")), job(scale("b", 3.0)), job(scale("c", x="given"))],
        cache=cache,
        progress=lambda *event: events.append(event),
    )
    assert [kernel.name for kernel in found] == ["a", "b", "c"]
    assert found[0].symbol == found[2].symbol != found[1].symbol
    assert all(kernel.code == b"object of " + kernel.symbol.encode() for kernel in found)
    assert compiled == ["a", "b"]
    assert events == [("a", 2, 3), ("b", 3, 3)]
    # Now all of them come from the cache, whatever they are called.
    assert compile_kernels([job(scale("d", 3.0))], cache=cache)[0].code == found[1].code
    assert compiled == ["a", "b"]


@pytest.mark.parametrize(
    "other",
    [
        job(scale(), (Step("split", ("i", 4, ("io", "ii"))),)),
        KernelJob("scale", scale(), replace(NATIVE, features=frozenset({"sse3"}))),
        KernelJob("scale", scale(), parse_target("native -num-cores=77")),
    ],
)
def test_the_target_and_the_steps_count(other):
    assert worker._key(other) != worker._key(job(scale()))


def test_given_steps_replace_those_of_the_rule(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("DLC_DUMP", str(tmp_path))
    compile_kernels([job(scale(), (Step("split", ("i", 24, ("io", "ii"))),))], cache=cache)
    assert "for ii in range(24)" in (tmp_path / "scale.loop.txt").read_text()
    with pytest.raises(ScheduleError, match="no loop 'j'"):
        compile_kernels([job(scale(), (Step("parallel", ("j",)),))], cache=cache)


def test_another_compiler_has_another_key(monkeypatch):
    before = worker._key(job(scale()))
    monkeypatch.setattr(worker, "codegen_version", lambda: "another one")
    assert worker._key(job(scale())) != before


def test_the_version_of_the_compiler_covers_its_source(tmp_path, monkeypatch):
    (tmp_path / "te").mkdir()
    monkeypatch.setattr(worker, "_PACKAGE", tmp_path)
    versions = set()
    for text in ("a", "b"):
        (tmp_path / "te" / "expr.py").write_text(text)
        versions.add(worker.codegen_version.__wrapped__())
    assert len(versions) == 2


def check_scales(tmp_path: Path, cache: Cache, factors, **options):
    """Build a program with one kernel for each factor, run it and compare."""
    funcs = [scale(f"by_{i}", factor) for i, factor in enumerate(factors)]
    kernels = compile_kernels([job(f) for f in funcs], cache=cache, **options)
    size = (parse_expr("n"),)
    calls = [CallKernel(f.name, size, ("x", f"y{i}")) for i, f in enumerate(funcs)]
    outputs = [buffer(f"y{i}", "n") for i in range(len(funcs))]
    prog: Program = program(
        calls, sizes=[SizeVar("n")], inputs=[buffer("x", "n")], outputs=outputs, kernels=funcs
    )
    host = emit_program(prog, NATIVE, {k.name: k.symbol for k in kernels})
    objects = [compile_ir(host, NATIVE), *(k.code for k in kernels)]
    path = tmp_path / "m.so"
    export_library(prog, {}, objects, Manifest("test", NATIVE.arch), path, NATIVE)
    x = np.arange(37, dtype=np.float32)
    found = [np.zeros_like(x) for _ in funcs]
    Loaded(path).run([37], [x], found)
    for y, factor in zip(found, factors, strict=True):
        np.testing.assert_array_equal(y, x * np.float32(factor))


def test_few_kernels_compile_in_this_process(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(pool, "_shared", None)
    check_scales(tmp_path, cache, [2.0, 3.0, 2.0, 2.0])
    assert not pool.is_running()


def test_few_kernels_use_workers_that_run(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(worker, "attempt", None)
    start_workers(2)
    assert pool.is_running()
    check_scales(tmp_path, cache, [2.0, 3.0], jobs=2)


def test_many_kernels_compile_in_workers(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(worker, "attempt", None)
    start_workers(2)
    check_scales(tmp_path, cache, [1.0, 2.0, 3.0, 4.0, 5.0, 1.0], jobs=2)
    assert cache.info().entries == 5


def test_one_job_needs_no_workers(tmp_path, cache, monkeypatch):
    monkeypatch.setattr(worker, "shared_pool", None)
    start_workers(1)
    check_scales(tmp_path, cache, [1.0, 2.0, 3.0, 4.0], jobs=1)


def test_a_dump_shows_every_kernel(tmp_path, cache, monkeypatch):
    compile_kernels([job(scale())], cache=cache)
    monkeypatch.setenv("DLC_DUMP", str(tmp_path / "dump"))
    compile_kernels([job(scale())], cache=cache)
    names = {path.name for path in (tmp_path / "dump").iterdir()}
    assert names == {"scale.loop.txt", "scale.ll", "scale.s"}
    assert "def scale(" in (tmp_path / "dump" / "scale.loop.txt").read_text()


def test_logs_tell_of_kernels_that_are_in_the_cache(cache, monkeypatch):
    compiled: list[int] = []

    def nothing(tasks, jobs):
        compiled.append(len(tasks))
        return ()

    monkeypatch.setattr(worker, "_compile", nothing)
    cache.put(worker._key(job(scale())), b"code")
    for topics in ("tune", "schedule"):
        monkeypatch.setenv("DLC_LOG", topics)
        with contextlib.suppress(KeyError):  # nothing is compiled, so there is no object
            compile_kernels([job(scale())], cache=cache)
    assert compiled == [0, 1]


def test_workers_are_told_the_topics_that_there_are(cache, monkeypatch):
    """What is none this process has said."""
    told: list[frozenset[str]] = []

    def nothing(tasks, jobs):
        told.extend(task.topics for task in tasks)
        return ()

    monkeypatch.setattr(worker, "_compile", nothing)
    monkeypatch.setenv("DLC_LOG", "schedule,nothing_of_that_name")
    with contextlib.suppress(KeyError):  # nothing is compiled, so there is no object
        compile_kernels([job(scale())], cache=cache)
    assert told == [{"schedule"}]


@pytest.mark.parametrize(("name", "value"), [("frozen", True), ("executable", None)])
def test_a_program_that_cannot_start_python_compiles_alone(
    tmp_path, cache, monkeypatch, name, value
):
    monkeypatch.setattr(sys, name, value, raising=False)
    monkeypatch.setattr(worker, "shared_pool", None)
    start_workers(2)
    check_scales(tmp_path, cache, [1.0, 2.0, 3.0, 4.0], jobs=2)


BAD = 'def bad(x: f32[4], *, y: f32[4]):\n    invoke("no_such_instruction", x[0], y[0])\n'


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_names_its_kernel(cache, jobs):
    kernels = [job(scale(f"k{i}", float(i))) for i in range(5)]
    kernels.insert(3, job(parse_func(BAD)))
    with pytest.raises(Exception, match=r"bad|no_such_instruction") as caught:
        compile_kernels(kernels, jobs=jobs, cache=cache)
    assert caught.type.__module__ == "dlc.core.errors"
    assert len(compile_kernels(kernels[:3], jobs=jobs, cache=cache)) == 3


def test_an_error_of_llvm_tells_the_kernel_and_not_the_symbol(monkeypatch):
    def fail(*_):
        raise CodegenError(stage="LLVM", unit="symbol", reason="so")

    monkeypatch.setattr(compile_task, "emit_func", fail)
    result = attempt(tasks(1)[0])
    assert isinstance(result, CodegenError)
    assert result.fields == {"stage": "LLVM", "unit": "k0", "reason": "so"}
    assert "DLC_DUMP" in result.hint


def test_the_first_of_several_errors_is_raised(cache, monkeypatch):
    def fail(tasks, jobs):
        for position in reversed(range(len(tasks))):
            yield position, InternalError(detail=tasks[position].func.name)

    monkeypatch.setattr(worker, "_compile", fail)
    kernels = [job(scale(f"k{i}", float(i))) for i in range(4)]
    with pytest.raises(InternalError, match="k0"):
        compile_kernels(kernels, cache=cache)


def tasks(count):
    return [KernelTask(scale(f"k{i}", float(i)), NATIVE, (), f"symbol_{i}") for i in range(count)]


def test_a_worker_that_dies_is_replaced():
    workers = Pool(1)
    try:
        workers._workers[0].process.kill()
        ((position, result),) = workers.compile(tasks(1), 1)
        assert position == 0
        assert isinstance(result, CodegenError)
        assert result.fields["unit"] == "k0"
        assert "signal 9" in str(result)
        ((_, result),) = workers.compile(tasks(1), 1)
        assert isinstance(result, bytes)
    finally:
        workers.close()


def test_a_task_that_cannot_be_sent_is_an_error():
    workers = Pool(1)
    try:
        bad = KernelTask(scale(), NATIVE, ((lambda: 0, 0),), "s")  # type: ignore[arg-type]
        ((_, result),) = workers.compile([bad], 1)
        assert isinstance(result, InternalError)
        ((_, result),) = workers.compile(tasks(1), 1)
        assert isinstance(result, bytes)
    finally:
        workers.close()


class Noisy:
    """Unpickles as a symbol, with a sound."""

    def __reduce__(self):
        return (eval, ("print('noise') or 'symbol'",))


def test_what_is_printed_in_a_worker_does_no_harm():
    workers = Pool(1)
    try:
        noisy = KernelTask(scale(), NATIVE, (), Noisy())  # type: ignore[arg-type]
        ((_, result),) = workers.compile([noisy], 1)
        assert isinstance(result, bytes)
    finally:
        workers.close()


def test_workers_log_what_this_process_logs(capfd):
    workers = Pool(1)
    try:
        task = replace(tasks(1)[0], topics=frozenset({"nothing of that name"}))
        ((_, result),) = workers.compile([task], 1)
        assert isinstance(result, bytes)
    finally:
        workers.close()
    assert "there is no topic 'nothing of that name'" in capfd.readouterr().err


def test_threads_share_workers():
    workers = Pool(1)
    wrong = []

    def use(first):
        wanted = tasks(24)[first::4]
        for position, result in workers.compile(wanted, 1):
            if not isinstance(result, bytes) or wanted[position].symbol.encode() not in result:
                wrong.append(position)

    try:
        threads = [threading.Thread(target=use, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        assert wrong == []
    finally:
        workers.close()


def test_giving_up_leaves_the_workers_usable():
    workers = Pool(1)
    try:
        for _ in workers.compile(tasks(6), 1):
            break
        results = dict(workers.compile(tasks(2), 1))
        assert set(results) == {0, 1}
        assert all(isinstance(r, bytes) for r in results.values())
    finally:
        workers.close()


def test_closing_while_workers_are_at_work_starts_no_others(monkeypatch):
    raised, started = [], []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    workers = Pool(1)
    busy = workers._workers[0]
    os.kill(busy.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(pool, "_Worker", lambda: started.append("another"))
    results = []
    caller = threading.Thread(target=lambda: results.extend(workers.compile(tasks(1), 1)))
    caller.start()
    while not busy.lock.locked():
        time.sleep(0.001)
    workers.close()  # as where Ctrl-C ends the program
    caller.join(timeout=60)
    ((_, result),) = results
    assert isinstance(result, CodegenError)
    assert (raised, started) == ([], [])


def test_workers_and_this_process_make_equal_objects():
    workers = Pool(2)
    try:
        for position, result in workers.compile(tasks(3), 2):
            assert result == attempt(tasks(3)[position])
    finally:
        workers.close()


def test_an_error_of_python_becomes_an_internal_error(monkeypatch):
    def fail(_):
        raise RuntimeError("what is this")

    monkeypatch.setattr(compile_task, "compile_task", fail)
    result = attempt(tasks(1)[0])
    assert isinstance(result, InternalError)
    assert "what is this" in str(result)
    assert "k0" in str(result)


def test_a_forked_child_starts_workers_of_its_own():
    parent = shared_pool(1)
    child = os.fork()
    if child == 0:
        parent.close()  # as at the end of a program; it does not end the workers of the parent
        mine = shared_pool(1)
        ((_, result),) = mine.compile(tasks(1), 1)
        fine = mine is not parent and isinstance(result, bytes)
        mine.close()
        os._exit(0 if fine else 1)
    assert os.waitpid(child, 0)[1] == 0
    ((_, result),) = parent.compile(tasks(1), 1)
    assert isinstance(result, bytes)


SCRIPT = """
from tests.codegen.test_worker import check_scales
from dlc.core.cache import Cache
from pathlib import Path
import sys
print("start")
check_scales(Path(sys.argv[1]), Cache(Path(sys.argv[1]) / "c"), [1.0, 2.0, 3.0, 4.0], jobs=2)
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    script = tmp_path / "script.py"
    root = str(Path(__file__).parents[2])
    script.write_text(f"import sys; sys.path.insert(0, {root!r})\n" + SCRIPT)
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "start\n", "")


def test_a_worker_leaves_ctrl_c_to_its_parent_before_it_imports(tmp_path):
    folder = tmp_path / "dlc" / "codegen" / "llvm"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):
        (package / "__init__.py").touch()
    (folder / "compile_task.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\ndef main(): print('alive')\n"
    )
    command = [sys.executable, "-S", "-c", pool._START, str(tmp_path), *sys.path]  # no other dlc
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
