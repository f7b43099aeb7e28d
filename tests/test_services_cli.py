"""``bstar services`` and the check of ``bstar call``: what they print, refuse and leave alone."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from bstar.errors import ConfigurationError, NoActiveNodeError, RemoteProtocolError
from bstar.wire.description import LimitsInUse, Offer, ServiceSummary
from bstar_cli import exits, services, status
from bstar_cli.frames import print_frames
from bstar_cli.main import main
from bstar_cli.schemas import UncheckableError, misfits, mixture, outline, versions_text
from bstar_cli.services import offers_of
from bstar_cli.terminal import print_tables
from bstar_client import Request, Worker
from bstar_client.calls.status import NodeAnswer
from bstar_testing import Pair
from bstar_testing.processes import wait_until
from support.brokers import STEADY, Broker, lone_broker
from support.node_states import node_state, service_state


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("BSTAR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")


class Ask(msgspec.Struct):
    sku: int
    currency: str = "EUR"


class Price(msgspec.Struct):
    cents: int


class Wider(Ask):
    """With fields that may be left out."""

    count: int | None = msgspec.field(default_factory=lambda: None)
    kind: Literal["gross", "net"] = "gross"


class Strict(msgspec.Struct):
    sku: int
    count: int


def price(ask: Ask, request: Request) -> Price:
    """Price of an item."""
    return Price(ask.sku if "tenant" not in request.headers else int(request.headers["tenant"]))


def strict(ask: Strict) -> Price:
    """Price of some items."""
    return Price(ask.sku * ask.count)


def schema_of(kind: Any) -> dict[str, Any]:
    return msgspec.json.schema(kind)


# --- schemas on a line --------------------------------------------------------------------------------------


class Node(msgspec.Struct):
    children: list[Node] = []


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (schema_of(Ask), 'Ask {sku: integer, currency: string = "EUR"}'),
        (
            schema_of(Wider),
            (
                'Wider {sku: integer, currency: string = "EUR", count?: integer | null, '
                'kind: "gross" | "net" = "gross"}'
            ),
        ),
        (schema_of(list[Price]), "[Price {cents: integer}]"),
        (schema_of(dict[str, int]), "{…: integer}"),
        (schema_of(tuple[int, str]), "[integer, string]"),
        (schema_of(int), "integer"),
        ({"type": ["string", "number"]}, "string | number"),
        ({}, "anything"),
        ({"type": "object"}, "object"),
        ({"const": 7}, "7"),
        ({"$ref": "#/$defs/Nothing"}, "Nothing"),
        ({"$ref": "https://example.org/a.json", "$defs": 7}, "a.json"),
        ({"properties": {"a\x1b": True}, "required": 5, "title": []}, "{a\\x1b?: anything}"),
        ({"anyOf": 7, "type": "null"}, "null"),
    ],
)
def test_a_schema_is_one_line(schema: dict[str, Any], text: str) -> None:
    assert outline(schema) == text


def test_a_type_that_contains_itself_has_an_end() -> None:
    shown = outline(schema_of(Node))
    assert shown.startswith("Node {children: [Node {children: [")
    assert shown.count("Node") < 10
    loop = {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}
    assert outline(loop) == "A"


def test_versions_in_a_cell_and_in_a_sentence() -> None:
    assert versions_text({}) == "-"
    assert versions_text({"1.4": 3}) == "1.4"
    assert versions_text({"1.5": 2, "": 1}) == "1.5 (2), none (1)"
    assert mixture({"1.4": 3}) == mixture({}) == ""
    assert mixture({"1.5": 2, "": 1}) == "2 versions at once: 1.5 (2 workers), none (1 worker)"


# --- bodies -------------------------------------------------------------------------------------------------


def why(kind: Any, *frames: bytes) -> str | None:
    [(_, text)] = misfits([Offer("1", request=schema_of(kind), workers=1)], frames)
    return text


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([b'{"sku": 7}'], None),
        ([b'{"sku": 7, "currency": "USD", "more": 1}'], None),
        ([b'{"sku": "seven"}'], "sku: 'seven' is not of type 'integer'"),
        ([b"{}"], "'sku' is a required property"),
        ([b"[]"], "[] is not of type 'object'"),
        ([b""], "it is empty"),
        ([b"hello"], "it is no JSON: JSON is malformed: invalid character (byte 0)"),
        ([b"1", b"2"], "it has 2 frames, and a JSON body is one"),
        ([b'{"sku": "a", "currency": 5}'], "sku: 'a' is not of type 'integer'; currency: 5 is not"),
    ],
)
def test_a_misfit_names_the_field_and_the_reason(frames: list[bytes], text: str | None) -> None:
    found = why(Ask, *frames)
    assert found == text if text is None else found is not None and found.startswith(text)


def test_of_a_choice_the_nearest_reason_is_told() -> None:
    assert why(Wider, b'{"sku": 7, "kind": "other"}') == "kind: 'other' is not one of ['gross', 'net']"
    assert why(list[Ask], b'[{"sku": 7}, {"sku": true}]') == "[1].sku: True is not of type 'integer'"


def test_many_misfits_are_counted() -> None:
    found = why(list[int], b'["a", "b", "c", "d", "e"]')
    assert found is not None
    assert found.endswith("; and 2 more")
    assert found.count("is not of type 'integer'") == 3


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"$ref": "#/$defs/Nothing"},
        {"$ref": "#"},
        {"$ref": "http://127.0.0.1:9/a.json"},
        {"$schema": "http://127.0.0.1:9/s", "$ref": "http://127.0.0.1:9/a.json"},
    ],
    ids=["type", "missing", "endless", "elsewhere", "of another kind"],
)
@pytest.mark.filterwarnings("error")
def test_a_schema_that_cannot_be_used_is_said_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    with pytest.raises(UncheckableError, match="its schema cannot be used"):
        misfits([Offer(request=schema, workers=1)], [b"{}"])


def test_without_the_package_the_body_is_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with pytest.raises(UncheckableError, match=r"jsonschema is not installed: pip install '\.\[schema\]'"):
        misfits([Offer(request=schema_of(Ask), workers=1)], [b"{}"])
    assert misfits([Offer(workers=1)], [b"{}"]) == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("frame", "shown"),
    [
        (b'{"cents":7,"of":["a"]}', '{\n  "cents": 7,\n  "of": [\n    "a"\n  ]\n}\n'),
        (b'{"a":"\x1b"}', '{"a":"\\x1b"}\n'),
        (b"{no json", "{no json\n"),
        (b"7", "7\n"),
    ],
)
def test_a_terminal_gets_json_with_indents(frame: bytes, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    print_frames([frame], is_raw=False, is_alone=True)
    assert out.getvalue() == shown


# --- commands -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with lone_broker(tmp_path_factory.mktemp("cli")) as broker:
        beats: dict[str, Any] = {
            "heartbeat_s": STEADY.timing.mdp_heartbeat_interval_s,
            "liveness": STEADY.timing.mdp_liveness,
        }
        plain = Worker(broker.endpoint, "plain", lambda request: b"yes", dialect="mdp02", **beats)
        old = Worker(broker.endpoint, "price", price, version="1.4", threads=2)
        new = Worker(broker.endpoint, "mixed", price, version="1.4")
        newer = Worker(broker.endpoint, "mixed", strict, version="1.5")
        with plain, old, new, newer:
            wait_until(lambda: sum(map(_workers_of(broker), ("plain", "price", "mixed"))) == 4, "workers")
            yield broker


def _workers_of(broker: Broker) -> Any:
    return lambda name: sum(each.workers for each in offers_of([broker.endpoint], name, 5.0, None))


@pytest.mark.loopback
def test_the_listing_flags_two_versions(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--endpoints", node.endpoint)
    assert main(["services", "ls", *where]) == exits.OK
    shown = capsys.readouterr()
    rows = {line.split()[0]: line.split()[1:] for line in shown.out.splitlines()}
    assert rows["price"] == ["1.4", "1", "Price", "of", "an", "item."]
    assert rows["plain"] == ["-", "1", "-"]
    assert rows["mixed"][:5] == ["1.4", "(1),", "1.5", "(1)", "2"]
    assert shown.err == "mixed: 2 versions at once: 1.4 (1 worker), 1.5 (1 worker)\n"
    assert main(["services", "ls", "--json", *where]) == exits.OK
    listed = {each["service"]: each for each in map(json.loads, capsys.readouterr().out.splitlines())}
    assert listed["price"] == {
        "service": "price",
        "workers": 1,
        "versions": {"1.4": 1},
        "description": "Price of an item.",
        "limits": None,
        "is_mixed": False,
    }
    assert listed["mixed"]["is_mixed"]
    assert (listed["plain"]["versions"], listed["plain"]["description"]) == ({}, "")


@pytest.mark.loopback
def test_a_service_is_shown_with_its_bodies(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--endpoints", node.endpoint)
    assert main(["services", "show", "price", *where]) == exits.OK
    assert capsys.readouterr().out.splitlines() == [
        "price: 1 worker",
        "",
        "version 1.4, 1 worker: Price of an item.",
        '  request  Ask {sku: integer, currency: string = "EUR"}',
        "  reply    Price {cents: integer}",
    ]
    assert main(["services", "show", "mixed", *where]) == exits.OK
    shown = capsys.readouterr()
    assert "version 1.5, 1 worker: Price of some items." in shown.out
    assert shown.err == "2 versions at once: 1.4 (1 worker), 1.5 (1 worker)\n"
    assert main(["services", "show", "plain", *where]) == exits.OK
    assert "nothing is known of 1 worker: a handler without types, docstring" in capsys.readouterr().out
    assert main(["services", "show", "price", "--json", *where]) == exits.OK
    [offer] = json.loads(capsys.readouterr().out)
    assert (offer["version"], offer["workers"]) == ("1.4", 1)
    assert main(["services", "show", "nothing", *where]) == exits.FAILED
    assert "no worker offers service nothing" in capsys.readouterr().err


@pytest.mark.loopback
def test_a_schema_is_printed_for_programs(node: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--endpoints", node.endpoint)
    assert main(["services", "schema", "price", *where]) == exits.OK
    shown = capsys.readouterr().out
    assert json.loads(shown)["$defs"]["Ask"]["required"] == ["sku"]
    assert shown.count("\n") > 5
    assert main(["services", "schema", "price", "--of", "reply", "--json", *where]) == exits.OK
    shown = capsys.readouterr().out
    assert json.loads(shown)["$ref"] == "#/$defs/Price"
    assert shown.count("\n") == 1
    assert main(["services", "schema", "mixed", *where]) == exits.USAGE
    assert "name one with --version" in capsys.readouterr().err
    assert main(["services", "schema", "mixed", "--version", "1.5", *where]) == exits.OK
    assert "Strict" in capsys.readouterr().out
    assert main(["services", "schema", "mixed", "--of", "reply", *where]) == exits.OK, "both have the same"
    assert main(["services", "schema", "mixed", "--version", "2", *where]) == exits.FAILED
    assert main(["services", "schema", "plain", *where]) == exits.FAILED
    assert main(["services", "schema", "price", "--of", "what", *where]) == exits.USAGE


def answers(*bodies: list[bytes] | None, is_denied: bool = False) -> list[NodeAnswer]:
    return [
        NodeAnswer(f"tcp://n{number}:1", body, "silent" if body is None else None, is_denied=is_denied)
        for number, body in enumerate(bodies)
    ]


def listing(*counts: int) -> list[bytes]:
    rows = [ServiceSummary(f"s{number}", count) for number, count in enumerate(counts)]
    return [b"200", msgspec.json.encode(rows)]


def test_the_node_that_knows_of_most_workers_counts() -> None:
    best = services._best(answers(listing(1), None, listing(2, 3), [b"404"]), list[ServiceSummary])
    assert [each.workers for each in best] == [2, 3]
    assert services._best(answers([b"404"], None), list[ServiceSummary]) == []


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        (answers(None, None), NoActiveNodeError, "no node answers: tcp://n0:1: silent; tcp://n1:1: silent"),
        (answers(None, is_denied=True), ConfigurationError, "tcp://n0:1: silent"),
        (answers([b"501"], None), RemoteProtocolError, "tcp://n0:1: a broker of an earlier release"),
        (answers([]), RemoteProtocolError, "tcp://n0:1: a broker of an earlier release"),
        (answers([b"200", b"?"]), RemoteProtocolError, "tcp://n0:1: the answer cannot be read"),
    ],
)
def test_without_an_answer_the_reason_of_each_node_is_told(
    given: list[NodeAnswer], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        services._best(given, list[ServiceSummary])


def test_several_pairs_are_one_listing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(endpoints: tuple[str, ...], *rest: object) -> list[NodeAnswer]:
        return answers(listing(1, 2) if "tcp://127.0.0.1:1" in endpoints else listing(7))

    monkeypatch.setattr(services, "ask_nodes", ask)
    where = ("--endpoints", "tcp://127.0.0.1:1,tcp://127.0.0.1:2;tcp://127.0.0.1:3,tcp://127.0.0.1:4")
    assert main(["services", "ls", *where]) == exits.OK
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows == [
        ["SERVICE", "PAIR", "VERSION", "WORKERS", "DESCRIPTION"],
        ["s0", "#1", "-", "1", "-"],
        ["s0", "#2", "-", "7", "-"],
        ["s1", "#1", "-", "2", "-"],
    ]
    assert main(["services", "ls", "--json", *where]) == exits.OK
    assert [json.loads(line)["pair"] for line in capsys.readouterr().out.splitlines()] == ["#1", "#2", "#1"]


def test_a_pair_that_does_not_answer_hides_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(endpoints: tuple[str, ...], *rest: object) -> list[NodeAnswer]:
        return answers(None if "tcp://127.0.0.1:1" in endpoints else listing(7))

    monkeypatch.setattr(services, "ask_nodes", ask)
    where = ("--endpoints", "tcp://127.0.0.1:1,tcp://127.0.0.1:2;tcp://127.0.0.1:3,tcp://127.0.0.1:4")
    assert main(["services", "ls", *where]) == exits.NOT_EXECUTED
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split() == ["s0", "#2", "-", "7", "-"]
    assert "no node answers: tcp://n0:1: silent" in printed.err


def test_limits_are_those_of_the_node_that_serves_whichever_knows_of_more_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    used = LimitsInUse(10, 5.0, 100, 30.0, running=10, queued=37, bound="running_max 10: 10 running, 37 wait")
    serves = ServiceSummary("mail", 3, limits=used)
    stands_by = [ServiceSummary("mail", 4), ServiceSummary("price", 1)]

    def ask(*rest: object) -> list[NodeAnswer]:
        return answers(*([b"200", msgspec.json.encode(rows)] for rows in (stands_by, [serves])))

    monkeypatch.setattr(services, "ask_nodes", ask)
    where = ("--endpoints", "tcp://127.0.0.1:1,tcp://127.0.0.1:2")
    assert main(["services", "ls", *where]) == exits.OK
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    text = "running 10 of 10, queue 37 of 100, 5 a second, 30 s in the queue"
    assert rows == [
        ["SERVICE", "VERSION", "WORKERS", "LIMITS", "BOUND BY", "DESCRIPTION"],
        ["mail", "-", "4", text, used.bound, "-"],
        ["price", "-", "1", "-", "-", "-"],
    ]
    assert main(["services", "ls", "--json", *where]) == exits.OK
    limits = [json.loads(line)["limits"] for line in capsys.readouterr().out.splitlines()]
    assert limits == [msgspec.structs.asdict(used), None]


@pytest.mark.loopback
def test_a_service_is_shown_with_its_limits_and_with_what_bounds_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = {"running_max": 3, "queue_length_max": 100, "requests_per_s": 0.001}
    with (
        Pair(tmp_path, settings={"services": {"mail.*": limits}}) as pair,
        Worker(pair.endpoints, "mail.eu", lambda request: b"sent", version="1.4"),
        ThreadPoolExecutor() as pool,
    ):
        pair.start()
        client = pair.client(timeout=600)
        for _ in range(3):
            pool.submit(client.request, "mail.eu", b"")
        pair.primary.wait_for(
            "one of three requests has been sent, the others wait",
            lambda state: [(each.answered, each.held_back) for each in state.broker.services] == [(1, 2)],
        )
        where = ("--endpoints", ",".join(pair.endpoints))
        text, bound = "running 0 of 3, queue 2 of 100, 0.001 a second", "requests_per_s 0.001: 2 wait"
        assert main(["services", "show", "mail.eu", *where]) == exits.OK
        shown = capsys.readouterr().out.splitlines()
        assert shown[:3] == ["mail.eu: 1 worker", f"limits: {text}", f"bound by {bound}"]
        assert main(["services", "ls", *where]) == exits.OK
        rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
        assert rows[1] == ["mail.eu", "1.4", "1", text, bound, "-"]
        main(["status", *where])
        rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
        heads = next(row for row in rows if row[0] == "SERVICE")
        row = next(row for row in rows if row[0] == "mail.eu")
        assert dict(zip(heads, row, strict=True))["BOUND BY"] == bound
        assert main(["services", "ls", "--endpoints", pair.endpoints[1]]) == exits.OK
        assert "LIMITS" not in capsys.readouterr().out, "the backup does not serve"
        client.close()


@pytest.mark.parametrize("bound", ["", "running_max 10: 10 running, 37 wait"])
def test_the_listing_of_bstar_status_has_a_column_of_what_bounds_services(
    capsys: pytest.CaptureFixture[str], bound: str
) -> None:
    serves = node_state(service_state("mail", bound=bound), service_state("price"), is_active=True)
    shown = status._services_table(["#1"], [serves])
    assert shown is not None
    print_tables(shown)
    rows = [re.split(" {2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    heads = ["SERVICE", "ON", "WORKERS", "IDLE", "IN FLIGHT", "QUEUED", "ANSWERED"]
    none = ["backup", "0", "0", "0", "0", "0"]
    if bound:
        assert rows == [[*heads, "BOUND BY"], ["mail", *none, bound], ["price", *none, "-"]]
    else:
        assert rows == [heads, ["mail", *none], ["price", *none]]


@pytest.mark.loopback
def test_without_a_node_the_commands_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    where = ("--endpoints", "tcp://127.0.0.1:1", "--timeout", "0.5")
    for words in (["ls"], ["show", "price"], ["schema", "price"]):
        assert main(["services", *words, *where]) == exits.NOT_EXECUTED
        assert "no node answers: tcp://127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.loopback
def test_a_body_that_does_not_fit_is_not_sent(
    node: Broker, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--endpoints", node.endpoint, "--timeout", "60")
    assert main(["call", "price", '{"sku": 7}', *where]) == exits.OK
    assert capfd.readouterr() == ('{"cents":7}', "")
    assert main(["call", "price", '{"sku": "seven"}', *where]) == exits.USAGE
    shown = capfd.readouterr()
    assert shown.out == ""
    assert (
        "does not fit service price 1.4: sku: 'seven' is not of type 'integer'; nothing was sent" in shown.err
    )
    assert main(["durable", "submit", "price", '{"sku": "seven"}', *where]) == exits.USAGE
    assert "does not fit service price 1.4" in capfd.readouterr().err
    assert main(["call", "price", '{"sku": "seven"}', "--no-check", *where]) == exits.FAILED
    assert "bad-body" in capfd.readouterr().err
    assert main(["call", "price", '{"sku": 7}', "--header", "tenant=3", *where]) == exits.OK
    assert capfd.readouterr().out == '{"cents":3}'
    packed = ("--header", "content-type=application/msgpack")
    assert main(["call", "price", '{"sku": 7}', *packed, *where]) == exits.FAILED, "the worker checks it"
    assert "bad-body" in capfd.readouterr().err
    assert main(["call", "plain", "no json", *where]) == exits.OK
    assert capfd.readouterr() == ("yes", "")
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    assert main(["call", "price", '{"sku": 7}', *where]) == exits.OK
    shown = capfd.readouterr()
    assert shown.out == '{"cents":7}'
    assert shown.err.startswith("bstar: the body is not checked: jsonschema is not installed: pip install ")
    assert shown.err.count("\n") == 1


@pytest.mark.loopback
def test_during_an_upgrade_a_body_that_some_workers_take_is_sent_with_a_warning(
    node: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    where = ("--endpoints", node.endpoint, "--timeout", "60")
    assert main(["call", "mixed", '{"sku": 7, "count": 1}', *where]) == exits.OK
    assert capfd.readouterr() == ('{"cents":7}', "")
    assert main(["call", "mixed", '{"sku": 7}', *where]) in (exits.OK, exits.FAILED)
    assert "workers of mixed 1.5 will decline this body: 'count' is a required" in capfd.readouterr().err
    assert main(["call", "mixed", "{}", *where]) == exits.USAGE


@pytest.mark.parametrize(
    "options", [["--header", "tenant"], ["--header", "=3"], ["--header", "a=1", "--header", "a=2"]]
)
def test_a_header_that_cannot_be_read_is_wrong_usage(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", "price", "{}", *options]) == exits.USAGE
    assert "--header" in capsys.readouterr().err


@pytest.mark.loopback
def test_a_node_that_does_not_serve_tells_what_it_knows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = Pair(tmp_path)
    worker = Worker(pair.endpoints, "price", price, version="1.4")
    with pair, worker:
        pair.start()
        backup = pair.endpoints[1]
        wait_until(lambda: offers_of([backup], "price", 5.0, None), "the worker at the backup")
        assert main(["services", "ls", "--endpoints", backup]) == exits.OK
        assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["price", "1.4", "1"]
        # Nobody serves until a request comes: the check does not wait for that.
        pair.primary.kill()
        call = ["call", "price", '{"sku": 7}', "--endpoints", ",".join(pair.endpoints), "--timeout", "60"]
        assert main(call) == exits.OK
