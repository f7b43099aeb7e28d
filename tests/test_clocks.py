"""Which clocks are wrong, from bounds that requests set."""

from bstar_pipeline.clocks import Link, Off, wrong

S = 1_000_000


def test_clocks_that_may_agree_are_right() -> None:
    links = [Link("a", "c", -300, 200), Link("b", "c", -100, 400), Link("a", "w", -10 * S, 10 * S)]
    assert wrong(links) == {}
    assert wrong([]) == {}


def test_the_one_that_differs_from_the_others_is_wrong() -> None:
    links = [Link("a", "c", -300, 300), Link("b", "c", 2 * S - 100, 2 * S + 100), Link("a", "d", -300, 300)]
    assert wrong(links) == {"b": Off(2 * S, 0)}


def test_a_node_is_right_where_there_are_two() -> None:
    assert wrong([Link("z", "a", S, S)]) == {"a": Off(-S, 0)}
    assert wrong([Link("a", "z", S, S)]) == {"z": Off(-S, 0)}


def test_what_no_request_connects_is_not_compared() -> None:
    links = [Link("a", "c", -300, 300), Link("b", "d", 5 * S, 5 * S), Link("b", "e", 0, 0)]
    assert wrong(links) == {"d": Off(-5 * S, 0)}


def test_of_several_ways_to_a_clock_the_narrowest_bounds_count() -> None:
    """By d, b might be right; by c it is 3 s ahead."""
    links = [
        Link("a", "c", 0, 0),
        Link("a", "d", -5 * S, 5 * S),
        Link("b", "c", 3 * S, 3 * S),
        Link("b", "d", -5 * S, 9 * S),
    ]
    assert wrong(links) == {"b": Off(3 * S, 0)}


def test_bounds_that_exclude_each_other_are_of_clocks_that_drifted() -> None:
    """b was level with the others first and 4 s ahead in the end: 2 s, give or take."""
    links = [Link("a", "c", 0, 0), Link("a", "d", 0, 0), Link("b", "c", 4 * S, 0)]
    assert wrong(links) == {"b": Off(2 * S, 4 * S)}


def test_of_ways_that_exclude_each_other_the_clock_further_from_the_middle_drifted() -> None:
    """By c, b may be level with a; by d it is 3 s ahead."""
    links = [Link("a", "c", 0, 0), Link("a", "d", 0, 0), Link("b", "c", 0, S), Link("b", "d", 3 * S, 3 * S)]
    assert wrong(links) == {"d": Off(-S, 2 * S)}
    others = [Link(node, other, 0, 0) for node in "ab" for other in ("e", "f")]
    assert wrong([*links, *others]) == {"d": Off(-S, 2 * S)}


def test_a_way_round_that_does_not_come_back_makes_its_ends_unsure() -> None:
    """By c, b is level with a; by the calls of an application on b's own machine it is 3 s behind."""
    links = [Link("a", "c", 0, 0), Link("b", "c", 0, 0)]
    assert wrong(links) == {}
    assert wrong([*links, Link("a", "b", 3 * S, 3 * S)]) == {"b": Off(-3 * S, 3 * S), "c": Off(0, 3 * S)}
