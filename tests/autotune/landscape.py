"""A machine that only exists here: builds and measures by formula, so that searches are exact."""

import json
from math import log2
from random import Random
from statistics import median

from dlc.autotune.cost_model import Description
from dlc.autotune.design import Design, Family
from dlc.autotune.features import NAMES
from dlc.autotune.job import Job, Reply
from dlc.autotune.loop_tree import WIDTH, Node, print_tree
from dlc.schedule.space import Limit, Space
from dlc.schedule.trace import Trace

SPACE = Space(
    {"x": tuple(range(16)), "y": tuple(range(16)), "z": (0, 1, 2, 3)}, (Limit(("x",), 14),)
)
DEFAULT_NS = 64_000


def time_of(knobs: dict[str, int]) -> float:
    """A bowl with a ridge; the best point, of which there is one, is x=11, y=6, z=2."""
    x, y, z = knobs["x"], knobs["y"], knobs["z"]
    return 20_000 * (1 + 0.05 * (x - 11) ** 2 + 0.04 * (y - 6) ** 2 + 0.4 * (z - 2) ** 2)


def features_of(knobs: dict[str, int]) -> list[float]:
    found = [0.0] * len(NAMES)
    found[:5] = [knobs["x"], knobs["y"], knobs["z"], log2(1 + knobs["x"]), knobs["y"] * knobs["z"]]
    return found


def tree_of(knobs: dict[str, int]) -> str:
    """A loop for each knob, whose extent is the choice."""

    def node(extent, *children):
        return Node((extent / 8, *[0.0] * (WIDTH - 1)), children)

    x, y, z = (knobs.get(name, 0) for name in "xyz")
    return print_tree(node(0, node(x, node(y, node(z)))))


def seen(knobs: dict[str, int]) -> Description:
    return Description(tuple(features_of(knobs)), tree_of(knobs))


def family(space: Space = SPACE, name: str = "rule.landscape") -> Family:
    return Family(name, space, lambda knobs: Trace(None))  # nobody schedules here


class Landscape:
    """An executor. `broken` gives a status for some knobs; nests are equal if z is 3."""

    def __init__(self, broken=lambda knobs: ""):
        self.broken = broken
        self.built = 0
        self.measured = 0
        self.slots = 2

    def run(self, jobs):
        for position, job in enumerate(jobs):
            yield position, self.answer(job)

    def close(self):
        pass

    def answer(self, job: Job) -> Reply:
        if job.data["job"] == "measure":
            return self.measure(job)
        self.built += job.data["code"]
        if job.data["kind"] in ("default", "plain"):
            knobs = {"default": True}
            return Reply(self.ok(knobs, [0.0] * len(NAMES)), (json.dumps(knobs).encode(),))
        if job.data["kind"] == "steps":
            knobs = dict(json.loads(job.data["steps"])[0][1][0])
        else:
            knobs = dict(job.data["knobs"])
        if self.broken(knobs) == "invalid":
            return Reply({"status": "invalid", "detail": "refused"})
        found = self.ok(knobs, features_of(knobs))
        if job.data.get("tree"):
            found["tree"] = tree_of(knobs)
        return Reply(found, (json.dumps(knobs).encode(),))

    def ok(self, knobs, features):
        nest = "twin" if knobs.get("z") == 3 else json.dumps(knobs)
        steps = json.dumps([["knobs", [sorted(knobs.items())]]])
        return {"status": "ok", "steps": steps, "nest": nest, "features": features}

    def measure(self, job: Job) -> Reply:
        self.measured += 1
        knobs = json.loads(job.blobs[0])
        if "default" in knobs:
            time = DEFAULT_NS
        elif status := self.broken(knobs):
            return Reply({"status": status, "detail": "broken on purpose"})
        else:
            time = int(time_of(knobs))
        return Reply({"status": "ok", "times_ns": [time] * 3, "anchor_ns": [DEFAULT_NS] * 3})


def speedup(design: Design) -> float:
    return DEFAULT_NS / int(time_of(dict(design.knobs)))


BEST = DEFAULT_NS / 20_000


def median_best_by_chance(trials: int) -> float:
    """The best speed-up among trials drawn by chance, as often missed as surpassed."""
    points = list(SPACE.points())
    times = [
        min(time_of(point) for point in Random(seed).sample(points, trials)) for seed in range(99)
    ]
    return DEFAULT_NS / median(times)
