"""Who is right: tolerances, NaN, and what happens where the engines disagree."""

from __future__ import annotations

import numpy as np
import pytest

from dlc.testing.judge import is_judged, why_misread, why_wrong

EXACT = np.asarray([1.0, 100.0, -2.0])
SINGLE = EXACT.astype(np.float32)


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (SINGLE, False),
        (SINGLE * np.float32(1 + 2e-6), False),
        (SINGLE + np.float32(1e-3) * np.asarray([0, 0, 1], np.float32), True),
        (np.asarray([1, 100, np.nan], np.float32), True),
        (SINGLE[:2], True),
    ],
)
def test_floats_have_a_tolerance(found, wrong):
    assert bool(why_wrong({"y": found}, {"y": EXACT}, [])) is wrong


def test_integers_have_none():
    exact = np.asarray([3, 4])
    assert not why_wrong({"y": exact}, {"y": exact}, [])
    assert "at [1] is 5, not 4" in why_wrong({"y": np.asarray([3, 5])}, {"y": exact}, [])


def test_products_may_vanish_or_overflow_on_the_way():
    exact = np.asarray([1e-89, 1e99, 1.0])
    assert not why_wrong({"y": np.asarray([-np.inf, 0, 1], np.float32)}, {"y": exact}, [])


def test_equal_infinities_and_nans_agree():
    exact = np.asarray([np.nan, np.inf, -np.inf])
    assert not why_wrong({"y": exact.astype(np.float32)}, {"y": exact}, [])


def test_what_overflows_for_a_peer_too_is_right_where_the_reference_goes_further():
    early = np.asarray([1, np.nan, -2], np.float32)
    late = {"y": SINGLE}  # a peer that loses the NaN on its way
    assert why_wrong({"y": early}, {"y": EXACT}, [late, {"y": early}])
    assert not why_wrong({"y": early}, {"y": EXACT}, [late, {"y": early}], overflows=True)
    assert why_wrong({"y": early}, {"y": EXACT}, [late], overflows=True)


def test_a_model_on_which_others_are_off_too_has_more_tolerance():
    found = SINGLE * np.float32(1.002)
    peer = SINGLE * np.float32(1.0005)
    assert why_wrong({"y": found}, {"y": EXACT}, [{"y": SINGLE}])
    assert not why_wrong({"y": found}, {"y": EXACT}, [{"y": peer}])


def test_what_two_peers_see_unlike_the_reference_is_a_difference_in_meaning():
    peer = {"y": np.asarray([1, 100, 7], np.float32)}
    ours = {"y": SINGLE}
    assert not why_wrong(ours, {"y": EXACT}, [peer])
    assert "at [2] is -2.0, elsewhere 7.0" in why_misread(ours, {"y": EXACT}, [peer, peer])
    assert not why_misread(ours, {"y": EXACT}, [peer])
    assert not why_misread(ours, {"y": EXACT}, [peer, {"y": SINGLE}])


def test_constants_of_float32_in_a_body_of_float64_are_no_other_meaning():
    truth, peer = {"y": EXACT / 6}, {"y": EXACT * np.float64(np.float32(1 / 6))}
    assert not why_misread(truth, truth, [peer, peer])
    far = {"y": EXACT * 0.1667}
    assert why_misread(truth, truth, [far, far])


def test_a_tie_that_only_the_reference_rounds_otherwise_is_none():
    exact, twenty_six = {"y": np.asarray([25, 7])}, {"y": np.asarray([26, 7])}
    assert not why_misread(twenty_six, exact, [twenty_six] * 2)
    assert "is 25, elsewhere 26" in why_misread(exact, exact, [twenty_six] * 2)
    far = {"y": np.asarray([27, 7])}
    assert "is 25, elsewhere 27" in why_misread(far, exact, [far] * 2)


def test_what_is_beyond_the_type_may_be_infinite_everywhere_else():
    huge = {"y": np.full(3, np.inf, np.float16)}
    assert not why_misread(huge, {"y": np.full(3, 164386.0)}, [huge] * 2)
    assert "elsewhere inf" in why_misread(huge, {"y": np.full(3, 65000.0)}, [huge] * 2)


def test_another_shape_or_type_everywhere_is_a_difference_in_meaning():
    ours = {"y": SINGLE}
    assert "has shape" in why_misread(ours, {"y": EXACT}, [{"y": SINGLE[:, None]}] * 2)
    assert "is float32" in why_misread(ours, {"y": EXACT}, [{"y": EXACT}] * 2)


def test_what_no_peer_sees_alike_is_not_judged():
    ours = {"y": SINGLE}
    assert is_judged(ours, {"y": EXACT}, [])
    assert is_judged(ours, {"y": EXACT}, [{"y": SINGLE[:, None]}, {"y": SINGLE * [1, 2, 3]}])
    assert not is_judged(ours, {"y": EXACT}, [{"y": SINGLE[:, None]}, {"y": SINGLE + 1}])
