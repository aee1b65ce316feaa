"""A model imported several times: for all sizes, and beside that for some alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import reduce

from numpy.typing import ArrayLike

from dlc.core.errors import UserError
from dlc.frontend.onnx.convert import Imported, import_beside
from dlc.frontend.onnx.interface import Dim, refused, with_values
from dlc.frontend.onnx.limits import DEFAULT_LIMITS, Limits
from dlc.frontend.onnx.model import OnnxModel
from dlc.frontend.onnx.names import Names
from dlc.frontend.onnx.structure import Structure
from dlc.graph.variants import Variant, choose_graph
from dlc.graph.verify import verify_graph
from dlc.te.expr import TRUE, Expr, Var, both, equal, index

Sizes = Mapping[str, Dim]
_LOG = logging.getLogger(__name__)


def import_variants(
    model: OnnxModel,
    variants: Sequence[Sizes],
    *,
    dims: Sizes | None = None,
    shapes: Mapping[str, Structure] | None = None,
    values: Mapping[str, ArrayLike] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Imported:
    """The graph of a model, which for some sizes runs one that is made for them alone.

    `variants` are, for each further graph, the dimensions it fixes or bounds; a run takes the first
    that fits, and else the general one. The others are what `import_model` takes, for all of them.

    Where sizes of different names broadcast, and a run may find that one of them is 1, the graph
    that takes them for equal is a variant, too, and the general one lets the run decide.

    Raises:
        UserError: a variant names a dimension that is not open, or sizes that `dims` rules out;
            or for the reasons `import_model` has.
    """
    model = with_values(model, values or {})
    names, base, shapes = Names(), dict(dims or {}), shapes or {}
    general = import_beside(model, base, shapes, limits, names, {})
    variables = {dim: variable for variable, dim in general.interface.sizes.items()}
    found: list[Variant] = []
    for sizes in variants:
        cond = _condition(model.label, sizes, variables, general.graph.size_ranges)
        narrow = import_beside(model, base | dict(sizes), shapes, limits, names, variables)
        if narrow.assumed:
            narrow = _deciding(model, base | dict(sizes), shapes, limits, names, variables, narrow)
        fixed = {variables[d]: index(n) for d, n in sizes.items() if isinstance(n, int)}
        found.append(Variant(cond, fixed, narrow.graph))
    if general.assumed:
        equals = Variant(reduce(both, general.assumed), {}, general.graph)
        open_ = _deciding(model, base, shapes, limits, names, variables, general)
        if open_ is not general:
            found.append(equals)
            general = open_
    if not found:
        return general
    graph = choose_graph(general.graph, found, names.fresh)
    verify_graph(graph, when="after import of variants")
    return Imported(graph, general.interface, variants=tuple(variants))


def _deciding(
    model: OnnxModel,
    dims: Sizes,
    shapes: Mapping[str, Structure],
    limits: Limits,
    names: Names,
    variables: Mapping[str, str],
    assuming: Imported,
) -> Imported:
    """The graph that lets a run decide what broadcasts; the given one where there is none."""
    attempt = names.copy()
    try:
        found = import_beside(model, dims, shapes, limits, attempt, variables, decides=True)
    except UserError as error:
        _LOG.warning("%s: sizes that broadcast are taken for equal: %s", model.label, error)
        return assuming
    if found.interface.sizes != assuming.interface.sizes:
        return assuming
    names.become(attempt)
    return found


def _condition(
    label: str,
    sizes: Sizes,
    variables: Mapping[str, str],
    ranges: Mapping[str, tuple[int, int | None]],
) -> Expr:
    """When a variant fits."""
    cond: Expr = TRUE
    if not sizes:
        raise refused(label, "a variant fixes or bounds no dimension")
    for name, dim in sizes.items():
        if name not in variables:
            hint = f"the open dimensions: {', '.join(variables) or 'there is none'}"
            reason = f"a variant needs an open dimension, and '{name}' is none"
            raise refused(label, reason, hint)
        size = Var(variables[name])
        low, high = (dim, dim) if isinstance(dim, int) else dim
        least, most = ranges.get(size.name, (0, None))
        if (high is not None and high < least) or (most is not None and low > most):
            reason = f"no run takes the variant '{name}' = {low}: it is {least} at least"
            reason = f"{reason}, {most} at most" if most is not None else reason
            raise refused(label, reason)
        if low == high:
            cond = both(cond, equal(size, low))
            continue
        cond = both(cond, index(low) <= size)
        if high is not None:
            cond = both(cond, size <= high)
    return cond
