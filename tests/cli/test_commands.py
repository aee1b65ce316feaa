"""What commands promise beyond their screens: JSON, files, exit codes, failures."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import dlc
from dlc import verify_model, verify_report
from dlc.codegen.llvm.peaks import Peaks
from dlc.compare_arrays import Error
from dlc.runtime import num_threads, set_num_threads
from tests.cli.models import model, perceptron
from tests.runtime.emulated import build_emulated

COMMANDS = (
    "build",
    "run",
    "bench",
    "profile",
    "verify",
    "inspect",
    "targets",
    "doctor",
    "cache",
    "version",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(dlc_main, command):
    code, printed, _ = dlc_main(command, "--help")
    assert code == 0
    assert f"dlc {command}" in printed
    assert len(printed.splitlines()) > 5


@pytest.mark.parametrize("group", [(), ("tune",), ("cache",)])
def test_no_description_of_a_command_is_cut(dlc_main, group):
    assert "..." not in dlc_main(*group, "--help")[1].partition("\nCommands:")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(dlc_main, monkeypatch, shell):
    typed = {"COMP_WORDS": "dlc prof", "COMP_CWORD": "1", "_TYPER_COMPLETE_ARGS": "dlc prof"}
    typed["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    for name, value in typed.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("_DLC_COMPLETE", f"complete_{shell}")
    monkeypatch.setattr(sys, "argv", ["dlc"])
    code, printed, _ = dlc_main()
    assert (code, "profile" in printed, "build" in printed) == (0, True, False)


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ("dlc.build/1", ["build", "mlp.onnx", "-o", "new.so"]),
        ("dlc.run/1", ["run", "mlp.so", "--print"]),
        ("dlc.bench/1", ["bench", "mlp.so", "--min-time", "0"]),
        ("dlc.profile/1", ["profile", "mlp.so", "--rounds", "2"]),
        ("dlc.verify/1", ["verify", "mlp.onnx", "mlp.so"]),
        ("dlc.inspect/1", ["inspect", "mlp.onnx"]),
        ("dlc.inspect/1", ["inspect", "mlp.so"]),
        ("dlc.inspect/1", ["inspect", "--support", "mlp.onnx"]),
        ("dlc.targets/1", ["targets"]),
        ("dlc.targets/1", ["targets", "llvm -mcpu=haswell"]),
        ("dlc.doctor/1", ["doctor"]),
        ("dlc.cache/1", ["cache", "info"]),
        ("dlc.version/1", ["version"]),
    ],
)
def test_json_is_one_document(files, dlc_main, schema, arguments):
    code, printed, _ = dlc_main(*arguments, "--json")
    assert code == 0
    assert json.loads(printed)["schema"] == schema


def test_a_failure_is_a_json_document_too(files, dlc_main):
    code, printed, said = dlc_main("build", "nothing.onnx", "--json")
    found = json.loads(printed)
    assert (found["schema"], found["code"], found["exit_code"]) == ("dlc.error/1", "DLC-E0300", 3)
    assert code == 3
    assert "error[DLC-E0300]" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "mlp.so", "--input", "x=ones", "--dim", "batch=2", "--expect", "y=@wrong_y.npy"],
        ["verify", "other.onnx", "mlp.so", "--input", "x=ones"],
    ],
)
def test_a_difference_is_one_document_and_exit_4(files, dlc_main, arguments):
    code, printed, said = dlc_main(*arguments, "--json")
    assert code == 4
    assert not json.loads(printed)["ok"]
    assert said.count("error[DLC-E0800]") == 1


def test_nothing_compared_is_one_document_and_exit_4(files, dlc_main, monkeypatch):
    monkeypatch.setattr(verify_model, "has_onnxruntime", lambda: False)
    arguments = ("verify", "mlp.onnx", "mlp.so", "--against", "onnxruntime")
    code, printed, said = dlc_main(*arguments, "--json")
    assert (code, json.loads(printed)["ok"]) == (4, False)
    assert "nothing was compared: onnxruntime is not installed" in said


def test_unsupported_nodes_are_listed_in_json(files, dlc_main):
    code, printed, _ = dlc_main("inspect", "--support", "unsupported.onnx", "--json")
    found = json.loads(printed)
    assert code == 3
    assert not found["ok"]
    assert [issue["node"] for issue in found["issues"]] == ["first", "second", "third"]


def test_build_writes_what_load_loads(files, dlc_main):
    code, _, _ = dlc_main("build", "mlp.onnx", "-o", "new.so", "--dim", "batch=2..4", "--quiet")
    assert code == 0
    (size,) = dlc.load("new.so").sizes
    assert (size.name, size.min, size.max) == ("batch", 2, 4)
    assert not list(files.glob(".new.so*"))


def test_build_writes_beside_the_model_by_default(files, dlc_main):
    (files / "mlp.so").unlink()
    assert dlc_main("build", "mlp.onnx", "--no-verify", "-q")[::2] == (0, "")
    assert (files / "mlp.so").exists()


@pytest.mark.parametrize("name", ["mlp.onnx", "link.so"])
def test_build_does_not_write_over_the_model(files, dlc_main, name):
    (files / "link.so").symlink_to("mlp.onnx")
    model = (files / "mlp.onnx").read_bytes()
    code, _, said = dlc_main("build", "mlp.onnx", "-o", name)
    assert code == 2
    assert said.startswith(f"error[DLC-E0100]: cannot write {name}: it is the model")
    assert (files / "mlp.onnx").read_bytes() == model


def test_build_does_not_write_over_weights_beside_the_model(files, dlc_main):
    model = onnx.load("mlp.onnx")
    onnx.save(model, "apart.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    before = (files / "w.data").read_bytes()
    code, _, said = dlc_main("build", "apart.onnx", "-o", "w.data", "--no-verify")
    assert code == 2
    assert said.startswith("error[DLC-E0100]: cannot write w.data: it holds weights of the model")
    assert (files / "w.data").read_bytes() == before
    assert dlc_main("build", "apart.onnx", "-o", "a.so", "--no-verify", "-q")[0] == 0
    assert dlc_main("build", "apart.onnx", "-o", "a.so", "--no-verify", "-q")[0] == 0  # over itself


@pytest.mark.parametrize("content", [b"", b"garbage"])
@pytest.mark.parametrize("command", ["run", "inspect", "bench"])
def test_what_is_left_of_an_artefact_is_no_bad_model(files, dlc_main, content, command):
    (files / "rest.so").write_bytes(content)
    code, _, said = dlc_main(command, "rest.so")
    assert (code, said[:16]) == (6, "error[DLC-E0600]")


def test_a_model_whose_name_is_no_utf8_is_compared_as_well(files, dlc_main):
    name = os.fsdecode(b"m\xff.onnx")
    (files / name).write_bytes((files / "mlp.onnx").read_bytes())
    code, found, _ = dlc_main("build", name, "-o", "m.so", "--verify", "--json")
    assert code == 0
    assert json.loads(found)["verify"]["judges"] == ["onnxruntime"]


def test_weights_that_nodes_hold_are_counted(files, dlc_main):
    weights = numpy_helper.from_array(np.ones((4, 5), np.float32))
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weights),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s)
        for n, s in (("x", [3, 4]), ("y", [3, 5]))
    )
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y])), "held.onnx")
    _, said, _ = dlc_main("inspect", "held.onnx", "--json")
    assert json.loads(said)["parameters_bytes"] == 4 * 5 * 4


def test_a_folder_that_cannot_be_written_is_found_before_the_work(files, dlc_main, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("dlc.compiler.build", lambda *_, **__: pytest.fail("it was compiled"))
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert code == 2
    assert said == "error[DLC-E0100]: cannot write new.so: permission denied\n"


def test_a_folder_is_no_model(files, dlc_main):
    code, _, said = dlc_main("build", ".", "-q")
    assert (code, said) == (3, "error[DLC-E0300]: .: cannot be read: is a directory\n")


def test_a_wrong_artefact_is_not_left_behind(files, dlc_main, monkeypatch):
    from dlc import compiler

    right = compiler.build
    monkeypatch.setattr(
        compiler, "build", lambda _model, *rest, **kwargs: right("other.onnx", *rest, **kwargs)
    )
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert code == 4
    assert "error[DLC-E0800]: output 'y': differs from float64" in said
    assert not (files / "new.so").exists()


def test_what_is_nearly_as_good_as_onnxruntime_is_a_warning(files, dlc_main, monkeypatch):
    def report(times):
        ours, theirs = Error(times * 1e-3, 1.0), Error(1e-3, 1.0)
        output = verify_report.OutputReport("y", ours, theirs, None, "differs")
        return verify_report.VerifyReport((output,), (), (), 1)

    monkeypatch.setattr(verify_model, "verify", lambda *_, **__: report(5))
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert code == 0
    assert "! verify    more than 2× as far" in said
    monkeypatch.setattr(verify_model, "verify", lambda *_, **__: report(11))
    assert dlc_main("build", "mlp.onnx", "-o", "new.so")[0] == 4


def test_what_the_compiler_logs_is_a_warning(files, dlc_main):
    twice = perceptron()
    twice.graph.initializer.pop()
    for value in (1.0, 2.0):
        constant = onnx.helper.make_node("Constant", [], ["b"], value_floats=[value] * 3)
        twice.graph.node.insert(0, constant)
    onnx.save(twice, "twice.onnx")
    code, _, said = dlc_main("inspect", "twice.onnx")
    assert code == 0
    assert said.startswith("warning: twice.onnx: ")
    assert said.count("warning") == 1


def test_without_onnxruntime_nothing_is_compared(files, dlc_main, monkeypatch):
    monkeypatch.setattr("dlc.peer.has_onnxruntime", lambda: False)
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so")
    assert code == 0
    assert "skipped: no onnxruntime: pip install 'dlc[verify]'" in said


def test_build_takes_the_log_it_is_told(files, dlc_main):
    build = ("build", "mlp.onnx", "-o", "new.so", "-q", "--no-verify")
    assert "absent.db: there is no such log" in dlc_main(*build, "--tuning", "absent.db")[2]
    (files / "mlp.tune.db").write_text("no log")
    assert "mlp.tune.db is not a tuning log" in dlc_main(*build)[2]
    assert dlc_main(*build, "--tuning", "none")[0] == 0


def test_what_a_build_proposes_can_be_typed(files, dlc_main, monkeypatch):
    pytest.importorskip("onnxruntime")

    def proposed(*words):
        code, _, said = dlc_main("build", "--no-verify", *words)
        assert code == 0
        return [line.removeprefix("Try:  ") for line in said.splitlines() if line[:4] == "Try:"]

    assert proposed("mlp.onnx") == ["dlc bench mlp.so --against onnxruntime"]
    (line,) = proposed("mlp.onnx", "-o", "my model.so")
    assert line == "dlc bench 'my model.so' --against onnxruntime --model mlp.onnx"
    assert dlc_main(*shlex.split(line)[1:], "--min-time", "0.02")[0] == 0
    monkeypatch.setattr("dlc.peer.has_onnxruntime", lambda: False)
    assert proposed("mlp.onnx", "-o", "new.so") == ["dlc bench new.so"]


def test_rows_for_programs_are_lines(files, dlc_main, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    long = "of_many_words_" * 12
    proto = model([onnx.helper.make_node("Relu", ["x"], [long])], ["x"], [long], [], (4,), (4,))
    onnx.save(proto, files / "long.onnx")
    assert dlc_main("build", "long.onnx")[0] == 0
    for command in ("run", "inspect"):
        printed = dlc_main(command, "long.so")[1]
        (row,) = [line for line in printed.splitlines() if long in line]
        assert "float32" in row or "f32[4]" in row


def test_why_a_build_was_not_compared_is_whole_for_programs(files, dlc_main, monkeypatch):
    reason = "this machine has not what it takes " * 5 + "at all"
    monkeypatch.setattr(sys.modules["dlc.cli.build"], "_why_not_here", lambda _: reason)
    assert reason not in dlc_main("build", "mlp.onnx", "-o", "new.so")[2]
    monkeypatch.delenv("COLUMNS")
    assert reason in dlc_main("build", "mlp.onnx", "-o", "new.so")[2]


def test_another_machine_is_not_compared(files, dlc_main):
    target = "llvm -mcpu=graniterapids -mattr=+amx-fp16"
    code, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so", "--target", target)
    if code == 5:
        pytest.skip("no tools for that target")
    assert code == 0
    assert "skipped: this machine cannot run it" in said
    assert "Try:" not in said


def texts_model():
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"])]
    made = model(nodes, ["x"], ["y"], [], ("n",), ("n",))
    made.opset_import[0].version = 20
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.STRING
    return made


def test_texts_go_through_all_commands(files, dlc_main):
    onnx.save(texts_model(), "texts.onnx")
    code, _, said = dlc_main("build", "texts.onnx")
    assert (code, "max abs 0.0e+00" in said) == (0, True)
    np.save("x.npy", np.array(["a", "Straße"]))
    given = ("-i", "x=@x.npy")
    code, printed, _ = dlc_main("run", "texts.so", *given, "--json", "--print")
    (output,) = json.loads(printed)["outputs"]
    assert (code, output["dtype"], output["values"]) == (0, "str", ["aa", "StraßeStraße"])
    assert dlc_main("run", "texts.so", *given, "-o", "y=@y.npy", "-o", "@all.npz")[0] == 0
    assert dlc_main("run", "texts.so", *given, "--expect", "y=@y.npy")[0] == 0
    assert dlc_main("run", "texts.so", *given, "--expect", "y=@all.npz")[0] == 0
    code, _, said = dlc_main("run", "texts.so", *given, "--expect", "y=@x.npy")
    assert (code, "'aa' at [0], not 'a'" in said) == (4, True)
    for fill, text in (("zeros", "00"), ("ones", "11")):
        printed = dlc_main("run", "texts.so", "-i", f"x={fill}", "--json", "--print")[1]
        assert json.loads(printed)["outputs"][0]["values"] == [text]
    assert dlc_main("verify", "texts.onnx", "texts.so")[0] == 0
    for against in ([], ["--against", "onnxruntime"]):
        assert dlc_main("bench", "texts.so", "--min-time", "0", *against)[0] == 0
    code, _, said = dlc_main("profile", "texts.so")
    assert (code, "with texts cannot be timed" in said) == (2, True)


def test_results_of_a_size_from_data_are_timed(files, dlc_main):
    made = model([helper.make_node("NonZero", ["x"], ["y"])], ["x"], ["y"], [], (9,), (1, "k"))
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    onnx.save(made, "late.onnx")
    assert dlc_main("bench", "late.onnx", "--min-time", "0")[0] == 0
    code, _, said = dlc_main("profile", "late.onnx")
    assert (code, "shapes depend on the data cannot be timed" in said) == (2, True)


def test_profile_shows_whole_names_of_kernels(files, dlc_main, monkeypatch):
    name = "a_dense_layer_and_what_follows_it"
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"], name=name)]
    for number, kind in enumerate(("Sigmoid", "Tanh", "Softplus", "Exp")):
        last = "h" if number == 0 else f"h{number}"
        out = "y" if number == 3 else f"h{number + 1}"
        nodes.append(helper.make_node(kind, [last], [out], name=f"layer/{kind}"))
    weights = [numpy_helper.from_array(np.ones((5, 3), np.float32), "w")]
    onnx.save(model(nodes, ["x"], ["y"], weights, (4, 5), (4, 3)), "long.onnx")
    dlc_main("build", "long.onnx", "-q", "--no-verify")
    (step,) = json.loads(dlc_main("profile", "long.so", "--rounds", "1", "--json")[1])["steps"]
    assert len(step["kernel"]) > 16
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = dlc_main("profile", "long.so", "--rounds", "1")[1].splitlines()
        start = lines[0].index("kernel")
        cells = [line[start:].split("  ")[0] for line in lines[1:-2]]
        assert "".join(map(str.strip, cells)) == step["kernel"]
    assert lines[1].rstrip().endswith(f" {', '.join(step['nodes'])}")


def test_inspect_tells_what_a_model_is_computed_in(files, dlc_main):
    dlc_main("build", "mlp.onnx", "-o", "half.so", "--half", "fp16", "--no-verify", "-q")
    _, printed, _ = dlc_main("inspect", "half.so")
    assert "\ncomputed in fp16, judged as precision tf32\n" in printed
    _, printed, _ = dlc_main("inspect", "half.so", "--json")
    assert json.loads(printed)["metadata"]["half"] == "fp16"
    _, printed, _ = dlc_main("inspect", "mlp.so")
    assert "\nprecision highest\n" in printed


def test_inspect_shows_variants(files, dlc_main):
    options = ("--variant", "batch=1", "--variant", "batch=2..4", "--variant", "batch=9..")
    assert dlc_main("build", "mlp.onnx", "-o", "several.so", "--no-verify", *options)[0] == 0
    shown = dlc_main("inspect", "several.so")[1].splitlines()
    assert shown[-3:] == [f"variant for batch={sizes}" for sizes in ("1", "2..4", "9..")]
    assert "variant" not in dlc_main("inspect", "mlp.so")[1]


def test_inspect_names_the_sizes_of_an_arena_and_json_has_the_formula(files, dlc_main):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones((5, 5), np.float32), "w")
    onnx.save(model(nodes, ["x"], ["y"], [weight], ("n", 5), ("n", 5)), files / "arena.onnx")
    assert dlc_main("build", "arena.onnx", "-q")[0] == 0
    text = dlc_main("inspect", "arena.so")[1]
    assert "arena of a size set by n\n" in text
    formula = json.loads(dlc_main("inspect", "arena.so", "--json")[1])
    assert "n * " in str(formula)


def test_verify_wants_the_model(files, dlc_main):
    code, _, said = dlc_main("verify", "mlp.so")
    assert code == 2
    assert "hint: name the ONNX file it was built from first: dlc verify MODEL mlp.so" in said


@pytest.mark.parametrize("against", ["", " , "])
def test_verify_wants_somebody_to_ask(files, dlc_main, against):
    code, printed, said = dlc_main("verify", "mlp.onnx", "mlp.so", "--against", against)
    assert (code, printed) == (2, "")
    assert f"--against '{against}' names nobody" in said
    assert "there are: onnxruntime,float64" in said


@pytest.mark.parametrize("command", ["run", "bench", "profile"])
def test_a_number_of_threads_that_is_none_is_refused(files, dlc_main, monkeypatch, command):
    monkeypatch.setenv("DLC_NUM_THREADS", "4 threads")
    code, _, said = dlc_main(command, "mlp.so")
    assert (code, said.splitlines()[0]) == (
        2,
        "error[DLC-E0100]: DLC_NUM_THREADS is '4 threads'",
    )


def test_peaks_are_those_of_cores_and_not_of_threads(files, dlc_main, monkeypatch):
    monkeypatch.setattr("dlc.codegen.llvm.peaks.measure_peaks", lambda _: Peaks(50.0, 7.0))
    monkeypatch.setattr("dlc.core.machine.usable_cores", lambda *_: 2)
    before = num_threads()
    try:
        for threads, cores in ((1, 1), (2, 2), (5, 2)):
            words = ("profile", "mlp.so", "--rounds", "1", "--threads", threads)
            found = json.loads(dlc_main(*words, "--json")[1])
            assert (found["threads"], found["peak_gflops"]) == (threads, 50.0 * cores)
            assert found["peak_read_gbytes_per_s"] == 7.0 * cores
            assert f"peaks of {cores} core" in dlc_main(*words)[1]
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_a_model_comes_through_a_pipe(files, dlc_main, command):
    os.mkfifo("pipe")
    data = (files / "mlp.onnx").read_bytes()
    writer = threading.Thread(target=lambda: (files / "pipe").write_bytes(data), daemon=True)
    writer.start()
    assert dlc_main(command, "pipe")[0] == 0
    writer.join(timeout=10)
    assert not writer.is_alive()


def test_bench_times_everybody(files, dlc_main):
    pytest.importorskip("onnxruntime")
    words = ["bench", "mlp.so", "--against", "onnxruntime", "--min-time", "0.02"]
    code, printed, _ = dlc_main(*words, "--threads", "1,2", "--json")
    assert code == 0
    rows = json.loads(printed)["results"]
    assert [(r["name"].split()[0], r["threads"]) for r in rows] == [
        ("dlc", 1),
        ("dlc", 2),
        ("onnxruntime", 1),
        ("onnxruntime", 2),
    ]
    assert all(0 < r["p50_s"] <= r["p90_s"] <= r["p99_s"] for r in rows)
    code, printed, _ = dlc_main(*words, "--threads", "1")
    assert code == 0
    assert "than onnxruntime" in printed


@pytest.mark.parametrize("count", ["0", "1025", "two", "1,,2", "²", "1" * 5000])
def test_bench_refuses_numbers_of_threads_that_are_none(files, dlc_main, count):
    code, printed, said = dlc_main("bench", "mlp.so", "--threads", count)
    assert (code, printed) == (2, "")
    assert f"--threads '{count}': expected numbers from 1 to 1024, as 1,2,4" in said


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_bench_refuses_times_that_are_none(files, dlc_main, monkeypatch, seconds):
    module = sys.modules["dlc.cli.bench"]  # the package holds the function under that name
    monkeypatch.setattr(module, "_race", lambda entries, min_time: pytest.fail("it runs"))
    code, _, said = dlc_main("bench", "mlp.so", "--min-time", seconds)
    assert (code, f"--min-time {seconds}: expected seconds" in said) == (2, True)


def test_bench_says_where_the_model_of_the_peer_should_be(files, dlc_main):
    (files / "mlp.onnx").rename("moved.onnx")
    code, _, said = dlc_main("bench", "mlp.so", "--against", "onnxruntime")
    assert code == 2
    assert "there is no mlp.onnx" in said
    assert (
        dlc_main(
            *("bench", "mlp.so", "--against", "onnxruntime", "--model", "moved.onnx"),
            *("--min-time", "0"),
        )[0]
        == 0
    )


def test_a_build_that_cannot_link_is_foretold(files, dlc_main, monkeypatch):
    monkeypatch.setenv("PATH", str(files))
    code, printed, _ = dlc_main("doctor", "--json")
    assert code == 5
    statuses = {f["topic"]: f["status"] for f in json.loads(printed)["findings"]}
    assert statuses["linker"] == "error"
    assert statuses["python"] == "ok"


def test_the_cache_can_be_cleared(files, dlc_main, monkeypatch):
    monkeypatch.setenv("DLC_CACHE_DIR", str(files / "cache"))
    assert dlc_main("build", "mlp.onnx", "-o", "new.so", "--no-verify")[0] == 0
    assert json.loads(dlc_main("cache", "info", "--json")[1])["entries"] > 0
    assert "removed" in dlc_main("cache", "clear")[1]
    assert json.loads(dlc_main("cache", "info", "--json")[1])["entries"] == 0
    assert list((files / "cache").iterdir()) == []


def test_a_mistake_of_dlc_leaves_a_crash_file(files, dlc_main, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("boom")

    monkeypatch.setattr("dlc.compiler.build", fail)
    monkeypatch.setattr("tempfile.tempdir", str(files))
    code, printed, said = dlc_main("build", "mlp.onnx", "-o", "new.so", "--json")
    assert code == 1
    assert "error[DLC-E0900]: RuntimeError: boom" in said
    assert "Traceback" not in said
    crash = json.loads(printed)["crash_file"]
    assert crash in said
    with open(crash) as file:
        assert "in fail" in file.read()


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (MemoryError("std::bad_alloc"), 7, "memory exceeds the limit: std::bad_alloc"),
        (OSError(28, "No space left on device", "/tmp/x"), 2, "on /tmp/x: no space left on device"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "FileNotFoundError"),
    ],
)
def test_what_the_machine_refuses_is_no_mistake_of_dlc(
    files, dlc_main, monkeypatch, error, code, text
):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("dlc.compiler.build", fail)
    monkeypatch.setattr("tempfile.tempdir", str(files))
    found, _, said = dlc_main("build", "mlp.onnx", "-o", "new.so", "-q")
    assert found == code
    assert text in said
    assert ("report it" in said) == (code == 1)


def test_colours_are_for_those_who_want_them(files, dlc_main, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in dlc_main("inspect", "nothing.onnx")[2]
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in dlc_main("inspect", "nothing.onnx")[2]


def test_python_m_dlc_is_the_command_line(files):
    done = subprocess.run(
        [sys.executable, "-m", "dlc", "inspect", "nothing.onnx"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == "error[DLC-E0300]: nothing.onnx: there is no such file\n"


def test_build_makes_inputs_constants(tmp_path, dlc_main):
    text = '<ir_version: 8, opset_import: ["": 20]>\nm (float[2,3] x, int64[1] a) => (float[n] y)'
    proto = onnx.parser.parse_model(text + " { y = ReduceSum<keepdims=0>(x, a) }")
    onnx.save(proto, tmp_path / "sum.onnx")
    assert dlc_main("build", tmp_path / "sum.onnx", "--value", "a=[1]", "-q")[0] == 0
    module = dlc.load(tmp_path / "sum.so")
    np.testing.assert_array_equal(module(np.ones((2, 3), np.float32)), [3, 3])


def test_inspect_names_the_gpus(files, dlc_main, monkeypatch):
    build_emulated(perceptron(), files / "gpu.so", monkeypatch)
    printed = dlc_main("inspect", "gpu.so")[1]
    assert "needs an NVIDIA GPU; it has code for sm_80, sm_90 and PTX for others" in printed
    dlc.compile(texts_model(), target="cuda").save(files / "texts.so")
    for runs_on_cpu in ("texts.so", "mlp.so"):
        assert "NVIDIA" not in dlc_main("inspect", runs_on_cpu)[1]
