"""online_softmax: compute a softmax, and the sums that it weighs, some keys at a time."""

from __future__ import annotations

from dataclasses import replace

from dlc.schedule.blocked_softmax import BlockedSoftmax
from dlc.schedule.edit import read, touched_by_invoke, written
from dlc.schedule.loop import Alloc, Block, Func, Scope, Stmt, block, rewrite, walk
from dlc.schedule.primitive import check_fresh, primitive, refuse
from dlc.schedule.softmax import Softmax, find_softmax


@primitive
def online_softmax(func: Func, mixed: str, loop: str, keys: int) -> Func:
    """Compute a softmax and the sums of products that it weighs for some keys at a time.

    A row keeps its largest score and the total of its exponentials so far. Weights are those of the
    keys so far, and with each further block what was summed up is multiplied by how much smaller
    they became. The sum of a row's weights is never above 1, so nothing overflows that did not; a
    row whose scores are all -inf is NaN, as before. This reorders the reductions, and rounds what
    was summed up once more for each block.

    Before:
        def f(x: f32[3, 6], v: f32[6, 2], *, out: f16[3, 2]):
            m = alloc(f32[3, 1], "local")
            e = alloc(f32[3, 6], "local")
            s = alloc(f32[3, 1], "local")
            w = alloc(f32[3, 6], "local")
            o = alloc(f32[3, 2], "local")
            for i in range(3):
                for u in range(1):
                    m[i, u] = -inf
                    for k in range(6):
                        m[i, u] = max(m[i, u], x[i, k])
            for a in range(3):
                for b in range(6):
                    e[a, b] = exp(x[a, b] - m[a, 0])
            for c in range(3):
                for t in range(1):
                    s[c, t] = 0.0
                    for d in range(6):
                        s[c, t] += e[c, d]
            for g in range(3):
                for h in range(6):
                    w[g, h] = e[g, h] / s[g, 0]
            for p in range(3):
                for q in range(2):
                    o[p, q] = 0.0
                    for r in range(6):
                        o[p, q] += w[p, r] * v[r, q]
            for y in range(3):
                for z in range(2):
                    out[y, z] = f16(o[y, z])

    Call:
        online_softmax("o", "kb", 3)

    After:
        def f(x: f32[3, 6], v: f32[6, 2], *, out: f16[3, 2]):
            o = alloc(f32[3, 2], "local")
            s_all = alloc(f32[3, 1], "local")
            m_all = alloc(f32[3, 1], "local")
            for i_begin in range(3):
                for u_begin in range(1):
                    m_all[i_begin, 0] = -inf
                    s_all[i_begin, 0] = 0.0
            for p_begin in range(3):
                for q_begin in range(2):
                    o[p_begin, q_begin] = 0.0
            for kb in range(2):
                w = alloc(f32[3, 3], "local")
                s = alloc(f32[3, 1], "local")
                e = alloc(f32[3, 3], "local")
                m = alloc(f32[3, 1], "local")
                s_scale = alloc(f32[3, 1], "local")
                s_over = alloc(f32[3, 1], "local")
                m_base = alloc(f32[3, 1], "local")
                o_part = alloc(f32[3, 2], "local")
                for i in range(3):
                    for u in range(1):
                        m[i, u] = -inf
                        for k in range(3):
                            m[i, u] = max(m[i, u], x[i, kb * 3 + k])
                for i_now in range(3):
                    for u_now in range(1):
                        m_base[i_now, 0] = max(m[i_now, 0], m_all[i_now, 0])
                        m_base[i_now, 0] = (0.0 if m_base[i_now, 0] == -inf else m_base[i_now, 0])
                for a in range(3):
                    for b in range(3):
                        e[a, b] = exp(x[a, kb * 3 + b] - m_base[a, 0])
                for c in range(3):
                    for t in range(1):
                        s[c, t] = 0.0
                        for d in range(3):
                            s[c, t] += e[c, d]
                for i_in in range(3):
                    for u_in in range(1):
                        s_scale[i_in, 0] = s_all[i_in, 0] * exp(m_all[i_in, 0] - m_base[i_in, 0])
                        s_all[i_in, 0] = s_scale[i_in, 0] + s[i_in, 0]
                        s_over[i_in, 0] = 1.0 / max(s_all[i_in, 0], 1.0)
                        s_scale[i_in, 0] = s_over[i_in, 0] * s_scale[i_in, 0]
                        m_all[i_in, 0] = max(m[i_in, 0], m_all[i_in, 0])
                for g in range(3):
                    for h in range(3):
                        w[g, h] = e[g, h] * s_over[g, 0]
                for p in range(3):
                    for q in range(2):
                        o_part[p, q] = 0.0
                        for r in range(3):
                            o_part[p, q] += w[p, r] * v[kb * 3 + r, q]
                for p_in in range(3):
                    for q_in in range(2):
                        o[p_in, q_in] = o_part[p_in, q_in] + o[p_in, q_in] * s_scale[p_in, 0]
            for p_end in range(3):
                for q_end in range(2):
                    o[p_end, q_end] = s_all[p_end, 0] / s_all[p_end, 0] * o[p_end, q_end]
            for y in range(3):
                for z in range(2):
                    out[y, z] = f16(o[y, z])

    Raises:
        ScheduleError: the buffer is no sum of products that a softmax of float32 weighs; its nests
            do not follow each other, or store something else, too; what they compute is read
            elsewhere; fewer keys than 1; a name is taken.
    """
    found = find_softmax(func, mixed)
    if isinstance(found, str):
        refuse("online_softmax", func, found)
    if keys < 1:
        refuse("online_softmax", func, f"{keys} keys are fewer than 1")
    home, nests = _home(func, found)
    blocked = BlockedSoftmax(func, found, loop, keys)
    check_fresh("online_softmax", func, (*blocked.names.every, *blocked.new_loops()))
    at = home.stmts.index(nests[0])
    body = block(*home.stmts[:at], blocked.blocked(nests), *home.stmts[at + len(nests) :])
    for buffer in blocked.kept():
        body = Alloc(buffer, Scope.LOCAL, body)
    gone = {s.buffer for s in found.stages} - {mixed}

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, Alloc) and stmt.buffer.name in gone:
            return stmt.body
        return body if stmt is home else stmt

    return replace(func, body=rewrite(func.body, visit))


def _home(func: Func, found: Softmax) -> tuple[Block, tuple[Stmt, ...]]:
    """The nests that store what the softmax consists of, and the block that they stand in."""
    wanted = {s.buffer for s in found.stages}
    for home in (b for b in walk(func.body) if isinstance(b, Block)):
        mine = [n for n, stmt in enumerate(home.stmts) if written(stmt) & wanted]
        if len(mine) < len(wanted):
            continue
        nests = home.stmts[mine[0] : mine[0] + len(mine)]
        if any(len(written(n)) != 1 or not written(n) <= wanted for n in nests):
            refuse("online_softmax", func, "its nests store something else, too, or stand apart")
        inner = wanted - {found.mixed.buffer}
        rest = [s for s in home.stmts if s not in nests]
        if others := {b for s in rest for b in read(s)} & inner:
            refuse("online_softmax", func, f"'{min(others)}' is read elsewhere")
        if any(touched_by_invoke(n, b) for n in nests for b in wanted):
            refuse("online_softmax", func, "an instruction uses it")
        return home, nests
    refuse("online_softmax", func, "its nests are no neighbours")
