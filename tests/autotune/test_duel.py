"""Races of two artefacts: what they tell, and that any machine can run them."""

import logging
from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from dlc.autotune import job as jobs
from dlc.autotune.duel import LEAST_LIVES, MOST_LIVES, Duel
from dlc.autotune.runners import open_runners
from dlc.autotune.station import Station
from dlc.autotune.wire import Message
from dlc.compiler import build
from dlc.tune_race import Racers, Races
from tests.autotune.examples import OTHER as TARGET
from tests.cli.models import perceptron


def test_faster_means_faster_in_more_than_one_process():
    random = Random(0)

    def life(gain, noise=0):
        before = [1000 + random.randint(-noise, noise) for _ in range(5)]
        return before, [round(t / gain) + random.randint(-noise, noise) for t in before]

    steady = Duel(tuple(life(1.05, 9) for _ in range(8)))
    assert (steady.is_faster, steady.is_slower) == (True, False)
    assert steady.speedup == pytest.approx(1.05, abs=0.01)
    assert steady.time_ns(0) > steady.time_ns(1)
    back = Duel(tuple((b, a) for a, b in steady.lives))
    assert (back.is_faster, back.is_slower) == (False, True)
    # Within each process the difference is plain; the next one says the contrary.
    moody = Duel(tuple(life(gain) for gain in (1.1, 0.92) * 4))
    assert (moody.is_faster, moody.is_slower) == (False, False)
    assert not Duel(tuple(life(1.0) for _ in range(8))).is_faster
    assert not Duel((life(1.5), life(1.5))).is_faster  # too few to tell
    assert Duel(()).speedup == 0.0


def test_chance_wins_once_in_twenty_times():
    random = Random(1)

    def race():
        gains = (random.gauss(0, 0.03) for _ in range(8))
        return Duel(tuple(([1_000_000], [round(1_000_000 * (1 + g))]) for g in gains))

    wins = sum(race().is_faster for _ in range(2000))
    assert 70 < wins < 130


@pytest.fixture(scope="module")
def artefacts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("race")
    paths = [folder / f"{name}.so" for name in "ab"]
    for path in paths:
        build(perceptron(), path, tuning="none")
    return tuple(map(str, paths))


def test_each_process_opens_the_artefacts_in_another_order(artefacts, monkeypatch):
    opened = []

    def confined(work, limits):
        assert limits.seconds <= 120
        opened.append(work.args[1])
        return {"status": "ok", "times_ns": [[len(opened)], [0]]}

    monkeypatch.setattr("dlc.autotune.station.confined", confined)
    job = jobs.race(artefacts, sizes={"batch": 4}, threads=1, budget_seconds=0.0)
    lives = Station().race(job.data)["lives"]
    assert len(lives) == LEAST_LIVES < MOST_LIVES
    assert opened[:2] == [list(artefacts), list(artefacts)[::-1]]
    assert lives[:2] == [[[1], [0]], [[0], [2]]]


def test_a_machine_without_the_files_asks_for_them(artefacts, tmp_path):
    away = [f"{tmp_path}/{name}.so" for name in "ab"]
    station = Station()
    job = jobs.race(tuple(away), sizes={"batch": 4}, threads=1, rounds=3, budget_seconds=0.0)
    assert station.race(job.data) == {"status": "missing", "pieces": away}
    for name, path in zip(away, artefacts, strict=True):
        blob = jobs.Files([path])[path]
        station.answer(Message({"job": "store", "names": [name]}, (blob,)))
    found = station.race(job.data)
    assert (found["status"], len(found["lives"])) == ("ok", LEAST_LIVES)
    assert not station.pieces  # they are large


def test_artefacts_are_sent_to_who_asks_for_them(artefacts, tmp_path):
    away = [f"{tmp_path}/{name}.so" for name in "ab"]
    sent = dict(zip(away, jobs.Files(artefacts).values(), strict=True))
    job = jobs.race(tuple(away), sizes={"batch": 4}, threads=1, rounds=3, budget_seconds=0.0)
    pool = open_runners(["local"])
    try:
        for _ in range(2):  # the second time, too: they were not kept
            ((_, reply),) = pool.run([replace(job, pieces=sent)])
            assert (reply.data["status"], len(reply.data["lives"])) == ("ok", LEAST_LIVES)
    finally:
        pool.close()
    assert not list(tmp_path.iterdir())


def test_files_that_cannot_be_read_are_an_answer(tmp_path):
    pool = open_runners(["local"])
    try:
        job = jobs.race((f"{tmp_path}/a.so", f"{tmp_path}/b.so"), sizes={}, threads=1)
        ((_, reply),) = pool.run([job])
    finally:
        pool.close()
    assert reply.data["status"] == "error"
    assert "No such file" in reply.data["detail"]


def test_files_go_where_their_paths_mean_nothing(artefacts):
    import pickle

    sent = pickle.loads(pickle.dumps(jobs.Files(artefacts)))
    assert set(sent) == set(artefacts)
    assert all(isinstance(blob, bytes) and len(blob) > 1000 for blob in sent.values())
    with pytest.raises(KeyError):
        jobs.Files(artefacts)["/etc/hostname"]


def test_a_race_that_fails_is_told(artefacts, tmp_path, caplog, monkeypatch):
    class Broken:
        def run(self, work):
            yield 0, Message({"status": "error", "detail": "no such device"})

    class Machines:
        measure = Broken()

    monkeypatch.setattr(Races, "_build", lambda *_: artefacts[0])
    races = Races(Racers((), {}, {}), Machines(), tmp_path)
    with caplog.at_level(logging.WARNING):
        assert races._one(0, SimpleNamespace(target=TARGET), {}, {}) == 0.0
    assert "cannot be raced: no such device" in caplog.text
