"""What `dlc run` reads, makes up and writes."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dlc
from dlc.runtime import Module
from tests.cli.models import model


def test_run_reads_and_writes_arrays(files, dlc_main):
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    np.savez("all.npz", x=x)
    code, _, said = dlc_main("run", "mlp.so", "-i", "@all.npz", "-o", "y=@y.npy", "-o", "@out.npz")
    assert (code, said) == (0, "")
    expected = dlc.load("mlp.so")(x)
    np.testing.assert_array_equal(np.load("y.npy"), expected)
    np.testing.assert_array_equal(np.load("out.npz")["y"], expected)
    assert dlc_main("run", "mlp.so", "-i", "x=@all.npz", "--expect", "y=@y.npy")[0] == 0


@pytest.fixture
def named(files, dlc_main):
    """A built sum of two inputs whose names look like more than names."""
    nodes = [helper.make_node("Add", ["x:0", "a=b"], ["y:0"])]
    onnx.save(model(nodes, ["x:0", "a=b"], ["y:0"], [], (3,), (3,)), files / "named.onnx")
    assert dlc_main("build", "named.onnx", "-q")[0] == 0
    return files / "named.so"


@pytest.mark.parametrize("value", ["@two.npy", "2", "ones", "zeros", "random", "random:seed=1"])
def test_inputs_whose_names_have_colons_and_equals_signs_are_given(named, dlc_main, value):
    np.save("two.npy", np.full(3, 2, np.float32))
    code, _, said = dlc_main("run", named, "-i", f"x:0={value}", "-i", f"a=b={value}")
    assert (code, said) == (0, "")


def test_inputs_with_such_names_are_given_to_the_other_commands(named, dlc_main):
    given = ("-i", "x:0=ones", "-i", "a=b=2")
    assert dlc_main("bench", named, *given, "--min-time", "0")[0] == 0
    assert dlc_main("profile", named, *given, "--rounds", "1")[0] == 0
    assert dlc_main("verify", "named.onnx", named, *given)[0] == 0


@pytest.mark.parametrize(
    ("text", "said_too"),
    [
        ("x:1=ones", "input 'x:1': there is no such input; the inputs are x:0, a=b"),
        ("b=@two.npy", "input 'b': there is no such input; the inputs are x:0, a=b"),
        ("random:seed=1", "expected NAME=VALUE"),
        ("x:0=noise", "'noise' is no source of values"),
    ],
)
def test_values_for_no_input_of_such_a_model_are_refused(named, dlc_main, text, said_too):
    code, _, said = dlc_main("run", named, "-i", text)
    assert (code, said_too in said) == (2, True)


@pytest.mark.parametrize("kind", ["BFLOAT16", "FLOAT8E4M3FN", "INT4"])
@pytest.mark.parametrize("file", ["y=@y.npy", "@y.npz"])
def test_types_that_numpy_does_not_know_are_read_again(files, dlc_main, kind, file):
    to = getattr(TensorProto, kind)
    value, result = (helper.make_tensor_value_info(name, to, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), "few.onnx")
    assert dlc_main("build", "few.onnx", "-q")[0] == 0
    assert dlc_main("run", "few.so", "-i", "x=ones", "-o", file)[0] == 0
    assert dlc_main("run", "few.so", "-i", "x=ones", "--expect", file)[0] == 0
    assert dlc_main("run", "few.so", "-i", "x=zeros", "--expect", file)[0] == 4
    given = "x=@y.npy" if file == "y=@y.npy" else "x=@y.npz"
    assert dlc_main("run", "few.so", "-i", given, "--expect", file)[0] == 0


def test_bytes_of_another_type_are_told(files, dlc_main):
    np.save("two.npy", np.zeros((1, 5), "V2"))
    code, _, said = dlc_main("run", "mlp.so", "-i", "x=ones", "--expect", "y=@two.npy")
    assert code == 2
    assert "holds 2 bytes an element" in said
    code, _, said = dlc_main("run", "mlp.so", "-i", "x=@two.npy")
    assert code == 2
    assert "holds 2 bytes an element" in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("y=@nope.npy", "--expect: output 'y': there is no file nope.npy"),
        ("@nope.npz", "--expect: outputs: there is no file nope.npz"),
    ],
)
def test_a_missing_file_of_expected_values_is_told_of_outputs(files, dlc_main, text, told):
    code, _, said = dlc_main("run", "mlp.so", "--expect", text)
    assert (code, told in said, "input" in said) == (2, True, False)


def test_a_result_that_is_no_number_is_told_so(files, dlc_main):
    np.save("y.npy", np.zeros((1, 3), np.float32))
    np.save("x.npy", np.full((1, 5), np.nan, np.float32))
    code, _, said = dlc_main("run", "mlp.so", "-i", "x=@x.npy", "--expect", "y=@y.npy")
    assert (code, "differs from y.npy: nan at [0, 0], not 0, 100 %" in said) == (4, True)


@pytest.mark.parametrize(
    "array", [np.zeros(3, np.complex64), np.zeros(3, "M8[s]"), np.zeros(3, [("a", "f4")])]
)
def test_arrays_of_what_no_model_has_are_refused(files, dlc_main, array):
    np.save("odd.npy", array)
    code, _, said = dlc_main("run", "mlp.so", "-i", "x=@odd.npy")
    assert code == 2
    assert "which no model has" in said


@pytest.mark.parametrize("file", ["x.npy", "x.npz", "x.pb"])
@pytest.mark.parametrize("kept", [0.2, 0.5, 0.98])
def test_arrays_that_are_cut_short_are_told_so(files, dlc_main, file, kept):
    x = np.zeros((1, 5), np.float32)
    np.save("x.npy", x)
    np.savez("x.npz", x=x)
    (files / "x.pb").write_bytes(numpy_helper.from_array(x).SerializeToString())
    whole = (files / file).read_bytes()
    (files / file).write_bytes(whole[: int(kept * len(whole))])
    code, _, said = dlc_main("run", "mlp.so", "-i", f"x=@{file}")
    assert (code, f"{file} is cut short or damaged" in said, "hint" in said) == (2, True, False)


@pytest.mark.parametrize("file", ["x.npy", "x.npz"])
def test_arrays_of_python_objects_are_refused_as_such(files, dlc_main, file):
    x = np.array([1, "a"], np.object_)
    np.save("x.npy", x)
    np.savez("x.npz", x=x)
    code, _, said = dlc_main("run", "mlp.so", "-i", f"x=@{file}")
    assert (code, f"{file} holds an array of Python objects" in said) == (2, True)


def test_outputs_may_have_any_name_in_an_archive(files, dlc_main):
    nodes = [helper.make_node("Neg", ["x"], [y]) for y in ("file", "allow_pickle", "a/b")]
    names = [y for node in nodes for y in node.output]
    onnx.save(model(nodes, ["x"], names, [], ("n",), ("n",)), "names.onnx")
    dlc_main("build", "names.onnx", "-q")
    assert dlc_main("run", "names.so", "-i", "x=ones", "--dim", "n=3", "-o", "@y.npz")[0] == 0
    with np.load("y.npz") as arrays:
        assert {name: a.tolist() for name, a in arrays.items()} == dict.fromkeys(names, [-1.0] * 3)


def test_names_of_outputs_may_contain_what_begins_a_file(files, dlc_main):
    names = ["y@2", "y", "@z"]
    nodes = [helper.make_node("Neg", ["x"], [y]) for y in names]
    onnx.save(model(nodes, ["x"], names, [], (3,), (3,)), "at.onnx")
    dlc_main("build", "at.onnx", "-q")
    for name in names:
        given = ("run", "at.so", "-i", "x=ones")
        assert dlc_main(*given, "-o", f"{name}=@y@1.npy")[0] == 0
        np.testing.assert_array_equal(np.load("y@1.npy"), [-1.0] * 3)
        assert dlc_main(*given, "--expect", f"{name}=@y@1.npy")[0] == 0
    code, _, said = dlc_main("run", "at.so", "-o", "n@1=@y.npy")
    assert (code, "--output: there is no output 'n@1'" in said) == (2, True)


def blur(width):
    """A convolution without padding, which takes no image of fewer rows than its kernel has."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="blur")
    weight = numpy_helper.from_array(np.ones((1, 1, width, 1), np.float32), "w")
    return model([node], ["x"], ["y"], [weight], ("n", 1, "h", 5), ("n", 1, "o", 5))


def test_sizes_that_nobody_gave_are_such_as_the_model_takes(files, dlc_main):
    onnx.save(blur(3), files / "conv.onnx")
    code, printed, said = dlc_main("run", "conv.onnx")
    assert (code, "tried with n=1, h=8" in said, "(1, 1, 6, 5)" in printed) == (0, True, True)
    assert "no sizes were given; tried with h=8" in dlc_main("run", "conv.onnx", "--dim", "n=3")[2]
    code, _, said = dlc_main("run", "conv.onnx", "--dim", "h=1")
    assert code == 2
    assert "node 'blur' (Conv): the sizes do not fit: 0 <= h - 2 must hold (h is 1)" in said
    assert "no sizes" not in dlc_main("run", "conv.onnx", "--dim", "h=3")[2]


def test_a_branch_is_asked_for_its_sizes_too(files, dlc_main):
    one, two = (
        helper.make_graph(
            [helper.make_node(op, operands, [result])],
            "branch",
            [],
            [helper.make_tensor_value_info(result, TensorProto.FLOAT, None)],
        )
        for op, operands, result in (("Conv", ["x", "w"], "a"), ("Identity", ["x"], "b"))
    )
    node = helper.make_node("If", ["c"], ["y"], then_branch=one, else_branch=two)
    weight = numpy_helper.from_array(np.ones((1, 1, 3), np.float32), "w")
    truth = numpy_helper.from_array(np.array(True), "truth")
    made = model([node], ["x"], ["y"], [weight, truth], (1, 1, "h"), (1, 1, "o"))
    made.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    onnx.save(made, files / "branch.onnx")
    code, printed, said = dlc_main("run", "branch.onnx", "-i", "c=ones")
    assert (code, "tried with h=8" in said, "(1, 1, 6)" in printed) == (0, True, True)
    code, _, said = dlc_main(
        "bench", "branch.onnx", "-i", "c=ones", "--min-time", "0", "--against", "onnxruntime"
    )
    assert (code, said.count("no sizes were given")) == (0, 1)


def test_a_size_that_nobody_gave_is_named_where_none_fits(files, dlc_main):
    onnx.save(blur(200), files / "conv.onnx")
    code, _, said = dlc_main("run", "conv.onnx")
    assert code == 2
    assert "0 <= h - 199 must hold (h is 1)" in said
    assert "hint: 1, 8, 32, 128 were tried, as nobody gave it; give it: --dim n=..." in said
    code, _, said = dlc_main("run", "conv.onnx", "--dim", "h=9")
    assert code == 2
    assert "must hold (h is 9)" in said
    assert "hint" not in said, "n was not given, but has nothing to do with it"
    assert "hint" not in dlc_main("run", "conv.onnx", "--dim", "n=3", "--dim", "h=1")[2]
    assert dlc_main("run", "conv.onnx", "--dim", "h=200")[0] == 0


def test_an_output_is_written_whole_and_under_its_name(files, dlc_main, monkeypatch):
    assert dlc_main("run", "mlp.so", "-o", "y=@y.bin")[0] == 0
    old = (files / "y.bin").read_bytes()

    def fill_the_disk(stream, _):
        stream.write(b"half")
        raise OSError("1000 requested and 4 written")

    monkeypatch.setattr(np, "save", fill_the_disk)
    code, _, said = dlc_main("run", "mlp.so", "-o", "y=@y.bin")
    assert code == 2
    assert "cannot write y.bin: 1000 requested and 4 written" in said
    assert [p.name for p in files.iterdir() if "y.bin" in p.name] == ["y.bin"]
    assert (files / "y.bin").read_bytes() == old


def test_a_number_fills_an_input(files, dlc_main):
    nodes = [helper.make_node("Add", ["x", "x"], ["y"])]
    proto = model(nodes, ["x"], ["y"], [], (2,), (2,))
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(proto, files / "bytes.onnx")
    code, printed, _ = dlc_main("run", "bytes.onnx", "-i", "x=21", "--print")
    assert (code, "[42 42]" in printed) == (0, True)
    for number in ("300", "-1"):
        code, _, said = dlc_main("run", "bytes.onnx", "-i", f"x={number}")
        assert (code, f"input 'x': {number} does not fit in uint8" in said) == (2, True)
    for number in ("0.5", "nan", "inf"):
        code, _, said = dlc_main("run", "bytes.onnx", "-i", f"x={number}")
        assert (code, f"'x': expected uint8, got the number {number}" in said) == (2, True)
    assert dlc_main("run", "mlp.so", "-i", "x=0.5", "--dim", "batch=2")[0] == 0


@pytest.mark.parametrize("sizes", [(), ("--dim", "batch=3")])
def test_a_run_is_one_run(files, dlc_main, monkeypatch, sizes):
    run, runs = Module.run, []

    def counted(module, feeds):
        runs.append(feeds)
        return run(module, feeds)

    monkeypatch.setattr(Module, "run", counted)
    assert dlc_main("run", "mlp.so", *sizes)[0] == 0
    assert len(runs) == 1


def test_zeros_and_ones_fill_bools(files, dlc_main):
    text = "(bool[2] x) => (bool[2] y) { y = Not(x) }"
    onnx.save(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 20]> m {text}'), "not.onnx"
    )
    assert "[False False]" in dlc_main("run", "not.onnx", "-i", "x=ones", "--print")[1]
    code, _, said = dlc_main("run", "not.onnx", "-i", "x=2")
    assert (code, "'x': expected bool, got the number 2" in said) == (2, True)


def test_sizes_are_said_once(files, dlc_main):
    np.save("two.npy", np.zeros((2, 5), np.float32))
    code, _, said = dlc_main("run", "mlp.so", "-i", "x=@two.npy", "--dim", "batch=3")
    assert code == 2
    assert "'batch' is 2 in what is given, and --dim says 3" in said
    assert dlc_main("run", "mlp.so", "-i", "x=@two.npy", "--dim", "batch=2")[0] == 0


@pytest.mark.parametrize("size", [10**18, 2**62, 10**30])
def test_inputs_that_no_memory_holds_are_a_limit(files, dlc_main, size):
    code, _, said = dlc_main("run", "mlp.so", "--dim", f"batch={size}")
    assert code == 7
    assert f"input 'x' of the shape ({size}, 5)" in said


@pytest.mark.parametrize("text", ["x=1", "1"])
def test_a_model_without_inputs_says_that_it_has_none(files, dlc_main, text):
    node = helper.make_node("Constant", [], ["y"], value_float=1.0)
    onnx.save(model([node], [], ["y"], [], (), ()), "none.onnx")
    code, _, said = dlc_main("run", "none.onnx", "-i", text)
    assert (code, "the model has no inputs" in said) == (2, True)


@pytest.mark.parametrize("option", [("--shape", "x=1"), ("--value", "x=1")])
def test_a_build_of_a_model_without_inputs_says_that_it_has_none(files, dlc_main, option):
    node = helper.make_node("Constant", [], ["y"], value_float=1.0)
    onnx.save(model([node], [], ["y"], [], (), ()), "none.onnx")
    code, _, said = dlc_main("build", "none.onnx", "-q", *option)
    reason = "error[DLC-E0100]: none.onnx: there is no input 'x'"
    assert (code, said) == (2, f"{reason}\nhint: the model has no inputs\n")


def test_run_takes_a_model_too(files, dlc_main):
    code, printed, _ = dlc_main("run", "mlp.onnx", "-i", "ones", "--dim", "batch=2", "--json")
    assert code == 0
    assert json.loads(printed)["outputs"][0]["shape"] == [2, 3]


def test_a_random_input_is_the_same_each_time(files, dlc_main):
    def outputs(source):
        return dlc_main("run", "mlp.so", "-i", source, "--json", "--print")[1]

    first = outputs("x=random:seed=1")
    assert first == outputs("x=random:normal:seed=1")
    assert first != outputs("x=random:seed=2")
    assert first != outputs("x=random:uniform:seed=1")
