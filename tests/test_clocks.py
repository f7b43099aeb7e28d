"""Which clocks are wrong, from bounds that requests set."""

from bstar_pipeline.clocks import Link, Off, Word, of_peers, wrong

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


def test_of_two_clocks_of_nodes_the_one_with_more_clients_and_workers_is_right() -> None:
    links = [Link("a", "b", -180 * S, -180 * S)]
    assert wrong(links, ["a", "b"], {"a": 1, "b": 3}) == {"a": Off(-180 * S, 0)}
    assert wrong(links, ["a", "b"], {"a": 3, "b": 1}) == {"b": Off(180 * S, 0)}


def test_of_two_clocks_of_nodes_that_nothing_tells_apart_both_are_unsure() -> None:
    unsure = Off(0, 180 * S)
    assert wrong([Link("a", "b", -180 * S, -180 * S)], ["a", "b"]) == {"a": unsure, "b": unsure}
    assert wrong([Link("a", "b", -300, 300)], ["a", "b"]) == {}


def test_nodes_tell_of_each_others_clocks() -> None:
    """b's clock is 180 s ahead: a sees it before it began, and it finds a active 180 s late."""

    def word(node: str, at_us: int, kind: str, **more: str) -> Word:
        return Word(node, f"{node}1", at_us, kind, more.get("event"), more.get("peer_boot"))

    words = [
        word("a", 0, "started"),
        word("a", 2 * S, "peer-seen", peer_boot="b1"),
        word("a", 3 * S, "active"),
        word("b", 181 * S, "started"),
        word("b", 182 * S, "peer-seen", peer_boot="a1"),
        word("b", 184 * S, "state", event="PEER_ACTIVE"),
    ]
    assert of_peers(words) == [Link("a", "b", -181 * S, -179 * S)]
    # Without what b recorded after a's records only one side is bounded.
    (link,) = of_peers(words[:4])
    assert link.high_us == -179 * S
    assert wrong([link], ["a", "b"], {"a": 1}) == {"b": Off(179 * S, 179 * S)}
