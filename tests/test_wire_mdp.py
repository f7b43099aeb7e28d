"""MDP/0.1, 0.2 and MMI byte by byte, written by hand from the specifications and not by our encoders."""

from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bstar import wire
from bstar.errors import LocalProtocolError, RemoteProtocolError
from bstar.wire import mmi
from bstar.wire.mdp import MDP01, MDP02, ClientReply, Mdp, WorkerCommand, WorkerVerb
from bstar.wire.messages import Disconnect, Final, Heartbeat, NodeStatus, Partial, Ready, Request
from bstar.wire.native_broker import NativeAsker
from support.work import asked

STATUS = NodeStatus(3, 1, 4, 10, 0, 1000, 2000)


def frames(text: str) -> list[bytes]:
    """Frames in hex; - is an empty one."""
    return [b"" if word == "-" else bytes.fromhex(word) for word in text.split()]


body = st.lists(st.binary(max_size=20), min_size=1, max_size=4)
address = st.binary(min_size=1, max_size=255)
service = st.binary(min_size=1, max_size=255).filter(lambda name: not name.startswith(mmi.PREFIX))
envelope = st.lists(st.binary(min_size=1, max_size=8).filter(lambda f: f[:1] != b"M"), max_size=8).map(
    lambda extra: (*extra, b"")
)

CLIENT, WORKER = "00a1b2c3d4", "00c1c2c3c4"


# What the broker hears ------------------------------------------------------------------------------------


def test_a_request_of_mdp01_is_read() -> None:
    assert wire.decode(frames(f"{CLIENT} - 4d4450433031 6563686f 6869 -")) == Request(
        b"\x00\xa1\xb2\xc3\xd4", 1, (b"",), b"echo", [b"hi", b""]
    )


@pytest.mark.requirement("MDP2-G-02")
def test_a_request_of_mdp02_is_read_with_nothing_before_its_header() -> None:
    assert wire.decode(frames(f"{CLIENT} 4d4450433032 01 6563686f 6869 -")) == Request(
        b"\x00\xa1\xb2\xc3\xd4", 2, (), b"echo", [b"hi", b""]
    )


def test_a_request_of_mdp02_behind_an_empty_frame_is_read_and_the_frame_kept() -> None:
    assert wire.decode(frames(f"{CLIENT} - 4d4450433032 01 6563686f 6869")) == Request(
        b"\x00\xa1\xb2\xc3\xd4", 2, (b"",), b"echo", [b"hi"]
    )


def test_the_request_id_of_a_correlating_req_socket_is_kept() -> None:
    assert wire.decode(frames(f"{CLIENT} 2a000000 - 4d4450433031 6563686f 6869")) == Request(
        b"\x00\xa1\xb2\xc3\xd4", 1, (b"\x2a\x00\x00\x00", b""), b"echo", [b"hi"]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 4d4450573031 01 6563686f", Ready(b"w", 1, (b"",), b"echo")),
        ("- 4d4450573031 03 00c1c2c3c4 - 6869", Final(b"w", 1, (b"",), b"\x00\xc1\xc2\xc3\xc4", [b"hi"])),
        ("- 4d4450573031 04", Heartbeat(b"w", 1, (b"",))),
        ("- 4d4450573031 05", Disconnect(b"w", 1)),
        ("4d4450573032 01 6563686f", Ready(b"w", 2, (), b"echo")),
        ("4d4450573032 03 00c1c2c3c4 - 6869", Partial(b"w", 2, (), b"\x00\xc1\xc2\xc3\xc4", [b"hi"])),
        ("4d4450573032 04 00c1c2c3c4 - 6869 -", Final(b"w", 2, (), b"\x00\xc1\xc2\xc3\xc4", [b"hi", b""])),
        # The empty frame is missing, and no other one could be taken for it.
        ("- 4d4450573031 03 c1 6869 6a", Final(b"w", 1, (b"",), b"\xc1", [b"hi", b"j"])),
        ("4d4450573032 03 c1 6869", Partial(b"w", 2, (), b"\xc1", [b"hi"])),
        ("4d4450573032 04 c1 6869 6a", Final(b"w", 2, (), b"\xc1", [b"hi", b"j"])),
        ("4d4450573032 05", Heartbeat(b"w", 2, ())),
        ("4d4450573032 06", Disconnect(b"w", 2)),
        ("- 4d4450573032 01 6563686f", Ready(b"w", 2, (b"",), b"echo")),
        ("- 4d4450573032 05", Heartbeat(b"w", 2, (b"",))),
    ],
)
def test_every_command_of_a_worker_is_read(text: str, expected: object) -> None:
    assert wire.decode([b"w", *frames(text)]) == expected


@pytest.mark.requirement("MDP2-R-05")
def test_a_request_of_mdp02_needs_a_body_which_may_be_empty() -> None:
    with pytest.raises(RemoteProtocolError, match="client-frames"):
        wire.decode([b"c", *frames("4d4450433032 01 6563686f")])
    message = wire.decode([b"c", *frames("4d4450433032 01 6563686f -")])
    assert isinstance(message, Request)
    assert message.body == [b""]


# What the broker refuses: each malformed shape, and whether it condemns a registered worker ---------------

MALFORMED = [
    ("", "frames", False),
    ("-", "header", False),
    ("- -", "header", False),
    ("58585858", "header", False),
    ("- 58585858", "header", False),
    ("- 4d4450433039 6563686f 6869", "header", False),
    ("4d4450433058 01 6563686f 6869", "header", False),
    ("4d4450433031 6563686f 6869", "header", False),  # 0.1 without its empty frame
    ("4d4450573031 01 6563686f", "header", False),
    ("- 4d4450433031", "client-frames", False),
    ("- 4d4450433031 6563686f", "client-frames", False),
    ("- 4d4450433031 - 6869", "service-name", False),
    ("- 4d4450433031 " + "78" * 256 + " 6869", "service-name", False),
    ("- 4d4450573031", "worker-frames", True),
    ("- 4d4450573031 01", "worker-frames", True),
    ("- 4d4450573031 01 6563686f 78", "worker-frames", True),
    ("- 4d4450573031 01 -", "service-name", True),
    ("- 4d4450573031 01 " + "78" * 256, "service-name", True),
    ("- 4d4450573031 02 00c1c2c3c4 - 6869", "worker-command", True),  # REQUEST is the broker's
    ("- 4d4450573031 03", "worker-frames", True),
    ("- 4d4450573031 03 00c1c2c3c4", "worker-frames", True),
    ("- 4d4450573031 03 00c1c2c3c4 -", "worker-frames", True),
    ("- 4d4450573031 03 00c1c2c3c4 6869 - 6869", "worker-frames", True),  # two addresses
    ("- 4d4450573031 04 78", "worker-frames", True),
    ("- 4d4450573031 05 78", "worker-frames", True),
    ("- 4d4450573031 06", "worker-command", True),
    ("- 4d4450573031 -", "worker-command", True),
    ("- 4d4450573031 0101", "worker-command", True),
    ("4d4450433032", "client-frames", False),
    ("4d4450433032 01", "client-frames", False),
    ("4d4450433032 01 6563686f", "client-frames", False),
    ("4d4450433032 01 - 6869", "service-name", False),
    ("4d4450433032 01 " + "78" * 256 + " 6869", "service-name", False),
    ("4d4450433032 02 6563686f 6869", "client-command", False),  # PARTIAL and FINAL are the broker's
    ("4d4450433032 03 6563686f 6869", "client-command", False),
    ("4d4450433032 6563686f 6869 6869", "client-command", False),  # no command: the first tag named 0.2
    ("- 4d4450433032 6563686f 6869", "client-frames", False),
    ("4d4450573032", "worker-frames", True),
    ("4d4450573032 01", "worker-frames", True),
    ("4d4450573032 01 6563686f 78", "worker-frames", True),
    ("4d4450573032 01 -", "service-name", True),
    ("4d4450573032 02 00c1c2c3c4 - 6869", "worker-command", True),
    ("4d4450573032 03", "worker-frames", True),
    ("4d4450573032 03 00c1c2c3c4 6869 -", "worker-frames", True),
    ("4d4450573032 04 00c1c2c3c4 -", "worker-frames", True),
    ("4d4450573032 04 00c1c2c3c4 6869 - 6869", "worker-frames", True),
    ("4d4450573032 05 78", "worker-frames", True),
    ("4d4450573032 06 78", "worker-frames", True),
    ("4d4450573032 07", "worker-command", True),
    ("4d4450573032 -", "worker-command", True),
]


@pytest.mark.requirement("MDP1-R-01")
@pytest.mark.requirement("MDP2-R-04")
@pytest.mark.parametrize(("text", "reason", "from_worker"), MALFORMED)
def test_a_malformed_message_is_refused_with_its_reason(text: str, reason: str, from_worker: bool) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode([b"id", *frames(text)])
    assert (caught.value.reason, caught.value.from_worker) == (reason, from_worker)


def test_a_message_without_any_frame_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        wire.decode([])


# What the broker says -------------------------------------------------------------------------------------


@pytest.mark.requirement("MDP1-B-08")
def test_a_request_of_mdp01_carries_one_address_and_one_empty_frame() -> None:
    made = MDP01.request(b"w", (b"",), asked([b"hi", b""], sender=b"\x01\xa1"), b"", 9, 9, True)
    assert made == frames("77 - 4d4450573031 02 01a1 - 6869 -")


@pytest.mark.requirement("MDP2-B-08")
def test_a_request_of_mdp02_carries_one_address_and_one_empty_frame() -> None:
    made = MDP02.request(b"w", (), asked([b"hi", b""], sender=b"\x01\xa1"), b"", 9, 9, True)
    assert made == frames("77 4d4450573032 02 01a1 - 6869 -")


@pytest.mark.parametrize("client", [b"\x00\xa1", b"a\x00b", b"hex:", b"hex:00", b"hex:no", b"hex", b"\xff"])
@pytest.mark.parametrize("codec", [MDP01, MDP02])
def test_a_worker_that_keeps_the_address_as_a_c_string_answers_every_client(
    codec: Mdp, client: bytes
) -> None:
    command = codec.request(b"w", (b"",), asked([b"hi"], sender=client), b"", 9, 9, True)
    kept = command[4].split(b"\0")[0]
    assert wire.decode([b"w", *codec.encode_final(kept, [b"ho"])]).address == client  # type: ignore[union-attr]


def test_a_reply_to_an_address_that_no_request_had_is_read_as_it_is() -> None:
    for address in (b"hex:0", b"hex:no", b"hex:\xff"):
        final = wire.decode([b"w", *MDP01.encode_final(address, [b"ho"])])
        assert final == Final(b"w", 1, (b"",), address, [b"ho"])


@pytest.mark.requirement("MDP1-B-11")
def test_a_reply_of_mdp01_repeats_the_service() -> None:
    made = MDP01.final(NativeAsker(b"c", b"", (b"\x2a", b"")), b"echo", 1, 0, [b"hi"], b"")
    assert made == frames("63 2a - 4d4450433031 6563686f 6869")


@pytest.mark.requirement("MDP2-G-02")
def test_replies_of_mdp02_are_coded_for_the_client() -> None:
    assert MDP02.partial(NativeAsker(b"c", b""), b"echo", 1, 0, [b"hi"], b"") == frames(
        "63 4d4450433032 02 6563686f 6869"
    )
    assert MDP02.final(NativeAsker(b"c", b""), b"echo", 1, 1, [b"hi"], b"") == frames(
        "63 4d4450433032 03 6563686f 6869"
    )


def test_a_peer_that_put_an_empty_frame_first_is_answered_in_kind() -> None:
    codec = MDP02
    assert codec.final(NativeAsker(b"c", b"", (b"",)), b"echo", 1, 0, [b"hi"], b"") == frames(
        "63 - 4d4450433032 03 6563686f 6869"
    )
    assert codec.request(b"w", (b"",), asked([b""], sender=b"a"), b"", 0, 1, False) == frames(
        "77 - 4d4450573032 02 61 - -"
    )
    assert codec.heartbeat(b"w", (b"",), 3, 1) == frames("77 - 4d4450573032 05")
    assert codec.disconnect(b"w", (b"",), 0, 1) == frames("77 - 4d4450573032 06")


def test_heartbeat_and_disconnect_are_as_published() -> None:
    assert MDP01.heartbeat(b"w", (b"",), 3, 1) == frames("77 - 4d4450573031 04")
    assert MDP01.disconnect(b"w", (b"",), 1, 1) == frames("77 - 4d4450573031 05")
    assert MDP02.heartbeat(b"w", (), 3, 1) == frames("77 4d4450573032 05")
    assert MDP02.disconnect(b"w", (), 1, 1) == frames("77 4d4450573032 06")


@pytest.mark.parametrize("codec", [MDP01, MDP02])
def test_plain_mdp_has_no_word_for_trouble(codec: wire.BrokerCodec) -> None:
    said: list[object] = [
        codec.welcome(b"w", (), STATUS, 1, 3),
        codec.failure(NativeAsker(b"c", b""), 1, 1, b"x"),
        codec.busy(NativeAsker(b"c", b""), 1, 50, b"x"),
        codec.not_active(NativeAsker(b"c", b""), STATUS, True),
    ]
    assert said == [None] * 4


# What clients and workers say and hear --------------------------------------------------------------------


@pytest.mark.requirement("MDP1-C-01")
def test_a_client_of_mdp01_supplies_the_empty_frame() -> None:
    assert MDP01.encode_request(b"echo", [b"hi"]) == frames("- 4d4450433031 6563686f 6869")


@pytest.mark.requirement("MDP1-W-07")
def test_a_reply_of_mdp01_carries_one_address_and_one_empty_frame() -> None:
    assert MDP01.encode_final(b"\x00\xa1", [b"hi"]) == frames("- 4d4450573031 03 00a1 - 6869")


@pytest.mark.requirement("MDP2-W-08")
def test_replies_of_mdp02_carry_one_address_and_one_empty_frame() -> None:
    assert MDP02.encode_partial(b"\x00\xa1", [b"hi"]) == frames("4d4450573032 03 00a1 - 6869")
    assert MDP02.encode_final(b"\x00\xa1", [b"hi"]) == frames("4d4450573032 04 00a1 - 6869")


@pytest.mark.requirement("MDP2-G-02")
def test_everything_else_a_peer_says_is_as_published() -> None:
    assert MDP02.encode_request(b"echo", [b"hi"]) == frames("4d4450433032 01 6563686f 6869")
    assert MDP02.encode_ready(b"echo") == frames("4d4450573032 01 6563686f")
    assert MDP02.encode_heartbeat() == frames("4d4450573032 05")
    assert MDP02.encode_disconnect() == frames("4d4450573032 06")
    assert MDP01.encode_ready(b"echo") == frames("- 4d4450573031 01 6563686f")
    assert MDP01.encode_heartbeat() == frames("- 4d4450573031 04")
    assert MDP01.encode_disconnect() == frames("- 4d4450573031 05")


def test_what_a_client_is_sent_is_read() -> None:
    reply = MDP01.decode_for_client(frames("- 4d4450433031 6563686f 6869 -"))
    assert reply == ClientReply(True, b"echo", [b"hi", b""])
    partial = MDP02.decode_for_client(frames("4d4450433032 02 6563686f 6869"))
    assert partial == ClientReply(False, b"echo", [b"hi"])
    final = MDP02.decode_for_client(frames("4d4450433032 03 6563686f 6869"))
    assert final == ClientReply(True, b"echo", [b"hi"])


@pytest.mark.parametrize(
    ("decode", "prefix", "codes"),
    [
        (MDP01.decode_for_worker, "- 4d4450573031", ("02", "04", "05")),
        (MDP02.decode_for_worker, "4d4450573032", ("02", "05", "06")),
    ],
)
def test_what_a_worker_is_sent_is_read(
    decode: Callable[[list[bytes]], WorkerCommand], prefix: str, codes: tuple[str, str, str]
) -> None:
    request, heartbeat, disconnect = (f"{prefix} {code}" for code in codes)
    verb = WorkerVerb
    assert decode(frames(f"{request} 00a1 - 6869")) == WorkerCommand(verb.REQUEST, b"\x00\xa1", [b"hi"])
    assert decode(frames(heartbeat)) == WorkerCommand(verb.HEARTBEAT)
    assert decode(frames(disconnect)) == WorkerCommand(verb.DISCONNECT)
    for broken in (
        prefix, f"{prefix} 09", f"{prefix} 01 6563686f", request, f"{request} 00a1 -", f"{request} - - 6869",
        f"{request} 00a1 6869 6869", f"{heartbeat} 78", f"{disconnect} 78",
    ):  # fmt: skip
        with pytest.raises(RemoteProtocolError):
            decode(frames(broken))


@pytest.mark.parametrize(
    ("decode", "texts"),
    [
        (
            MDP01.decode_for_client,
            ["", "-", "- 4d4450433031 6563686f", "4d4450433031 6563686f 6869 6869", "- 4d4450433032 02 78"],
        ),
        (
            MDP02.decode_for_client,
            ["", "4d4450433032 03 6563686f", "4d4450433032 04 6563686f 6869", "- 4d4450433032 03 6563686f"],
        ),
    ],
)
def test_what_no_client_should_be_sent_is_refused(
    decode: Callable[[list[bytes]], ClientReply], texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(RemoteProtocolError):
            decode(frames(text))


@pytest.mark.parametrize("mdp", [MDP01, MDP02])
def test_we_are_not_made_to_send_what_no_broker_takes(mdp: Mdp) -> None:
    for name in (b"", b"x" * 256):
        with pytest.raises(LocalProtocolError):
            mdp.encode_ready(name)
        with pytest.raises(LocalProtocolError):
            mdp.encode_request(name, [b"hi"])
    for encode in (mdp.encode_request, mdp.encode_final, MDP02.encode_partial):
        with pytest.raises(LocalProtocolError):
            encode(b"x", [])


# There and back -------------------------------------------------------------------------------------------


@given(address, service, body)
def test_what_our_clients_say_is_what_the_broker_hears(
    sender: bytes, name: bytes, parts: list[bytes]
) -> None:
    assert wire.decode([sender, *MDP01.encode_request(name, parts)]) == Request(
        sender, 1, (b"",), name, parts
    )
    assert wire.decode([sender, *MDP02.encode_request(name, parts)]) == Request(sender, 2, (), name, parts)


@given(address, address, service, body)
def test_what_our_workers_say_is_what_the_broker_hears(
    sender: bytes, client: bytes, name: bytes, parts: list[bytes]
) -> None:
    assume(not client.startswith(b"hex:"))  # no worker gets that address: it is written in digits
    assert wire.decode([sender, *MDP01.encode_final(client, parts)]) == Final(
        sender, 1, (b"",), client, parts
    )
    assert wire.decode([sender, *MDP02.encode_partial(client, parts)]) == Partial(
        sender, 2, (), client, parts
    )
    assert wire.decode([sender, *MDP02.encode_final(client, parts)]) == Final(sender, 2, (), client, parts)
    assert wire.decode([sender, *MDP01.encode_ready(name)]) == Ready(sender, 1, (b"",), name)
    assert wire.decode([sender, *MDP02.encode_ready(name)]) == Ready(sender, 2, (), name)


@given(address, service, body)
def test_what_the_broker_says_is_what_our_peers_hear(client: bytes, name: bytes, parts: list[bytes]) -> None:
    for codec, envelope_, client_hears, worker_hears in (
        (MDP01, (b"",), MDP01.decode_for_client, MDP01.decode_for_worker),
        (MDP02, (), MDP02.decode_for_client, MDP02.decode_for_worker),
    ):
        final = codec.final(NativeAsker(b"c", b"", envelope_), name, 1, 0, parts, b"")
        assert client_hears(final[1:]) == ClientReply(True, name, parts)
        request = codec.request(b"w", envelope_, asked(parts, sender=client), b"", 0, 1, False)
        heard = worker_hears(request[1:])
        assert heard == WorkerCommand(WorkerVerb.REQUEST, heard.client, parts)
        answer = wire.decode([b"w", *codec.encode_final(heard.client, parts)])
        assert answer == Final(b"w", codec.dialect, envelope_, client, parts)


@given(envelope, service, body, st.sampled_from([MDP01, MDP02]))
def test_an_envelope_goes_back_as_it_came(
    envelope_: tuple[bytes, ...], name: bytes, parts: list[bytes], codec: Mdp
) -> None:
    head = [MDP01.client] if codec is MDP01 else [MDP02.client, b"\x01"]
    request = wire.decode([b"id", *envelope_, *head, name, *parts])
    assert isinstance(request, Request)
    assert request.envelope == envelope_
    reply = wire.CODECS[request.dialect].final(request, name, 1, 0, parts, b"")
    assert tuple(reply[1 : 1 + len(envelope_)]) == envelope_


@given(body)
def test_body_frames_are_the_very_objects_that_came(parts: list[bytes]) -> None:
    message = wire.decode([b"id", MDP02.client, b"\x01", b"echo", *parts])
    assert isinstance(message, Request)
    made = MDP02.request(b"w", (), asked(message.body, sender=b"id"), b"", 0, 1, False)
    assert all(ours is theirs for ours, theirs in zip(made[-len(parts) :], parts, strict=True))


# MMI ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("MMI-B-01")
@pytest.mark.parametrize(("name", "is_ours"), [
    (b"mmi.service", True), (b"mmi.", True), (b"mmi.nothing", True),
    (b"mmi", False), (b"MMI.service", False),
    (b"Mmi.service", False), (b"x.mmi.service", False), (b"mmiservice", False),
])  # fmt: skip
def test_the_reserved_names_begin_with_four_octets_in_lower_case(name: bytes, is_ours: bool) -> None:
    assert name.startswith(mmi.PREFIX) is is_ours


@pytest.mark.requirement("MMI-B-03")
@pytest.mark.requirement("MMI-B-04")
def test_the_codes_of_mmi_are_text_of_three_digits() -> None:
    assert (mmi.OK, mmi.NOT_FOUND, mmi.NOT_IMPLEMENTED) == (b"\x32\x30\x30", b"\x34\x30\x34", b"\x35\x30\x31")


@pytest.mark.requirement("MMI-B-01")
def test_every_management_service_is_in_the_reserved_namespace() -> None:
    assert all(service_.value.startswith(mmi.PREFIX) for service_ in mmi.Service)
    assert mmi.Service(b"mmi.service") is mmi.Service.SERVICE
