from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

import dlc.runtime
from dlc.core.manifest import SizeSpec, TensorSpec, seal
from dlc.core.types import DType
from tests.runtime.affine import AFFINE, build, compile_model


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hand-written model that doubles."""
    return build(tmp_path_factory.mktemp("affine") / "affine.so")


@pytest.fixture
def model(artifact: Path) -> dlc.runtime.Module:
    return dlc.runtime.load(artifact)


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Callable[[DType], dlc.runtime.Module]:
    """The model that returns its inputs, for any element type."""
    folder = tmp_path_factory.mktemp("identity")

    @functools.cache
    def make(dtype: DType) -> dlc.runtime.Module:
        path = folder / f"{dtype}.so"
        compile_model(path, "identity.c", f"-DBYTES={dtype.size_bytes}")
        scalar, vector = TensorSpec("scalar", dtype, ()), TensorSpec("vector", dtype, ("n",))
        manifest = type(AFFINE)(
            "0.1.0",
            AFFINE.architecture,
            sizes=(SizeSpec("n"),),
            inputs=(scalar, vector),
            outputs=(TensorSpec("same scalar", dtype, ()), TensorSpec("out", dtype, ("n",))),
        )
        seal(path, manifest, hasher=dlc.runtime.hash_file)
        return dlc.runtime.load(path)

    return make
