"""The small languages of the command line."""

from __future__ import annotations

import json

import pytest

from dlc.cli.argument import (
    Source,
    parse_dims,
    parse_file,
    parse_shapes,
    parse_source,
    parse_values,
    parse_variants,
    split_known,
)
from dlc.core.errors import UserError

LONG = "1" * 5000  # more digits than Python reads


def test_shapes_and_sizes():
    assert parse_shapes(["x=1,3,h", "y=2"]) == {"x": (1, 3, "h"), "y": (2,)}
    assert parse_dims(["a=1", "b=2..3", "c=4.."]) == {"a": 1, "b": (2, 3), "c": (4, None)}


@pytest.mark.parametrize("text", ["x", "x=", "=1", "x=1,-2", "x=1,,2", "x=1.5", f"x={LONG}"])
def test_a_shape_that_cannot_be_read(text):
    with pytest.raises(UserError):
        parse_shapes([text])


@pytest.mark.parametrize(
    "texts", [["a"], ["a=-1"], ["a=..3"], ["a=1..x"], ["a=1", "a=2"], [f"a={LONG}"]]
)
def test_a_size_that_cannot_be_read(texts):
    with pytest.raises(UserError):
        parse_dims(texts)


def test_names_may_contain_what_parts_them_from_values():
    assert parse_shapes(["a=b=3", "x:0=1,h"]) == {"a=b": (3,), "x:0": (1, "h")}
    assert parse_dims(["a=b=2..3"]) == {"a=b": (2, 3)}
    values = {"a=b": [1, 2], "s": "x=1", "k": ["=", '="=']}
    assert parse_values([f"{name}={json.dumps(value)}" for name, value in values.items()]) == values


def test_of_known_names_the_longest_that_fits_ends_before_the_value():
    names = ["a", "a=b", "x:0"]
    assert split_known("a=b=@f=g.npy", names) == ("a=b", "@f=g.npy")
    assert split_known("a=random:seed=1", names) == ("a", "random:seed=1")
    assert split_known("x:0=ones", names) == ("x:0", "ones")
    assert split_known("x=ones", names) is None


def test_sources():
    assert parse_source("@a=b.npy") == Source(path="a=b.npy")
    assert parse_source("random") == Source(fill="random")
    assert [parse_source(text) for text in ("zeros", "ones", "-3", "1e-3")] == [
        Source(number=number) for number in (0, 1, -3, 0.001)
    ]
    assert parse_source("random:uniform:seed=3") == Source(fill="uniform", options={"seed": 3})
    for text in (
        "zeros:seed=1",
        "random:seed",
        "random:seed=x",
        f"random:seed={LONG}",
        "noise",
        "random:gauss",
    ):
        with pytest.raises(UserError):
            parse_source(text)


def test_files():
    assert parse_file("--output", "y=@y.npy") == ("y", "y.npy")
    assert parse_file("--output", "@all.npz") == ("", "all.npz")
    assert parse_file("--output", "y@2=@y@3.npy") == ("y@2", "y@3.npy")
    names = ["a", "a=@b", "@y"]
    assert parse_file("--output", "a=@b=@f=@g.npy", names) == ("a=@b", "f=@g.npy")
    assert parse_file("--output", "a=@c=@f.npy", names) == ("a", "c=@f.npy")
    assert parse_file("--output", "@y=@f.npy", names) == ("@y", "f.npy")
    for text in ("y.npy", "y@z.npy", "y=@", "@", "=@", "=@y.npy", "a="):
        with pytest.raises(UserError):
            parse_file("--output", text)


def test_values_of_inputs_are_json():
    assert parse_values(["sr=16000", "k=[1, 2]", "s=2.5"]) == {"sr": 16000, "k": [1, 2], "s": 2.5}
    for texts, word in ((["sr"], "NAME=VALUE"), (["a=x"], "no JSON"), (["a=1", "a=2"], "twice")):
        with pytest.raises(UserError, match=word):
            parse_values(texts)


def test_a_variant_is_given_once():
    assert parse_variants(["n=1", "n=1..2"]) == [{"n": 1}, {"n": (1, 2)}]
    for texts in (["n=1", "m=2", "n=1"], ["n=1,m=2", "m=2,n=1"]):
        with pytest.raises(UserError, match="twice"):
            parse_variants(texts)
