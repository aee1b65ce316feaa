"""A second build of a large model takes the artefact of the first, and of nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

import dlc
from dlc import artifact_key, compiler_version
from dlc.autotune.apply import Records
from dlc.autotune.decision import Decision
from dlc.autotune.record import Choice
from dlc.build_report import BuildReport
from dlc.codegen.cuda.compile import Compiler
from dlc.compiler import build
from dlc.core.fork import Fork
from dlc.core.target_parse import parse_target
from dlc.frontend.onnx.convert import import_model
from dlc.frontend.onnx.load import load_model
from dlc.schedule.primitive import Step
from dlc.stages import Progress
from tests.cli.models import perceptron
from tests.runtime.emulated import build_emulated


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, where every model counts as large."""
    monkeypatch.setenv("DLC_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(artifact_key, "MIN_WEIGHT_BYTES", 0)
    return tmp_path / "cache"


def is_new(report: BuildReport) -> bool:
    """Whether the artefact was built, and not taken from the cache."""
    return bool(report.passes)


def test_the_second_artefact_is_the_first(tmp_path: Path) -> None:
    stages: list[str] = []
    first = build(perceptron(), tmp_path / "first.so")
    second = build(perceptron(), tmp_path / "second.so", progress=lambda p: stages.append(p.stage))
    assert is_new(first)
    assert not is_new(second)
    assert stages == ["import", "cache"]
    assert replace(first, path=second.path, seconds=second.seconds, passes=()) == second
    assert first.path.read_bytes() == second.path.read_bytes()
    assert first.path.stat().st_mode == second.path.stat().st_mode
    assert list(tmp_path.glob(".*")) == []
    dlc.load(second.path)


def other_weights() -> object:
    model = perceptron()
    values = bytearray(model.graph.initializer[0].raw_data)
    values[0] ^= 1
    model.graph.initializer[0].raw_data = bytes(values)
    return model


def other_names() -> object:
    model = perceptron()
    model.graph.node[0].name = "another"
    return model


def with_text(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 20]> g (string[n] x) => (string[n] y)'
        f'<string[1] s = {{"{text}"}}> {{ y = StringConcat(x, s) }}'
    )


def test_texts_are_told_apart_by_what_they_say(tmp_path: Path) -> None:
    news = [is_new(build(with_text(t), tmp_path / "model.so")) for t in ("ab", "ab", "ac")]
    assert news == [True, False, True]
    assert dlc.load(tmp_path / "model.so").run({"x": np.array(["x"])})["y"].tolist() == ["xac"]


NATIVE = parse_target("native")
CHOICE = Choice("task", "[]", "nest", "default", 2.0, 2.0)
DECISION = Decision(Fork("fusion", 1, "", NATIVE, "highest", ("0", "1"), "1"), "0", 2.0, 2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"model": other_weights()},
        {"model": other_names()},
        {"precision": "high"},
        {"half": "bf16"},
        {"half": "bf16", "keep": ["Relu"]},
        {"optimize": False},
        {"dims": {"batch": 3}},
        {"target": replace(NATIVE, l2_bytes=12345)},
        {"target": replace(NATIVE, features=NATIVE.features - {"fma"})},
        {"tuning": Records(choices={"task": CHOICE})},
        {"tuning": Records(decisions={DECISION.key: DECISION})},
    ],
)
def test_whatever_an_artefact_depends_on_makes_another(tmp_path: Path, change) -> None:
    asked = {"model": perceptron(), "target": NATIVE}
    build(**asked, out_path=tmp_path / "model.so")
    assert is_new(build(**(asked | change), out_path=tmp_path / "other.so"))


def test_another_compiler_makes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(perceptron(), tmp_path / "model.so")
    monkeypatch.setattr(artifact_key, "compiler_version", lambda: "another")
    assert is_new(build(perceptron(), tmp_path / "model.so"))


def test_all_that_code_is_written_in_is_part_of_the_compiler() -> None:
    kinds = {path.suffix for path in compiler_version.sources()}
    assert {".py", ".cuh", ".h", ".c"} <= kinds
    assert kinds.isdisjoint({".pyc", ".so", ""})


def test_another_compiler_for_gpus_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(version: str) -> bytes | None:
        found = Compiler("nvcc", "nvcc", version)
        monkeypatch.setattr(artifact_key, "find_compiler", lambda: found)
        return artifact_key.artifact_key(imported, target, ())

    target, imported = parse_target("cuda -arch=sm_90"), import_model(load_model(perceptron()))
    assert key("12.8") == key("12.8") != key("12.9")


def test_who_asks_for_more_than_the_artefact_gets_a_whole_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: tuple[Step, ...] = ()
    build(perceptron(), tmp_path / "model.so")
    assert is_new(build(perceptron(), tmp_path / "plain.so", schedule=lambda *_: plain))
    monkeypatch.setenv("DLC_DUMP", str(tmp_path / "dump"))
    assert is_new(build(perceptron(), tmp_path / "model.so"))
    assert list((tmp_path / "dump").iterdir())


def test_small_models_take_no_room(tmp_path: Path, cache: Path, monkeypatch) -> None:
    monkeypatch.setattr(artifact_key, "MIN_WEIGHT_BYTES", 1 << 20)
    for _ in range(2):
        assert is_new(build(perceptron(), tmp_path / "model.so"))
    assert list(cache.glob("??/*.file")) == []


def test_a_model_of_many_nodes_is_kept_however_small(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(artifact_key, "MIN_WEIGHT_BYTES", 1 << 20)
    monkeypatch.setattr(artifact_key, "MIN_NODES", len(perceptron().graph.node))
    assert is_new(build(perceptron(), tmp_path / "model.so"))
    assert not is_new(build(perceptron(), tmp_path / "model.so"))


def test_what_runs_on_an_emulated_gpu_alone_is_not_kept(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_emulated(perceptron(), tmp_path / "model.so", monkeypatch)
    assert list(cache.glob("??/*.file")) == []


def test_a_damaged_artefact_is_built_again(tmp_path: Path, cache: Path) -> None:
    first = build(perceptron(), tmp_path / "first.so")
    (kept,) = cache.glob("??/*.file")
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data)
    again = build(perceptron(), tmp_path / "again.so")
    assert is_new(again)
    assert first.path.read_bytes() == again.path.read_bytes()
    assert not is_new(build(perceptron(), tmp_path / "again.so"))


def test_a_place_that_cannot_be_written_to_is_refused_as_ever(tmp_path: Path) -> None:
    build(perceptron(), tmp_path / "model.so")
    with pytest.raises(dlc.UserError, match="cannot write"):
        build(perceptron(), tmp_path / "missing" / "model.so")


def test_what_another_build_put_in_the_same_place_meanwhile_is_not_kept(tmp_path: Path) -> None:
    place = tmp_path / "model.so"

    def build_another(now: Progress) -> None:
        if now.stage == "link":
            build(other_weights(), place)  # type: ignore[arg-type]

    build(perceptron(), place, progress=build_another)
    ours = place.read_bytes()
    found = build(perceptron(), tmp_path / "again.so")
    assert not is_new(found)
    assert found.path.read_bytes() == ours
    assert build(other_weights(), place).path.read_bytes() != ours  # type: ignore[arg-type]
