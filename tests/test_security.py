"""Keys, the list of principals, the ZAP handler's decisions and the broker's, and how a socket connects."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from bstar.errors import ConfigurationError
from bstar.net.curve import LinkConnector, NodeSecurity
from bstar.net.reactor import Reactor
from bstar.security import KeyPair, Principal, Principals, Quota, Security, new_key, read_key, read_public_key
from bstar.security.connector import GIVEN_UP_PAUSE_S, Connector
from bstar.security.keys import write_key
from bstar.security.principals import Patterns
from bstar.security.zap import CLIENTS, PEERS, Doorkeeper
from bstar.settings.principals import entry_line, load_principals, watch_principals

# Nobody listens there.
ENDPOINT = "tcp://127.0.0.1:1"

A, B, C = (new_key(name) for name in ("a", "b", "c"))


def spelled(text: str) -> str:
    """With the keys in the places of their names, which differ in each run."""
    return text.replace("A-PUBLIC", A.public.decode()).replace("B-SECRET", B.secret.decode())


def entry(key: KeyPair, name: str = "", **roles: object) -> Principal:
    return Principal(name or key.name, (key.public.decode(),), **roles)  # type: ignore[arg-type]


def test_a_key_survives_its_files(tmp_path: Path) -> None:
    secret, public = write_key(A, tmp_path)
    assert read_key(secret) == A
    assert read_public_key(public) == read_public_key(secret) == ("a", A.public)
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert A.secret.decode() not in public.read_text()


def test_a_key_is_never_written_over_another(tmp_path: Path) -> None:
    secret, _ = write_key(A, tmp_path)
    with pytest.raises(ConfigurationError, match=r"a\.key exists"):
        write_key(new_key("a"), tmp_path)
    assert read_key(secret) == A


def test_a_secret_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    secret, _ = write_key(A, tmp_path)
    secret.chmod(0o640)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        read_key(secret)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "is no key file"),
        ("name: a\n", "is no key file"),
        ("name: a\npublic: short\n", ":2: is no line"),
        ("name: a\npublic: A-PUBLIC\n", "holds a public key only"),
        ("name: a\npublic: A-PUBLIC\nsecret: B-SECRET\n", "do not belong together"),
        ("name: a b\npublic: A-PUBLIC\n", ":1: is no line"),
        ("x" * 5_000, ":1: is no line"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "a.key"
    path.write_text(spelled(text))
    path.chmod(0o600)
    with pytest.raises(ConfigurationError, match=wrong):
        read_key(path)


def test_no_text_shows_a_secret_key(tmp_path: Path) -> None:
    secret, _ = write_key(A, tmp_path)
    security = Security(secret, servers=[B.public])
    shown = f"{A!r} {A} {security!r} {security} {[A]} {vars(security)}"
    assert A.secret.decode() not in shown
    secret.write_text(secret.read_text().replace("secret", "secrets"))
    with pytest.raises(ConfigurationError) as caught:
        read_key(secret)
    assert A.secret.decode() not in str(caught.value)


def test_security_needs_the_key_of_a_server(tmp_path: Path) -> None:
    secret, public = write_key(A, tmp_path)
    assert Security(secret, servers=[public, B.public, B.public.decode()]).servers == (A.public, B.public)
    with pytest.raises(ConfigurationError, match="no server's key"):
        Security(secret, servers=[])
    with pytest.raises(ConfigurationError, match="is a list"):
        Security(secret, servers=str(public))


def test_security_from_the_environment(tmp_path: Path) -> None:
    secret, public = write_key(A, tmp_path)
    assert Security.from_environment({}) is None
    both = {"BSTAR_KEY": str(secret), "BSTAR_SERVER_KEYS": f"{public}, {B.public.decode()}"}
    security = Security.from_environment(both)
    assert security is not None
    assert security.servers == (A.public, B.public)
    with pytest.raises(ConfigurationError, match="BSTAR_SERVER_KEYS is not"):
        Security.from_environment({"BSTAR_KEY": str(secret)})


# --- principals ---------------------------------------------------------------------------------------------


def test_a_pattern_is_a_name_or_its_beginning() -> None:
    patterns = Patterns(["price", "eu.*"])
    assert [patterns.match(name) for name in (b"price", b"prices", b"eu.", b"eu.price", b"e", b"my.eu.")] == [
        True, False, True, True, False, False,
    ]  # fmt: skip
    assert Patterns(["*"]).match(b"anything")
    assert not Patterns().match(b"price")


def test_patterns_remember_a_bounded_number_of_names() -> None:
    patterns = Patterns(["a*"])
    for number in range(25_000):
        assert patterns.match(b"a%d" % number)
    assert len(patterns._answers) <= 10_000


def test_a_list_of_principals_is_read(tmp_path: Path) -> None:
    path = tmp_path / "principals.yaml"
    path.write_text(
        f"principals:\n  node: {{keys: ['{A.public.decode()}'], peer: true}}\n"
        f"  shop: {{keys: ['{B.public.decode()}', '{C.public.decode()}'], calls: [price, 'eu.*']}}\n"
    )
    found = load_principals(path)
    assert [(one.name, one.roles) for one in found.all] == [("node", ("peer",)), ("shop", ("calls",))]
    user_id, shop = found.of_key(C.public.decode()) or ("", None)
    assert user_id == f"shop {C.public.decode()}"
    assert found.of_user(user_id) is shop


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("principals: 5", "must hold names"),
        ("others: {}", "unknown key"),
        ("principals: {a: 5}", r"principals\.a"),
        ("principals: {a: {keys: ['x'], peer: true}}", "no public key"),
        ("principals: {a: {keys: ['A-PUBLIC']}}", "has no role"),
        ("principals: {a: {keys: ['A-PUBLIC'], peers: true}}", "unknown word 'peers'"),
        ("principals: {a: {keys: ['A-PUBLIC'], calls: price}}", "calls is a list"),
        ("principals: {a: {keys: ['A-PUBLIC', 'A-PUBLIC'], peer: true}}", "one key twice"),
        ("principals: {a: {keys: ['A-PUBLIC'], calls: ['a*b']}}", "no pattern"),
        ("principals: {on: {keys: ['A-PUBLIC'], peer: true}}", r":1: .*on: .* true: put it in quotes.*'on'"),
        ("principals:\n  null: {keys: ['A-PUBLIC'], peer: true}", r":2: .*null: .* nothing: put it"),
        (
            "principals: {1e3: {keys: ['A-PUBLIC'], peer: true}, 7: {}}",
            r"principals\.7: .* 7: put it in quotes",
        ),
        ("principals: {a: {keys: ['A-PUBLIC'], calls: [off]}}", "calls: YAML reads one of these as False"),
        (
            "principals: {a: {keys: ['A-PUBLIC'], calls: [a], connections: 0}}",
            "connections is 0, and must be a whole number from 1 to 1000000000",
        ),
        (
            "principals: {a: {keys: ['A-PUBLIC'], calls: [a], bytes_per_s: fast}}",
            "bytes_per_s is 'fast', and must be a number above 0, 1000000000000 at most",
        ),
        ("principals: {a: {keys: ['A-PUBLIC'], peer: sure}}", "peer is 'sure', and must be true or false"),
        ("principals: {a: {calls: [a]}}", "a: has no keys: add keys"),
        ("principals: {a: {keys: ['A-PUBLIC'], peer: true, connections: 5}}", "has bounds"),
        (
            "principals:\n  a: {keys: ['A-PUBLIC'], peer: true}\n  b: {keys: ['A-PUBLIC'], peer: true}",
            "have the same key",
        ),
    ],
)
def test_what_is_wrong_with_a_list_is_told(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "principals.yaml"
    path.write_text(spelled(text))
    with pytest.raises(ConfigurationError, match=wrong):
        load_principals(path)


def test_the_bounds_of_an_entry_are_read(tmp_path: Path) -> None:
    path = tmp_path / "principals.yaml"
    bounds = {
        "connections": 2,
        "messages_per_s": 3,
        "requests_per_s": 0.5,
        "bytes_per_s": 1e6,
        "outstanding": 4,
    }
    path.write_text(f"principals: {{a: {{keys: ['{A.public.decode()}'], calls: [x], {str(bounds)[1:]}}}")
    (found,) = load_principals(path).all
    assert found.quota == Quota(**bounds)  # type: ignore[arg-type]


def test_a_list_that_breaks_while_it_is_used_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "principals.yaml"
    good = f"principals: {{a: {{keys: ['{A.public.decode()}'], peer: true}}}}"
    path.write_text(good)
    file = watch_principals(path)
    assert not file.refresh()
    path.write_text("principals: {")
    assert not file.refresh()
    assert "is no YAML" in file.error
    assert file.value.of_key(A.public.decode())
    path.write_text(good.replace("peer: true", "operator: true"))
    assert file.refresh()
    assert (file.error, file.value.all[0].roles) == ("", ("operator",))


@pytest.mark.parametrize("missing", ["a", "b"])
def test_a_node_tells_that_it_could_not_start_with_the_list_that_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    """The list is in force: who was withdrawn with it is refused."""
    path = tmp_path / "principals.yaml"
    secret, _ = write_key(A, tmp_path)
    whole = "principals:\n" + "".join(entry_line(key.name, key.public.decode(), ["peer"]) for key in (A, B))
    path.write_text(whole)
    security = NodeSecurity(str(secret), str(path))
    security.to_peer()
    assert security.error == ""
    path.write_text("".join(line for line in whole.splitlines(True) if not line.startswith(f"  {missing}:")))
    assert security.refresh()
    wrong = {"a": "does not list this node's own key", "b": "lists no peer beside this process"}[missing]
    assert wrong in security.error
    assert len(security.principals.all) == 1
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert wrong in warning.getMessage()
    path.write_text(whole)
    assert security.refresh()
    assert security.error == ""


def test_all_links_to_the_peer_follow_the_list(tmp_path: Path) -> None:
    """The link of the pair and that of the store: one of them knew the keys of the start alone."""
    path = tmp_path / "principals.yaml"
    secret, _ = write_key(A, tmp_path)
    own = "principals:\n" + entry_line(A.name, A.public.decode(), ["peer"])
    path.write_text(own + entry_line(B.name, B.public.decode(), ["peer"]))
    security = NodeSecurity(str(secret), str(path))
    trusts = [security.to_peer(), security.to_peer()]
    path.write_text(own + entry_line(C.name, C.public.decode(), ["peer"]))
    assert security.refresh()
    assert [trust.servers for trust in trusts] == [(C.public,), (C.public,)]


# --- ZAP ----------------------------------------------------------------------------------------------------


def ask(domain: bytes = CLIENTS, key: bytes = b"a" * 32, mechanism: bytes = b"CURVE") -> list[bytes]:
    return [b"1.0", b"7", domain, b"10.0.0.1", b"", mechanism, key]


def doorkeeper(*principals: Principal, told: list[tuple[str, str, str]] | None = None) -> Doorkeeper:
    names = {b"a" * 32: A, b"b" * 32: B}
    report = (lambda *what: told.append(what)) if told is not None else (lambda *what: None)
    return Doorkeeper(Principals(principals), lambda raw: names.get(raw, C).public.decode(), report)


def test_zap_lets_a_listed_key_in_and_names_it() -> None:
    door = doorkeeper(entry(A, "shop", calls=Patterns(["*"])))
    reply = door.answer(ask())
    assert reply == [b"1.0", b"7", b"200", b"OK", b"shop " + A.public, b""]
    assert door.admitted == {"shop": 1}


@pytest.mark.parametrize(
    ("request_frames", "reason"),
    [
        (ask(key=b"c" * 32), "unknown-key"),
        (ask(domain=PEERS), "wrong-role"),
        (ask(domain=b"another"), "wrong-role"),
        (ask(domain=b""), "wrong-role"),
        (ask(mechanism=b"NULL"), "no-curve"),
        (ask(mechanism=b"PLAIN"), "no-curve"),
        (ask(key=b"a" * 31), "no-curve"),
        (ask()[:-1], "no-curve"),
        ([*ask(), b"more"], "no-curve"),
    ],
)
def test_zap_refuses_everybody_else_for_a_while(request_frames: list[bytes], reason: str) -> None:
    told: list[tuple[str, str, str]] = []
    door = doorkeeper(entry(A, "shop", calls=Patterns(["*"])), told=told)
    reply = door.answer(request_frames)
    assert reply is not None
    assert reply[2] == b"300", "after 400 libzmq would never try again"
    assert reply[4] == b""
    assert door.refusals == {reason: 1}
    assert told[0][0] == reason
    assert not door.admitted


def test_zap_refuses_a_listed_key_that_may_open_no_more_connections() -> None:
    told: list[tuple[str, str, str]] = []
    door = doorkeeper(entry(A, "shop", calls=Patterns(["*"])), told=told)
    door.why_not = lambda domain, principal: "too-many-connections" if principal.name == "shop" else ""
    reply = door.answer(ask())
    assert reply is not None
    assert reply[2:5] == [b"300", b"too-many-connections", b""]
    assert (door.refusals, door.admitted) == ({"too-many-connections": 1}, {})
    assert told == [("too-many-connections", f"shop {A.public.decode()}", "10.0.0.1")]


def test_zap_passes_on_what_its_owner_says_of_the_connection() -> None:
    door = doorkeeper(entry(A, "shop", calls=Patterns(["*"])))
    door.on_admitted = lambda domain, address: f"{domain.decode()} {address}".encode()
    assert (door.answer(ask()) or [])[5] == b"bstar.clients 10.0.0.1"


@pytest.mark.parametrize(
    "frames", [[], [b"1.0"], [b"2.0", b"7", CLIENTS, b"", b"", b"CURVE", b"a" * 32], ask()[:5]]
)
def test_zap_gives_no_answer_to_what_is_no_request(frames: list[bytes]) -> None:
    door = doorkeeper(entry(A, is_peer=True))
    assert door.answer(frames) is None
    assert door.refusals == {"malformed": 1}


def test_a_peer_enters_the_state_link_alone() -> None:
    door = doorkeeper(entry(A, is_peer=True), entry(B, offers=Patterns(["*"])))
    replies = [door.answer(ask(domain, key * 32)) for domain in (PEERS, CLIENTS) for key in (b"a", b"b")]
    assert [reply[2] for reply in replies if reply is not None] == [b"200", b"300", b"300", b"200"]


def test_a_domain_has_the_rule_that_its_owner_gives_it() -> None:
    door = doorkeeper(entry(A, offers=Patterns(["pzq"])), entry(B, offers=Patterns(["price"])))
    consumers = b"bstar.fronts.pzq.consumers"
    assert (door.answer(ask(consumers, b"a" * 32)) or [])[2] == b"300"
    door.rules[consumers] = lambda principal: principal.offers.match(b"pzq")
    replies = [door.answer(ask(consumers, key * 32)) for key in (b"a", b"b", b"c")]
    assert [reply[2:4] for reply in replies if reply is not None] == [
        [b"200", b"OK"],
        [b"300", b"wrong-role"],
        [b"300", b"unknown-key"],
    ]


def test_the_keys_of_those_for_whom_a_rule_holds() -> None:
    both = Principals([entry(A, offers=Patterns(["pzq"])), entry(B, is_peer=True)])
    assert both.keys_of(lambda principal: principal.is_peer) == {B.public.decode()}


# --- connections ---------------------------------------------------------------------------------------


@pytest.fixture
def dealer() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.handshake_ivl = 1_000
        yield socket


def test_a_handshake_that_fails_gets_more_time_in_the_next_round_of_keys(dealer: zmq.Socket[bytes]) -> None:
    """Otherwise a storm of clients at a busy node never ends."""
    own, *servers = (new_key(name) for name in ("own", "primary", "backup"))
    connector = Connector(dealer, ENDPOINT, Security(own, servers=[key.public for key in servers]))
    connector.connect()
    limits, pauses = [dealer.handshake_ivl], []
    for _ in range(8):
        pauses.append(connector.note(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL))
        assert connector.is_connecting is not pauses[-1]
        if pauses[-1]:
            connector.connect_again()
        limits.append(dealer.handshake_ivl)
    assert pauses == [False, True] * 4
    assert limits == [2_000, 2_000, *[4_000] * 7]
    assert not connector.note(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    connector.connect_again()
    assert dealer.handshake_ivl == 2_000


def test_each_key_is_the_first_of_a_round_in_turn(dealer: zmq.Socket[bytes]) -> None:
    """A failure that is read late counts for the key after its own: only the first is sure to be tried."""
    own, *servers = (new_key(name) for name in ("own", "primary", "backup", "other"))
    security = Security(own, servers=[key.public for key in servers])
    tried: list[int] = []
    connector = Connector(dealer, ENDPOINT, security, on_connect=lambda: tried.append(connector.number % 3))
    connector.connect()
    for _ in range(9):
        if connector.note(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL):
            assert not connector.note(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)  # of the ended connection
            connector.connect_again()
    assert tried == [0, 1, 2, 2, 0, 1, 1, 2, 0, 0]


def test_libzmq_tries_again_by_itself_without_keys(dealer: zmq.Socket[bytes]) -> None:
    connector = Connector(dealer, ENDPOINT, None)
    connector.connect()
    assert not connector.note(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    assert connector.is_connecting
    assert not connector.is_untrusted
    assert connector.note(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
    assert connector.is_untrusted


def test_a_server_that_is_trusted_again_is_connected_to_again(dealer: zmq.Socket[bytes]) -> None:
    """An operator takes a key off the list by mistake, and puts it back."""
    own, server = new_key("own"), new_key("primary").public
    security = Security(own, servers=[server])
    connector = Connector(dealer, ENDPOINT, security)
    connector.connect()
    for servers, is_connecting in (((), False), ((server,), True)):
        security.servers = servers
        connector.follow_trust()
        assert connector.is_connecting is is_connecting


def test_each_attempt_to_connect_is_announced(dealer: zmq.Socket[bytes]) -> None:
    own, *servers = (new_key(name) for name in ("own", "primary", "backup"))
    attempts = []
    security = Security(own, servers=[key.public for key in servers])
    connector = Connector(dealer, ENDPOINT, security, on_connect=lambda: attempts.append(connector.number))
    connector.connect()
    connector.note(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
    assert attempts == [0, 1]


@pytest.mark.parametrize(
    ("event", "count", "fault"),
    [
        (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 1, "refuses the key own: list it there with peer: true"),
        (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, 1, "has keys and this side has none, or the other way round"),
        (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 1, ""),
        (zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, 2, "is frozen or busy, or the two sides have other keys"),
    ],
)
def test_a_link_says_once_why_its_handshakes_fail(
    dealer: zmq.Socket[bytes], caplog: pytest.LogCaptureFixture, event: int, count: int, fault: str
) -> None:
    """A frozen peer is not blamed for its keys, and a peer that lacks ours is not taken for a cut link."""
    own, server = new_key("own"), new_key("primary").public
    with Reactor(clock=lambda: 0.0) as reactor:
        connector = LinkConnector(dealer, ENDPOINT, Security(own, servers=[server]), reactor)
        for _ in range(2):
            connector.connect()
            connector.follow(zmq.EVENT_HANDSHAKE_SUCCEEDED, 0.0)
            assert not connector.fault
            for _ in range(count):
                connector.connect()
                connector.follow(event, 0.0)
            assert fault in connector.fault
            assert bool(connector.fault) is bool(fault)
            connector.connect()
            connector.follow(event if fault else zmq.EVENT_HANDSHAKE_SUCCEEDED, 0.0)
        connector.close()
    assert len(caplog.records) == (2 if fault else 0)


@pytest.mark.parametrize("failures", [1, 2])
def test_an_attempt_that_waits_for_its_time_ends_no_other(
    dealer: zmq.Socket[bytes], monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """The list that lacked the server is mended while the link pauses."""
    own, *servers = (new_key(name) for name in ("own", "primary"))
    security = Security(own, servers=[key.public for key in servers])
    attempts: list[float] = []
    connect = Connector.connect

    def noted(connector: Connector) -> None:
        attempts.append(now)
        connect(connector)

    monkeypatch.setattr(Connector, "connect", noted)
    now = 0.0
    with Reactor(clock=lambda: now) as reactor:
        connector = LinkConnector(dealer, ENDPOINT, security, reactor)
        connector.connect()
        for _ in range(failures):
            connector.follow(zmq.EVENT_HANDSHAKE_FAILED_AUTH, now)
        if failures == 1:
            security.servers = (A.public,)
            connector.follow_trust()
        now = 2 * GIVEN_UP_PAUSE_S
        reactor.turn()
        connector.close()
    assert attempts == ([0.0, 0.0] if failures == 1 else [0.0, now])
