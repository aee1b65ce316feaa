"""Matrix products, recurrent layers and Fourier transforms."""

from __future__ import annotations

from dlc.testing.draft import Draft, Known
from dlc.testing.recipes.recipe import Recipe


def _matmul(draft: Draft, op: str) -> None:
    fits = [v for v in draft.values if v.kind == "f" and v.rank >= 2]
    a = draft.rng.choice(fits) if fits and draft.rng.random() < 0.7 else None
    if a is None:
        a = draft.make("float32", draft.shape(draft.rng.choice((1, 2, 2, 3, 4))))
        if not a.rank:
            a = draft.make("float32", (3, 5))
    shape: tuple[int, ...] = (a.shape[-1], draft.dim())
    if a.rank > 2 and draft.rng.random() < 0.5:
        batch = tuple(n if draft.rng.random() < 0.7 else 1 for n in a.shape[:-2])
        shape = (*batch, *shape)
    if draft.rng.random() < 0.1:
        shape = shape[:1]
    b = _find(draft, a, shape)
    if op == "com.microsoft:FusedMatMul" and a.rank == 2 and a.array.dtype.name == "float32":
        b = draft.make("float32", shape[-2:])
        draft.add("FusedMatMul", [a, b], domain="com.microsoft", alpha=0.5)
    else:
        draft.add("MatMul", [a, b])


def _find(draft: Draft, a: Known, shape: tuple[int, ...]) -> Known:
    fits = [v for v in draft.values if v.shape == shape and v.array.dtype == a.array.dtype]
    if fits and draft.rng.random() < 0.3:
        return draft.rng.choice(fits)
    return draft.make(a.array.dtype.name, shape)


def _gemm(draft: Draft, op: str) -> None:
    m, k, n = (draft.dim(1) for _ in range(3))
    left, right = draft.rng.randint(0, 1), draft.rng.randint(0, 1)
    fits = [v for v in draft.values if v.array.dtype.name == "float32" and v.rank == 2]
    a = draft.make("float32", (k, m) if left else (m, k))
    if fits and draft.rng.random() < 0.6:
        a = draft.rng.choice(fits)
        k, m = a.shape if left else a.shape[::-1]
    b = draft.make("float32", (n, k) if right else (k, n))
    bias = draft.rng.choice((None, (n,), (m, n), (m, 1), (1,), ()))
    extra = [] if bias is None else [draft.make("float32", bias)]
    scale = draft.rng.choice((None, 0.5, 2.0))
    draft.add(op, [a, b, *extra], transA=left, transB=right, alpha=scale, beta=scale)


def _einsum(draft: Draft, op: str) -> None:
    equation, *shapes = draft.rng.choice(
        (
            ("ij,jk->ik", (3, 5), (5, 7)),
            ("bij,bkj->bik", (2, 3, 5), (2, 4, 5)),
            ("bhid,bhjd->bhij", (2, 3, 4, 5), (2, 3, 6, 5)),
            ("ij->ji", (3, 5)),
            ("ii->i", (4, 4)),
            ("ij->", (3, 5)),
            ("i,j->ij", (3,), (5,)),
            ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
            ("bijk,bkl->bijl", (1, 2, 3, 4), (1, 4, 5)),
            ("ij,ij,ij->i", (3, 4), (3, 4), (3, 4)),
        )
    )
    draft.add(op, [draft.make("float32", shape) for shape in shapes], equation=equation)


def _recurrent(draft: Draft, op: str) -> None:
    steps, batch, size = draft.rng.randint(1, 5), draft.rng.randint(1, 3), draft.rng.randint(1, 9)
    hidden = draft.rng.choice((1, 3, 8, 17))
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    direction = draft.rng.choice(("forward", "reverse", "bidirectional"))
    d = 2 if direction == "bidirectional" else 1
    x = draft.make("float32", (steps, batch, size))
    w = draft.make("float32", (d, gates * hidden, size), -0.5, 0.5)
    r = draft.make("float32", (d, gates * hidden, hidden), -0.5, 0.5)
    b = draft.make("float32", (d, 2 * gates * hidden)) if draft.rng.random() < 0.7 else None
    h = draft.make("float32", (d, batch, hidden)) if draft.rng.random() < 0.5 else None
    reset = draft.rng.randint(0, 1) if op == "GRU" else None
    lengths = draft.make("int32", (batch,), 1, steps) if draft.rng.random() < 0.2 else None
    draft.add(
        op,
        [x, w, r, b, lengths, h],
        outputs=2,
        hidden_size=hidden,
        direction=direction,
        linear_before_reset=reset,
    )


def _attention(draft: Draft, op: str) -> None:
    """Scores, softmax and weighted sum as exporters write them; also as an operator."""
    b, h, s, t, d = (draft.rng.choice((1, 2, 3, 5, 8)) for _ in range(5))
    q, k = draft.make("float32", (b, h, s, d)), draft.make("float32", (b, h, t, d))
    v = draft.make("float32", (b, h, t, d))
    if op == "Attention" and draft.opset >= 23:
        draft.add(op, [q, k, v], is_causal=int(s <= t and draft.rng.random() < 0.3))
        return
    turned = draft.add("Transpose", [k], perm=[0, 1, 3, 2], exact=True)[0]
    scores = draft.add("MatMul", [q, turned])[0]
    scores = draft.add("Mul", [scores, draft.make("float32", (), 0.25, 1, constant=True)])[0]
    if draft.rng.random() < 0.5:
        scores = draft.add("Add", [scores, draft.make("float32", (b, 1, 1, t))])[0]
    weights = draft.add("Softmax", [scores], axis=-1)[0]
    draft.add("MatMul", [weights, v])


LINEAR = (
    Recipe(("MatMul", "com.microsoft:FusedMatMul"), _matmul, 4),
    Recipe(("Gemm",), _gemm, 3),
    Recipe(("Einsum",), _einsum),
    Recipe(("RNN", "GRU", "LSTM"), _recurrent),
    Recipe(("Attention",), _attention, 1.5),
)
