"""All nests by name."""

from tests.schedule.rules import moves, products, reductions, windows

CASES = products.CASES | windows.CASES | reductions.CASES | moves.CASES
