"""How messages write numbers of things and of bytes, and which inputs there are; and which texts
are numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable


def is_number(text: str) -> bool:
    """Whether a text is a whole number in ASCII digits, and not of more than `int` surely takes.

    >>> is_number("32"), is_number("-1"), is_number("9" * 5000)
    (True, False, False)
    """
    most = sys.int_info.str_digits_check_threshold  # which no setting of Python goes below
    return text.isascii() and text.isdecimal() and len(text) <= most


def show_count(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`.

    >>> show_count(0, "node")
    '0 nodes'
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"


def show_bytes(count: float) -> str:
    """`102.4 MB`; units of 1000.

    >>> show_bytes(4188160)
    '4.2 MB'
    """
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def show_inputs(names: Iterable[str]) -> str:
    """What inputs a model has.

    >>> show_inputs(["x", "y"])
    'the inputs are x, y'
    """
    listed = ", ".join(names)
    return f"the inputs are {listed}" if listed else "the model has no inputs"
