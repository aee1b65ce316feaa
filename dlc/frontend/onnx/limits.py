"""What an untrusted model may ask for, before it is refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds on a model file; each may be raised by the caller.

    The defaults are far above any model in public use, and low enough that a hostile file is
    refused before it costs much memory or time.
    """

    nodes: int = 100_000
    """Nodes, those of subgraphs and inlined functions included."""
    functions: int = 10_000
    nesting: int = 64
    """Depth of graphs in attributes of nodes."""
    attribute_elems: int = 2_000_000
    """Elements of a list attribute, or bytes of a string attribute; tensors are not meant."""
    rank: int = 32
    tensor_bytes: int = 1 << 40
    """Bytes of one constant."""
    sparse_bytes: int = 1 << 32
    """Bytes of all constants of which a file holds only what is not 0."""
    folded_elems: int = 1 << 16
    """Elements of a result that is computed while importing."""


DEFAULT_LIMITS = Limits()
