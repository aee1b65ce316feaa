"""Recipes: each adds nodes of some operators, with operands and attributes they accept."""

from __future__ import annotations

from dlc.testing.recipes.blocks import BLOCKS
from dlc.testing.recipes.control import CONTROL
from dlc.testing.recipes.elementwise import ELEMENTWISE
from dlc.testing.recipes.indices import INDICES
from dlc.testing.recipes.linear import LINEAR
from dlc.testing.recipes.moves import MOVES
from dlc.testing.recipes.quantized import QUANTIZED
from dlc.testing.recipes.recipe import Recipe
from dlc.testing.recipes.reductions import REDUCTIONS
from dlc.testing.recipes.windows import WINDOWS

RECIPES: tuple[Recipe, ...] = (
    *ELEMENTWISE,
    *MOVES,
    *REDUCTIONS,
    *LINEAR,
    *WINDOWS,
    *INDICES,
    *QUANTIZED,
    *BLOCKS,
    *CONTROL,
)
