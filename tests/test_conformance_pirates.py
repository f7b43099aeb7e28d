"""Simple Pirate and Paranoid Pirate (6/PPP) at a node, in virtual time. The ids are those of the patterns."""

from __future__ import annotations

import random

import pytest

from bstar.wire import native
from bstar.wire.pirate import ADDRESS_BYTES, HEARTBEAT, HEARTBEAT_WORD, READY, READY_WORD
from bstar_broker.core.outputs import FrontSend
from bstar_broker.fronts.ppp.machine import CLIENTS, WORKERS
from support.pirates import LIVENESS, SERVICE, Harbour

requirement = pytest.mark.requirement


@pytest.fixture
def harbour() -> Harbour:
    return Harbour()


# --- Simple Pirate ------------------------------------------------------------------------------------------


@requirement("SPP-B-01")
def test_a_request_waits_until_a_worker_is_ready(harbour: Harbour) -> None:
    """SPP-B-01: nothing is dispatched without a worker. Here it waits in the broker's queue."""
    harbour.ask(b"c", b"", b"one")
    harbour.wait(5.0)
    harbour.say(b"w", b"", READY)
    [request] = harbour.taken(b"w")
    assert request[0] == b""
    assert request[2:] == [b"", b"one"]


@requirement("SPP-B-02")
@pytest.mark.parametrize("body", [[b"one"], [b"one", b"", b"three"], [b""], [READY], [b"", b""]])
def test_a_reply_goes_to_the_client_that_its_envelope_names(harbour: Harbour, body: list[bytes]) -> None:
    """SPP-B-02: READY reaches no client; a reply reaches its own, each frame as it was."""
    harbour.say(b"w", b"", READY)
    assert harbour.heard == {}
    harbour.ask(b"c1", b"", *body)
    harbour.ask(b"c2", b"", b"later")
    [[empty, address, delimiter, *asked]] = harbour.taken(b"w")
    assert (empty, delimiter, asked) == (b"", b"", body)
    harbour.say(b"w", b"", address, b"", *body)
    assert harbour.taken(b"c1") == [[b"", *body]]
    assert harbour.taken(b"c2") == []
    assert [frames[3:] for frames in harbour.taken(b"w")] == [[b"later"]]


@requirement("SPP-B-03")
def test_the_least_recently_used_worker_is_next(harbour: Harbour) -> None:
    """SPP-B-03: workers in the order of READY and replies."""
    for worker in (b"w1", b"w2", b"w3"):
        harbour.say(worker, b"", READY)
    order = []
    for number in range(6):
        harbour.ask(b"c", b"", b"%d" % number)
        [(worker, request)] = [(each, got) for each in (b"w1", b"w2", b"w3") for got in harbour.taken(each)]
        order.append(worker)
        harbour.say(worker, *request)
    assert order == [b"w1", b"w2", b"w3"] * 2


@requirement("SPP-B-04")
@pytest.mark.parametrize(
    "frames",
    [
        [b"\x01x"],
        [b"", b"\x01", b""],
        [b"", b"\x01x"],
        [b"", b"\x02"],
        [b"", b"READYx"],
        [b"", b"HEARTBEAT"],
        [b"", b"READY", b""],
        [b"", b""],
        [b""],
        [b"x", b"", READY],
        [b"", b"x" * ADDRESS_BYTES, b""],
    ],
)
def test_only_the_whole_shape_is_ready(harbour: Harbour, frames: list[bytes]) -> None:
    """SPP-B-04: exactly one byte 01 after the envelope; anything else registers nobody."""
    harbour.say(b"w", *frames)
    assert not harbour.registered
    assert sum(harbour.drops.values()) == 1


@requirement("SPP-W-01")
def test_a_worker_is_ready_once_and_answers_each_request_once(harbour: Harbour) -> None:
    """SPP-W-01: READY, then one reply for each request; a reply says that the worker is ready."""
    harbour.say(b"w", b"", READY)
    for number in range(3):
        harbour.ask(b"c", b"", b"%d" % number)
        [request] = harbour.taken(b"w")
        harbour.say(b"w", *request)
    assert harbour.taken(b"c") == [[b"", b"0"], [b"", b"1"], [b"", b"2"]]


def test_an_address_that_begins_like_ready_is_no_ready(harbour: Harbour) -> None:
    """The published queue compares one byte: a client 01… never hears its replies there."""
    client = native.identity(b"\x01" + bytes(15), 1)
    asked = native.encode_request(client, SERVICE, [b"x"], ttl_ms=0, epoch=0, is_repeated=False)
    harbour.say(b"w", b"", READY)
    harbour.solo.say(*asked)
    harbour.settle()
    [request] = harbour.taken(b"w")
    assert request[1] == client
    before = len(harbour.solo.sent)
    harbour.say(b"w", *request)
    [reply] = [native.decode(frames[1:]) for frames in harbour.solo.sent[before:]]
    assert (reply.command, reply.body) == (native.FINAL, [b"x"])


def test_a_simple_worker_may_be_silent_while_it_is_idle(harbour: Harbour) -> None:
    harbour.say(b"w", b"", READY)
    harbour.wait(300.0)
    assert harbour.registered == 1
    assert harbour.heard == {}
    harbour.ask(b"c", b"", b"x")
    assert len(harbour.taken(b"w")) == 1


def test_a_vanished_simple_worker_costs_no_request(harbour: Harbour) -> None:
    """Its REQUEST cannot be sent; the next worker gets it at once."""
    for worker in (b"w1", b"w2"):
        harbour.say(worker, b"", READY)
    solo = harbour.solo
    [request] = solo.front_hears("ppp", CLIENTS, b"c", b"", b"x")
    assert request.frames[0] == b"w1"
    solo.carry_out(solo.node.front_unsent(request, solo.now, is_gone=True))
    harbour.settle()
    assert len(harbour.taken(b"w2")) == 1
    assert harbour.registered == 1


def test_the_end_of_a_connection_frees_what_a_worker_held(harbour: Harbour) -> None:
    for worker in (b"w1", b"w2"):
        harbour.say(worker, b"", READY)
    harbour.ask(b"c", b"", b"x")
    harbour.hang_up(WORKERS, b"w1")
    harbour.wait(1.0)
    assert len(harbour.taken(b"w2")) == 1
    assert harbour.registered == 1


def test_a_simple_worker_that_was_given_up_is_ready_with_its_late_reply(harbour: Harbour) -> None:
    """It can send nothing else, and the reply reaches nobody."""
    harbour.say(b"w", b"", READY)
    harbour.ask(b"c", b"", b"slow")
    harbour.wait(61.0)
    assert harbour.registered == 0
    [late] = harbour.taken(b"w")
    harbour.wait(61.0)
    harbour.say(b"w", *late)
    assert harbour.registered == 1
    assert harbour.taken(b"c") == []
    harbour.ask(b"c", b"", b"next")
    assert [frames[3:] for frames in harbour.taken(b"w")] == [[b"next"]]


# --- workers that send words --------------------------------------------------------------------------------


def test_a_simple_worker_may_say_ready_as_a_word(harbour: Harbour) -> None:
    """As the guide's programs in PHP, C++, Lua, Tcl and C# do."""
    harbour.say(b"w", b"", READY_WORD)
    for number in range(3):
        harbour.ask(b"c", b"", b"%d" % number)
        [request] = harbour.taken(b"w")
        harbour.say(b"w", *request)
    assert harbour.taken(b"c") == [[b"", b"0"], [b"", b"1"], [b"", b"2"]]
    assert harbour.drops == {}


def test_a_paranoid_worker_that_sends_words_gets_words(harbour: Harbour) -> None:
    """It counts the queue as lost if it gets bytes. One that sends bytes beside it gets those."""
    worded = harbour.add(b"words", is_worded=True)
    plain = harbour.add(b"octets")
    harbour.wait(10.0)
    for worker in (worded, plain):
        assert (worker.sockets, worker.pauses) == (1, [])
    assert harbour.heard[b"words-1"].count([HEARTBEAT_WORD]) == len(harbour.heard[b"words-1"]) >= 9
    assert harbour.heard[b"octets-1"].count([HEARTBEAT]) == len(harbour.heard[b"octets-1"]) >= 9
    harbour.heard.clear()
    for number in range(4):
        harbour.ask(b"c", b"", b"%d" % number)
    assert harbour.taken(b"c") == [[b"", b"%d" % number] for number in range(4)]
    assert {len(sent[-1]) for sent in harbour.sent_by.values()} == {3}, "each has answered"
    assert harbour.drops == {}
    assert harbour.solo.node.state(harbour.now).fronts[0].peers["paranoid_workers"] == 2


def test_a_heartbeat_as_a_word_that_cannot_be_sent_takes_no_request_away(harbour: Harbour) -> None:
    harbour.say(b"w", READY_WORD)
    harbour.ask(b"c", b"", b"x")
    [request] = harbour.taken(b"w")
    beat = FrontSend("ppp", WORKERS, [b"w", HEARTBEAT_WORD])
    harbour.solo.carry_out(harbour.solo.node.front_unsent(beat, harbour.now, is_gone=False))
    harbour.say(b"w", *request)
    assert harbour.taken(b"c") == [[b"", b"x"]]


# --- Paranoid Pirate: the queue -----------------------------------------------------------------------------


@requirement("PPP-B-01")
def test_the_queue_sends_heartbeats(harbour: Harbour) -> None:
    """PPP-B-01: at regular intervals, to idle workers."""
    harbour.add(b"w")
    harbour.wait(10.0)
    assert 9 <= harbour.beats(b"w-1") <= 11
    assert harbour.workers[b"w"].pauses == []


@requirement("PPP-B-02")
def test_a_silent_idle_worker_is_gone_after_three_intervals(harbour: Harbour) -> None:
    """PPP-B-02: its connection stays, and it counts as disconnected."""
    harbour.say(b"w", READY)
    harbour.wait(2.5)
    assert harbour.registered == 1
    harbour.wait(1.0)
    assert harbour.registered == 0


@requirement("PPP-B-03")
def test_a_worker_that_counts_as_gone_hears_nothing(harbour: Harbour) -> None:
    """PPP-B-03: at most three heartbeats and one, then silence; no request."""
    harbour.say(b"w", READY)
    harbour.wait(10.0)
    assert 2 <= harbour.beats(b"w") <= LIVENESS + 1
    harbour.heard.clear()
    harbour.ask(b"c", b"", b"x")
    harbour.wait(10.0)
    assert harbour.heard[b"w"] == []


@requirement("PPP-B-04")
def test_a_heartbeat_of_a_busy_worker_brings_it_no_second_request(harbour: Harbour) -> None:
    """PPP-B-04: it gets the second request with its reply, not before."""
    harbour.say(b"w", READY)
    harbour.ask(b"c1", b"", b"one")
    [first] = harbour.taken(b"w")
    for _ in range(8):
        harbour.say(b"w", HEARTBEAT)
        harbour.ask(b"c2", b"", b"two")
        harbour.wait(0.5)
    assert harbour.taken(b"w") == []
    harbour.say(b"w", *first)
    [second] = harbour.taken(b"w")
    assert second[2:] == [b"two"]


@requirement("PPP-B-05")
def test_a_busy_worker_hears_heartbeats(harbour: Harbour) -> None:
    """PPP-B-05: a worker that reads while it works must not take the queue for dead."""
    harbour.say(b"w", READY)
    harbour.ask(b"c", b"", b"x")
    harbour.taken(b"w")
    harbour.wait(10.0)
    assert harbour.beats(b"w") >= 9
    assert harbour.registered == 1


@requirement("PPP-B-06")
@pytest.mark.parametrize(
    "octets", [b"", b"\x00", b"\x03", b"\x01\x01", b"\x02 ", b"READY ", b"ready", bytes(5_000)]
)
def test_one_frame_garbage_registers_nobody(harbour: Harbour, octets: bytes) -> None:
    """PPP-B-06: counted, never registered; a registered worker stays."""
    harbour.say(b"w", octets)
    assert harbour.registered == 0
    assert sum(harbour.drops.values()) == 1
    harbour.say(b"w", READY)
    harbour.say(b"w", octets)
    assert harbour.registered == 1


@requirement("PPP-G-01")
def test_every_message_is_a_sign_of_life(harbour: Harbour) -> None:
    """PPP-G-01: replies alone keep a worker, also a late one."""
    harbour.say(b"w", READY)
    for number in range(5):
        harbour.wait(2.0)
        harbour.ask(b"c", b"", b"%d" % number)
        [request] = harbour.taken(b"w")
        harbour.say(b"w", *request)
    harbour.wait(2.0)
    harbour.say(b"w", b"n" * ADDRESS_BYTES, b"", b"nobody's")
    harbour.wait(2.0)
    assert harbour.registered == 1
    assert harbour.drops == {"ppp-late-reply": 1}


@requirement("PPP-G-02")
def test_heartbeats_come_over_the_socket_of_the_requests(harbour: Harbour) -> None:
    """PPP-G-02: both leave through the door that the worker connects to."""
    harbour.say(b"w", READY)
    harbour.ask(b"c", b"", b"x")
    harbour.wait(2.0)
    ours = [output for output in harbour.solo.left if output.frames[0] == b"w"]
    assert {output.door for output in ours} == {WORKERS}
    assert [HEARTBEAT] in [output.frames[1:] for output in ours]
    assert len([output for output in ours if len(output.frames) > 2]) == 1


@requirement("PPP-G-03")
@pytest.mark.parametrize("body", [[READY], [HEARTBEAT], [b""], [b"a", b"b"]])
def test_an_address_stands_before_every_body(harbour: Harbour, body: list[bytes]) -> None:
    """PPP-G-03: a body of one command's byte is no command, in either direction."""
    harbour.add(b"w")
    harbour.ask(b"c", b"", *body)
    assert harbour.taken(b"c") == [[b"", *body]]
    assert harbour.registered == 1


def test_a_busy_worker_that_is_silent_keeps_its_request_for_the_busy_timeout(harbour: Harbour) -> None:
    """The published worker sends no heartbeat while it works."""
    worker = harbour.add(b"w", work=lambda body: None)
    harbour.ask(b"c", b"", b"long")
    harbour.wait(30.0)
    worker.finish(harbour.now)
    harbour.wait(5.0)
    assert harbour.taken(b"c") == [[b"", b"long"]]
    assert worker.pauses == []


def test_a_busy_worker_with_heartbeats_is_missed_as_soon_as_an_idle_one(harbour: Harbour) -> None:
    worker = harbour.add(b"w1", work=lambda body: None, is_threaded=True)
    harbour.ask(b"c", b"", b"x")
    harbour.wait(4.0)
    harbour.add(b"w2")
    del harbour.workers[b"w1"]
    harbour.wait(4.0)
    assert harbour.taken(b"c") == [[b"", b"x"]]
    assert worker.jobs


def test_a_second_ready_begins_a_new_conversation(harbour: Harbour) -> None:
    """What the worker held goes on, and the reply of the time before reaches nobody twice."""
    harbour.say(b"w1", READY)
    harbour.ask(b"c", b"", b"x")
    [held] = harbour.taken(b"w1")
    harbour.say(b"w2", READY)
    harbour.say(b"w1", READY)
    [given] = harbour.taken(b"w2")
    assert given == held
    harbour.say(b"w1", *held)
    assert harbour.taken(b"c") == []
    harbour.say(b"w2", *given)
    harbour.say(b"w2", *given)
    assert harbour.taken(b"c") == [[b"", b"x"]]
    assert harbour.registered == 2


def test_a_worker_of_a_node_that_was_restarted_comes_back_by_itself(harbour: Harbour) -> None:
    """Its heartbeats get no answer, so it begins again with READY."""
    worker = harbour.add(b"w")
    harbour.wait(2.0)
    fresh = Harbour()
    fresh.workers[b"w"] = worker
    fresh.solo.now = harbour.now
    fresh.wait(10.0)
    assert fresh.sent_by[b"w-1"].count([READY]) == 0
    assert fresh.sent_by[b"w-2"][0] == [READY]
    assert fresh.registered == 1
    assert fresh.beats(b"w-1") == 0
    assert fresh.drops.keys() == {"ppp-unknown-worker"}


# --- Paranoid Pirate: the worker ----------------------------------------------------------------------------


@requirement("PPP-W-01")
@requirement("PPP-W-04")
def test_a_worker_begins_with_ready_and_sends_heartbeats(harbour: Harbour) -> None:
    """PPP-W-01 and PPP-W-04 hold for the worker of these tests, and the queue takes both."""
    harbour.add(b"w")
    harbour.wait(5.5)
    sent = harbour.sent_by[b"w-1"]
    assert sent[0] == [READY]
    assert sent[1:] == [[HEARTBEAT]] * 5


@requirement("PPP-W-02")
@requirement("PPP-W-05")
def test_a_worker_comes_back_on_new_sockets_with_growing_pauses(harbour: Harbour) -> None:
    """PPP-W-02 and PPP-W-05: 1, 2, 4 … 32, 32 s; when the queue answers, the worker is registered."""
    worker = harbour.add(b"w")
    harbour.is_cut = True
    harbour.wait(130.0)
    assert worker.pauses[:7] == [1, 2, 4, 8, 16, 32, 32]
    assert all(sent[0] == [READY] for sent in harbour.sent_by.values())
    assert harbour.registered == 0
    harbour.is_cut = False
    harbour.wait(40.0)
    assert harbour.registered == 1
    before = worker.sockets
    harbour.wait(20.0)
    assert worker.sockets == before


@requirement("PPP-W-03")
def test_each_request_has_one_reply(harbour: Harbour) -> None:
    """PPP-W-03: of three workers each answers once; the second copy of a reply is dropped."""
    for name in (b"w1", b"w2", b"w3"):
        harbour.add(name)
    for number in range(9):
        harbour.ask(b"c%d" % number, b"", b"%d" % number)
    for number in range(9):
        assert harbour.taken(b"c%d" % number) == [[b"", b"%d" % number]]
    replies = [frames for sent in harbour.sent_by.values() for frames in sent if len(frames) > 1]
    assert len(replies) == 9
    harbour.solo.front_hears("ppp", WORKERS, b"w1-1", *replies[0])
    harbour.settle()
    assert all(harbour.taken(b"c%d" % number) == [] for number in range(9))
    assert harbour.drops == {"ppp-late-reply": 1}


@requirement("PPP-W-06")
def test_a_busy_worker_has_one_request_at_most(harbour: Harbour) -> None:
    """PPP-W-06: the queue gives it no second one."""
    worker = harbour.add(b"w", work=lambda body: None, is_threaded=True)
    for number in range(5):
        harbour.ask(b"c", b"", b"%d" % number)
        harbour.wait(1.0)
    assert len(worker.jobs) == 1


# --- clients ------------------------------------------------------------------------------------------------


def test_a_clients_envelope_comes_back(harbour: Harbour) -> None:
    """REQ_CORRELATE's request id, or the addresses of proxies."""
    harbour.add(b"w")
    harbour.ask(b"c", b"\x00\x00\x00\x07", b"", b"x")
    harbour.ask(b"c", b"proxy", b"other", b"", b"y", b"", b"z")
    assert harbour.taken(b"c") == [
        [b"\x00\x00\x00\x07", b"", b"x"],
        [b"proxy", b"other", b"", b"y", b"", b"z"],
    ]


@pytest.mark.parametrize(
    "frames", [[b"x"], [b""], [b"x", b""], [b"x"] * 20, [b"", bytes(20_000)], [b""] * 200]
)
def test_a_request_without_a_delimiter_or_a_body_is_dropped(harbour: Harbour, frames: list[bytes]) -> None:
    """A client without the empty frame gets no worker that would reject it."""
    harbour.add(b"w")
    harbour.ask(b"c", *frames)
    assert harbour.taken(b"c") == []
    assert len(harbour.sent_by[b"w-1"]) == 1
    assert sum(harbour.drops.values()) == 1


def test_what_a_client_asked_leaves_the_queue_with_its_connection(harbour: Harbour) -> None:
    """A Lazy Pirate asks again on a new socket: the first request would be executed for nobody."""
    harbour.ask(b"c-1", b"", b"x")
    harbour.hang_up(CLIENTS, b"c-1")
    harbour.ask(b"c-2", b"", b"x")
    harbour.add(b"w")
    assert harbour.taken(b"c-1") == []
    assert harbour.taken(b"c-2") == [[b"", b"x"]]
    assert len(harbour.sent_by[b"w-1"]) == 2


def test_a_request_that_nobody_takes_ends_in_silence(harbour: Harbour) -> None:
    harbour.ask(b"c", b"", b"x")
    harbour.wait(61.0)
    assert harbour.heard == {}
    assert harbour.solo.node.state(harbour.now).fronts[0].counts["unanswered"] == 1


def test_a_passive_node_is_silent_to_clients_and_knows_its_workers(harbour: Harbour) -> None:
    harbour.add(b"w")
    harbour.solo.step_down()
    harbour.ask(b"c", b"", b"x")
    harbour.wait(2.0)
    assert b"c" not in harbour.heard
    assert harbour.registered == 1
    assert harbour.beats(b"w-1") >= 1


def test_a_reply_that_breaks_a_bound_costs_the_worker_its_request(harbour: Harbour) -> None:
    """It believes that it is free. So its request goes to another one."""
    for name, ready in ((b"w1", [READY]), (b"w2", [b"", READY])):
        harbour.say(name, *ready)
        harbour.ask(b"c", b"", b"x")
        [request] = harbour.taken(name)
        harbour.add(b"good")
        harbour.say(name, *request[:-1], bytes(20_000))
        assert harbour.taken(b"c") == [[b"", b"x"]]
        harbour.hang_up(WORKERS, b"good-1")
        del harbour.workers[b"good"]
    assert harbour.registered == 1  # the simple one, whose socket waits for a request
    assert harbour.drops["ppp-size"] == 2


def test_state_counts_peers_by_kind(harbour: Harbour) -> None:
    harbour.add(b"w1")
    harbour.say(b"w2", b"", READY)
    node = harbour.solo.node
    node.front_connected("ppp", CLIENTS, 3, harbour.now)
    node.front_connected("ppp", WORKERS, 5, harbour.now)
    [state] = node.state(harbour.now).fronts
    assert state.peers == {"clients": 3, "simple_workers": 1, "paranoid_workers": 1}
    assert state.counts["ready"] == 2


@pytest.mark.storm
def test_no_message_ends_the_node_or_reaches_a_peer_outside() -> None:
    """100,000 messages, most of them nearly right, through both doors."""
    harbour = Harbour(deliveries_max=1_000_000)
    dice = random.Random(4)
    solo, known = harbour.solo, [bytes(ADDRESS_BYTES), b"\x01" * ADDRESS_BYTES]
    parts = [b"", READY, HEARTBEAT, b"x", b"\x00\x00\x00\x01", bytes(11_000), b"\xff" * 24]
    for number in range(100_000):
        door = dice.choice((CLIENTS, WORKERS))
        frames = [dice.choice(parts + known[-2:]) for _ in range(dice.choice((1, 1, 2, 2, 3, 4, 5, 120)))]
        if dice.random() < 0.3:
            frames = dice.choice(([READY], [b"", READY], [known[-1], b"", b"x"], [b"", known[-1], b"", b"y"]))
        for output in solo.front_hears("ppp", door, b"%d" % dice.randrange(20), *frames):
            assert isinstance(output, FrontSend)
            assert output.front == "ppp"
            if output.door == WORKERS:
                known.append(next(frame for frame in output.frames[1:] if len(frame) == ADDRESS_BYTES))
        if not number % 1_000:
            solo.wait(0.5)
    assert solo.sent == []
    assert solo.node.is_active
    counts = solo.node.state(solo.now).fronts[0].counts
    assert counts["replies"] > 100
    assert counts["unread"] > 1_000
