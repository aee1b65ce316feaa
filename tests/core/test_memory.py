"""A process without memory left gets errors; it does not die."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, os
from dlc.core.memory import limit_memory

class Link:
    def __init__(self, rest):
        self.rest = rest
    def __eq__(self, other):  # recursive, by way of C in between
        return self.rest == other.rest

def chain(length):
    links = 0
    for _ in range(length):
        links = Link(links)
    return links

def ending(more_bytes, work):
    child = os.fork()
    if not child:
        status = 3
        os.close(2)
        try:
            limit_memory(more_bytes)
            work()
            status = 0
        except MemoryError:
            status = 1
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

first, second = chain(300), chain(300)
print(json.dumps({
    "within": ending(64 << 20, lambda: bytearray(32 << 20)),
    "beyond": ending(64 << 20, lambda: bytearray(128 << 20)),
    "deep": [ending(n << 10, lambda: first == second) for n in range(0, 320, 8)],
}))
"""


def test_a_limit_of_memory_leaves_the_stack_alone():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["within"] == 0
    assert found["beyond"] == 1
    assert min(found["deep"]) >= 0, "killed by a signal: the stack found no room to grow"
    assert found["deep"][-1] == 0
