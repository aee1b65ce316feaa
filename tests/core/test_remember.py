from dlc.core import remember
from dlc.core.remember import per_object


def test_the_same_object_is_asked_about_once(monkeypatch):
    asked = []

    @per_object
    def length(of):
        asked.append(of)
        return len(of)

    one, twin = (1, 2), tuple([1, 2])
    assert [length(one), length(one), length(twin)] == [2, 2, 2]
    assert len(asked) == 2
    assert asked[0] is one
    assert asked[1] is twin
    monkeypatch.setattr(remember, "_MOST", 2)
    length((3,))  # forgets the others
    length(one)
    assert len(asked) == 4


def test_no_answer_is_that_of_an_object_that_is_gone():
    @per_object
    def half(of: list[int]) -> int:
        return of[0] // 2

    assert [half([2 * n]) for n in range(1000)] == list(range(1000))
