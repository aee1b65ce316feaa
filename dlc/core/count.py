"""How messages write a number of things."""

from __future__ import annotations


def show_count(count: int, noun: str) -> str:
    """`1 kernel`, `2 kernels`.

    >>> show_count(0, "node")
    '0 nodes'
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"
