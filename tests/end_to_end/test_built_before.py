"""A model that was built before is found by its file, and neither read nor compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

import dlc
from dlc import artifact_cache, artifact_key
from dlc.artifact_cache import BuiltBefore, hash_whole
from dlc.autotune.apply import Records, apply_best
from dlc.autotune.log import TuningLog
from dlc.autotune.told import default_log
from dlc.build_report import BuildReport
from dlc.compiler import build
from dlc.core.target_parse import parse_target
from tests.cli.models import perceptron

NATIVE = parse_target("native")
OF = staticmethod(BuiltBefore.of)  # before a fixture of the whole session takes its place


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, where every model counts as large."""
    monkeypatch.setenv("DLC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(artifact_key, "MIN_WEIGHT_BYTES", 0)
    monkeypatch.setattr(BuiltBefore, "of", OF)
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model in a file."""
    onnx.save(perceptron(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def stages(model: Path, out: Path, **asked: object) -> list[str]:
    """The stages of a build: of one that is found by its file, the cache alone."""
    found: list[str] = []
    build(model, out, progress=lambda p: found.append(p.stage), **asked)  # type: ignore[arg-type]
    return found


def is_found(path: Path, **asked: object) -> bool:
    """Whether an artefact is found by the files it was built from."""
    return stages(path, path.with_suffix(".so"), **asked) == ["cache"]


def test_the_second_artefact_is_the_first(path: Path, tmp_path: Path) -> None:
    first: BuildReport = build(path, tmp_path / "first.so")
    assert stages(path, tmp_path / "second.so") == ["cache"]
    second = build(str(path), tmp_path / "second.so")
    assert replace(first, path=second.path, seconds=second.seconds, passes=()) == second
    assert first.path.read_bytes() == second.path.read_bytes()
    dlc.load(second.path)


def test_a_file_of_another_name_is_the_same(path: Path, tmp_path: Path) -> None:
    build(path, tmp_path / "model.so")
    (tmp_path / "elsewhere").mkdir()
    assert is_found(path.rename(tmp_path / "elsewhere" / "other.onnx"))


@pytest.mark.parametrize(
    "change",
    [
        {"precision": "high"},
        {"half": "bf16"},
        {"half": "bf16", "keep": ["Relu"]},
        {"optimize": False},
        {"dims": {"batch": 3}},
        {"shapes": {"x": (3, 5)}},
        {"variants": [{"batch": 1}]},
        {"target": replace(NATIVE, l2_bytes=12345)},
        {"target": replace(NATIVE, features=NATIVE.features - {"fma"})},
        {"tuning": "none"},
        {"tuning": Records()},
        {"schedule": lambda *_: None},
    ],
)
def test_whatever_a_build_is_told_makes_another(path: Path, change: dict[str, object]) -> None:
    assert not is_found(path, target=NATIVE)
    assert is_found(path, target=NATIVE)
    asked = {"target": NATIVE} | change
    assert not is_found(path, **asked)
    never = {"tuning", "schedule"} & set(change) and change.get("tuning") != "none"
    assert is_found(path, **asked) != bool(never)


def test_numbers_in_the_place_of_inputs_are_always_read(path: Path) -> None:
    values = {"x": np.zeros((2, 5), np.float32)}
    assert [is_found(path, values=values) for _ in range(2)] == [False, False]


def test_another_model_of_the_same_size_is_another(path: Path) -> None:
    build(path, path.with_suffix(".so"))
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    assert not is_found(path)


def test_another_compiler_makes_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(path, path.with_suffix(".so"))
    monkeypatch.setattr(artifact_cache, "compiler_version", lambda: "another")
    assert not is_found(path)


def test_weights_beside_a_model_are_looked_at(tmp_path: Path) -> None:
    path, weights = tmp_path / "model.onnx", tmp_path / "weights.bin"
    onnx.save(
        perceptron(), path, save_as_external_data=True, location=weights.name, size_threshold=0
    )
    assert weights.is_file()
    assert [is_found(path), is_found(path)] == [False, True]
    data = bytearray(weights.read_bytes())
    data[3] ^= 1
    weights.write_bytes(data)
    assert [is_found(path), is_found(path)] == [False, True]
    weights.unlink()
    with pytest.raises(dlc.ModelError, match=r"weights\.bin"):
        build(path, tmp_path / "model.so")


def test_a_log_beside_a_model_is_looked_at(path: Path) -> None:
    build(path, path.with_suffix(".so"))
    with TuningLog(default_log(path)):
        pass
    assert [is_found(path), is_found(path)] == [False, True]
    assert not is_found(path, tuning=default_log(path))
    assert is_found(path, tuning=default_log(path))
    default_log(path).with_name(f"{default_log(path).name}-wal").touch()
    assert not is_found(path)  # somebody writes to it
    with apply_best(Records()):
        assert not is_found(path)


def test_a_folder_in_the_place_of_a_log_is_no_log(path: Path) -> None:
    for folder in (".", "/", path.parent):
        with pytest.raises(dlc.UserError, match="there is no such log"):
            build(path, path.with_suffix(".so"), tuning=folder)


def test_a_model_that_is_replaced_meanwhile_is_not_remembered(path: Path, tmp_path: Path) -> None:
    old = path.read_bytes()

    def change(_: object) -> None:
        model = perceptron()
        model.graph.node[0].name = "another"
        onnx.save(model, tmp_path / "new.onnx")
        os.replace(tmp_path / "new.onnx", path)

    build(path, tmp_path / "model.so", progress=change)
    path.write_bytes(old)
    assert not is_found(path)


def test_an_artefact_that_is_gone_is_built_again(path: Path, cache: Path) -> None:
    build(path, path.with_suffix(".so"))
    for file in cache.glob("??/*.file"):
        file.unlink()
    assert [is_found(path), is_found(path)] == [False, True]


def test_who_asks_for_more_than_the_artefact_gets_a_whole_build(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(path, path.with_suffix(".so"))
    monkeypatch.setenv("DLC_DUMP", str(tmp_path / "dump"))
    assert not is_found(path)
    assert list((tmp_path / "dump").iterdir())


def test_all_of_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact_cache, "_PART", 64)
    seen = set()
    for size in (0, 1, 63, 64, 65, 128, 300):
        (tmp_path / "file").write_bytes(bytes(size))
        seen.add(hash_whole(tmp_path / "file"))
    (tmp_path / "file").write_bytes(bytes(150) + b"1" + bytes(149))
    seen.add(hash_whole(tmp_path / "file"))
    assert len(seen) == 8


SECOND = """
import sys
from dlc.cli import main
sys.argv = ["dlc", "build", sys.argv[1], "--quiet", *sys.argv[2:]]
try:
    main()
finally:
    heavy = {"llvmlite", "onnx", "ml_dtypes", "onnxruntime", "dlc.te", "dlc.graph"}
    print(*sorted(heavy & set(sys.modules)))
"""


@pytest.mark.parametrize("options", [["--no-verify"], []])
def test_nothing_that_compiles_is_imported(tmp_path: Path, options: list[str]) -> None:
    """By the command line, and where the two were compared before."""
    if not options:
        pytest.importorskip("onnxruntime")
    model = perceptron()
    weights = np.zeros(5 << 20, np.float32)  # as large as what is kept
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "unused"))
    model.graph.node.append(onnx.helper.make_node("Identity", ["unused"], ["copied"]))
    model.graph.output.append(
        onnx.helper.make_tensor_value_info("copied", onnx.TensorProto.FLOAT, [5 << 20])
    )
    onnx.save(model, tmp_path / "model.onnx")
    command = [sys.executable, "-c", SECOND, str(tmp_path / "model.onnx"), *options]
    said = [
        subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    ]
    assert "llvmlite" in said[0][-1]
    assert said[1][-1] == ""
