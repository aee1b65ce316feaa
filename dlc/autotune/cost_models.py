"""The kinds of cost models, by the names of the command line."""

from __future__ import annotations

from importlib.util import find_spec

from dlc.autotune.cost_model import CostModel, XGBoostModel
from dlc.autotune.shipped import shipped_model
from dlc.core.errors import UserError
from dlc.core.target import Target

COST_MODELS = ("xgboost", "tree-gru")


def check_cost_model(name: str) -> None:
    """Whether there is such a cost model and all it needs, before a session begins.

    Raises:
        UserError: no such cost model; the package it is built on is not installed.
    """
    if name not in COST_MODELS:
        raise UserError(detail=f"cost model '{name}'", hint=f"one of {', '.join(COST_MODELS)}")
    if name == "tree-gru" and find_spec("torch") is None:
        raise UserError(detail="--cost-model tree-gru needs torch", hint="pip install 'dlc[torch]'")


def begin_model(name: str, target: Target | None, *, seed: int = 0) -> CostModel:
    """A cost model; boosted trees know what those for the target's family of CPUs learned before.

    Raises:
        UserError: as `check_cost_model`.
    """
    check_cost_model(name)
    if name == "tree-gru":
        from dlc.autotune.tree_gru import TreeGRU

        return TreeGRU(seed=seed)
    model = XGBoostModel(seed=seed)
    path = shipped_model(target) if target is not None else None
    if path is not None:
        model.load(path)
    return model
