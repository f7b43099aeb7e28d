"""A node's settings: what is read from where, what is refused in which words, and when two are a pair."""

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from bstar.base.endpoints import parse_endpoint, parse_http_bind
from bstar.errors import ConfigurationError
from bstar.settings import (
    PROFILES,
    RESERVED_VARIABLES,
    Settings,
    check_pair,
    flatten,
    from_mapping,
    load,
    pair_problems,
    sample_configuration,
    sample_settings,
    variable_of,
)
from bstar.settings.document import FILE_BYTES_MAX
from bstar.settings.fields import ENTRIES, FIELDS
from bstar.settings.relations import RELATIONS, node_warnings
from bstar.settings.schema import RoleName

REPOSITORY = Path(__file__).resolve().parent.parent

MINIMAL = """\
role: primary
endpoints:
  clients: tcp://127.0.0.1:5001
  state: tcp://127.0.0.1:5003
  peer_state: tcp://127.0.0.1:5004
"""


def minimal(**more: Any) -> dict[str, Any]:  # any YAML document
    document: dict[str, Any] = yaml.safe_load(MINIMAL)
    for path, value in more.items():
        *sections, name = path.split("__")
        place = document
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return document


def complaint(**more: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        from_mapping(minimal(**more), source="node.yaml")
    return str(caught.value)


@pytest.fixture
def node_yaml(tmp_path: Path) -> Path:
    path = tmp_path / "node.yaml"
    path.write_text(MINIMAL)
    return path


# --- the sample files ---


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_the_committed_sample_is_what_the_schema_says(role: RoleName) -> None:
    committed = (REPOSITORY / "configs" / f"{role}.yaml").read_text(encoding="utf-8")
    assert committed == sample_configuration(role), "run make docs"


def paths_in(document: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in document.items():
        if isinstance(value, dict) and f"{prefix}{key}" not in ENTRIES:
            yield from paths_in(value, f"{prefix}{key}.")
        else:
            yield prefix + key


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_the_sample_holds_every_key_of_the_schema_and_loads(role: RoleName) -> None:
    path = REPOSITORY / "configs" / f"{role}.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert set(paths_in(document)) == set(FIELDS)
    assert load(path, environ={}) == sample_settings(role)


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_every_key_of_the_sample_stands_under_a_comment(role: RoleName) -> None:
    lines = sample_configuration(role).splitlines()
    keys = [(above, line) for above, line in pairwise(lines) if line and "# " not in line]
    assert all(above.lstrip().startswith("# ") or above.endswith(":") for above, _ in keys)


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_a_sample_marks_what_is_required_and_where_it_leaves_the_default(role: RoleName) -> None:
    text = sample_configuration(role).replace("\n  #", "").replace("\n#", "")
    required = [field.name for field in FIELDS.values() if not field.has_default and not field.from_profile]
    marked = [line.partition(":")[0].strip() for line in text.split("Required.\n")[1:]]
    assert marked == required == ["role", "clients", "state", "peer_state"]
    assert ("Default 127.0.0.1:9401." in text) == (role == "backup")


def test_the_two_samples_are_a_pair() -> None:
    check_pair(sample_settings("primary"), sample_settings("backup"))


# --- what wins ---


def test_a_file_with_only_what_must_be_said_takes_every_default(node_yaml: Path) -> None:
    assert load(node_yaml, environ={}) == sample_settings("primary")


def test_a_variable_overrides_the_file_and_an_option_overrides_both(node_yaml: Path) -> None:
    node_yaml.write_text(MINIMAL + "pair: from-file\nlog:\n  level: debug\n  format: json\n")
    settings = load(
        node_yaml,
        environ={"BSTAR_PAIR": "from-variable", "BSTAR_LOG__LEVEL": "error", "HOME": "/"},
        options={"pair": "from-option"},
    )
    assert (settings.pair, settings.log.level, settings.log.format) == ("from-option", "error", "json")


def test_variables_alone_are_enough() -> None:
    environ = {
        "BSTAR_ROLE": "backup",
        "BSTAR_ENDPOINTS__CLIENTS": "tcp://127.0.0.1:5002",
        "BSTAR_ENDPOINTS__STATE": "tcp://127.0.0.1:5004",
        "BSTAR_ENDPOINTS__PEER_STATE": "tcp://127.0.0.1:5003",
        "BSTAR_HTTP__BIND": "127.0.0.1:9402",
    }
    assert load(None, environ=environ) == sample_settings("backup")


def test_the_process_environment_is_read_when_none_is_given(
    node_yaml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BSTAR_PAIR", "from-process")
    assert load(node_yaml).pair == "from-process"


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("pair", "007", "007"),
        ("timing.worker_liveness", "5", 5),
        ("timing.drain_timeout_s", "0.5", 0.5),
        ("timing.request_ttl_s", "", 60.0),
        ("timing.request_ttl_s", "null", 60.0),
        ("http.allow_remote", "true", True),
        ("http.bind", "null", None),
        ("state_dir", "", None),
    ],
)
def test_texts_from_variables_and_options_are_read_as_the_type_of_their_key(
    node_yaml: Path, path: str, text: str, value: object
) -> None:
    assert flatten(load(node_yaml, environ={variable_of(path): text}))[path] == value
    assert flatten(load(node_yaml, environ={}, options={path: text}))[path] == value


def test_an_option_may_hold_a_value_of_the_right_type(node_yaml: Path) -> None:
    settings = load(node_yaml, environ={}, options={"timing.worker_liveness": 7, "http.bind": None})
    assert (settings.timing.worker_liveness, settings.http.bind) == (7, None)


def test_reserved_variables_name_no_key_and_are_left_alone(node_yaml: Path) -> None:
    assert load(node_yaml, environ=dict.fromkeys(RESERVED_VARIABLES, "x")) == sample_settings("primary")
    assert set(RESERVED_VARIABLES).isdisjoint(variable_of(path) for path in FIELDS)


@pytest.mark.parametrize("profile", list(PROFILES))
def test_a_profile_fills_what_the_file_leaves_open(profile: str) -> None:
    settings = from_mapping(minimal(profile=profile, timing__drain_timeout_s=7, timing__request_ttl_s=None))
    expected = PROFILES[settings.profile] | {"drain_timeout_s": 7}
    assert msgspec.structs.asdict(settings.timing) == expected


@pytest.mark.parametrize("profile", list(PROFILES))
def test_every_profile_keeps_every_relation(profile: str) -> None:
    settings = from_mapping(minimal(profile=profile))
    assert [relation.words for relation in RELATIONS if not relation.holds(settings)] == []


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        sample_settings("primary").pair = "other"  # type: ignore[misc]


def test_every_key_says_what_it_means_and_what_is_right() -> None:
    assert all(field.description.endswith((".", ")")) and field.expected for field in FIELDS.values())


# --- what is refused ---


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("rol", "role"),
        ("timing__hearbeat_interval_s", "timing.heartbeat_interval_s"),
        ("heartbeat_interval_s", "timing.heartbeat_interval_s"),
        ("limits__heartbeat_interval_s", "timing.heartbeat_interval_s"),
        ("log__levle", "log.level"),
        ("endpoints__client", "endpoints.clients"),
    ],
)
def test_an_unknown_key_is_refused_with_the_one_that_was_probably_meant(key: str, suggestion: str) -> None:
    path = key.replace("__", ".")
    assert complaint(**{key: 1}) == f"node.yaml: {path}: unknown key; did you mean {suggestion}?"


def test_an_unknown_key_that_resembles_nothing_gets_no_guess() -> None:
    assert complaint(colour="blue") == "node.yaml: colour: unknown key"


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("BSTAR_ENDPOINT__CLIENTS", "BSTAR_ENDPOINTS__CLIENTS"),
        ("BSTAR_CONFIGS", "BSTAR_CONFIG"),
        ("BSTAR_TIMING_HEARTBEAT_INTERVAL_S", "BSTAR_TIMING__HEARTBEAT_INTERVAL_S"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_one_that_was_probably_meant(
    node_yaml: Path, variable: str, suggestion: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"{variable}: names no key; did you mean {suggestion}\\?"):
        load(node_yaml, environ={variable: "1"})


def test_an_unknown_option_is_refused(node_yaml: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"option: log\.leve: unknown key; did you mean log\.level\?"
    ):
        load(node_yaml, environ={}, options={"log.leve": "info"})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("role", "boss", "'boss' is not one of primary, backup"),
        ("role", None, "null is not one of primary, backup"),
        ("pair", "no spaces", "'no spaces' is not a text of letters"),
        ("pair", "newline\n", "'newline\\n' is not a text of letters"),
        ("pair", "x" * 65, "is not a text of letters"),
        ("insecure", "yes", "'yes' is not true or false"),
        ("on_dual_active", "panic", "'panic' is not one of yield, exit"),
        ("on_clients_cut_off", "yield", "'yield' is not one of handover, stay"),
        (
            "timing__heartbeat_interval_s",
            0.005,
            "0.005 is not a number from 0.01 to 30 (null takes the profile's)",
        ),
        ("timing__heartbeat_interval_s", float("nan"), "nan is not a number from 0.01 to 30"),
        ("timing__heartbeat_interval_s", "0.1", "'0.1' is not a number from 0.01 to 30"),
        ("timing__worker_liveness", 1, "1 is not a whole number from 2 to 100"),
        ("timing__worker_liveness", 2.5, "2.5 is not a whole number from 2 to 100"),
        ("timing__drain_timeout_s", True, "true is not a number from 0 to 3600"),
        ("limits__workers_max", 0, "0 is not a whole number from 1 to 1000000"),
        ("limits__workers_max", 10**400, "is not a whole number from 1 to 1000000"),
        ("limits__workers_max", None, "null is not a whole number from 1 to 1000000"),
        ("log__level", [], "a list is not one of debug, info, warning, error"),
        ("state_dir", "", "'' is not a text or null"),
        ("timing", 5, "is a section with keys of its own, not the value 5"),
        ("limits", [1], "is a section with keys of its own, not a list"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(key: str, value: object, said: str) -> None:
    text = complaint(**{key: value})
    assert text.startswith(f"node.yaml: {key.replace('__', '.')}: ")
    assert said in text


def test_what_must_be_said_is_missed() -> None:
    with pytest.raises(ConfigurationError) as caught:
        from_mapping({})
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 problems in the configuration:"
    assert lines[1] == (
        "  configuration: role: is missing; it must be one of primary, backup (BSTAR_ROLE sets it too)"
    )


def test_all_problems_are_reported_at_once_each_with_its_place(node_yaml: Path) -> None:
    node_yaml.write_text(
        MINIMAL
        + "pair: a b\n"
        + "timing:\n"
        + "  failover_timeout_s: 0.15\n"
        + "limits:\n"
        + "  workers_maxi: 1\n"
        + "pair: again\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load(
            node_yaml,
            environ={"BSTAR_LOG__LEVEL": "loud", "BSTAR_PEAR": "x"},
            options={"endpoints.state": "tcp://127.0.0.1:5001"},
        )
    said = str(caught.value).replace(str(node_yaml), "node.yaml")
    assert [line.strip().partition(" 2 × ")[0] for line in said.splitlines()] == [
        "6 problems in the configuration:",
        "node.yaml:11: pair: stands here a second time, after line 6",
        "node.yaml:10: limits.workers_maxi: unknown key; did you mean limits.workers_max?",
        "environment variable BSTAR_PEAR: names no key; did you mean BSTAR_PAIR?",
        "environment variable BSTAR_LOG__LEVEL: log.level: 'loud' is not one of debug, info, warning, error",
        "node.yaml:8: timing.failover_timeout_s: failover_timeout_s must be at least",
        "option: endpoints.state: is the same address as endpoints.clients: each needs its own",
    ]


# Gone after 70 s of silence.
SLOW_PIRATES: dict[str, object] = {
    "fronts__ppp__workers": "tcp://127.0.0.1:5012",
    "fronts__ppp__heartbeat_interval_s": 10.0,
    "fronts__ppp__liveness": 7,
}


@pytest.mark.parametrize(
    "broken",
    [
        {"timing__heartbeat_interval_s": 0.2},
        {"timing__failover_timeout_s": 0.5, "timing__failover_timeout_max_s": 0.4},
        {"timing__worker_heartbeat_interval_s": 0.1, "timing__worker_liveness": 3},
        {"timing__failover_timeout_s": 8, "timing__worker_liveness": 100},
        {"timing__busy_timeout_s": 7},
        {"timing__request_ttl_s": 7},
        {"timing__service_ttl_s": 7.5},
        {"limits__queue_bytes_max": 1 << 20},
        {"journal__keep_bytes": 1 << 20},
        {"store__backoff_s": 600.0},
    ],
    ids=[f"{relation.left} {relation.right}" for relation in RELATIONS],
)
def test_each_relation_between_keys_is_checked_and_gives_its_reason(broken: dict[str, object]) -> None:
    text = complaint(**broken)
    assert "problems" not in text
    assert any(relation.words in text and relation.reason in text for relation in RELATIONS)


def test_workers_of_fronts_are_noticed_in_time_as_well() -> None:
    """A request whose Pirate worker died had ended before its worker was missed."""
    text = complaint(**SLOW_PIRATES)
    assert "request_ttl_s must be more than every worker expiry" in text
    assert "service_ttl_s must be more than every worker expiry" in text
    doors = {
        f"fronts__emq__{door}": f"tcp://127.0.0.1:{port}" for door, port in (("clients", 1), ("workers", 2))
    }
    assert "60 is against 90" in complaint(**doors, fronts__emq__heartbeat_interval_s=30.0)
    silent = {key: value for key, value in SLOW_PIRATES.items() if key != "fronts__ppp__workers"}
    from_mapping(minimal(**silent))


@pytest.mark.parametrize(("profile", "count"), [("auto", 0), ("wan", 1)])
def test_a_pause_that_costs_pirate_workers_and_no_role_is_told(profile: str, count: int) -> None:
    settings = from_mapping(minimal(profile=profile, fronts__ppp__workers="tcp://127.0.0.1:5012"))
    assert [text.partition(" is not")[0] for text in node_warnings(settings)] == [
        "fronts.ppp.heartbeat_interval_s × fronts.ppp.liveness"
    ] * count


def test_two_times_the_heartbeat_is_enough_for_the_failover_timeout() -> None:
    timing = {"timing__heartbeat_interval_s": 0.15, "timing__failover_timeout_s": 0.3}
    assert from_mapping(minimal(**timing)).timing.failover_timeout_s == 0.3


def test_the_timeout_of_the_profile_auto_adapts() -> None:
    timing = from_mapping(minimal(profile="auto")).timing
    assert timing.failover_timeout_max_s > timing.failover_timeout_s


def test_a_failover_timeout_of_ones_own_is_fixed_unless_its_maximum_is_given() -> None:
    """The operator's number is the bound on a failover."""
    own = {"profile": "auto", "timing__failover_timeout_s": 1.5}
    assert from_mapping(minimal(**own)).timing.failover_timeout_max_s == 1.5
    bounded = from_mapping(minimal(**own, timing__failover_timeout_max_s=2.2)).timing
    assert (bounded.failover_timeout_s, bounded.failover_timeout_max_s) == (1.5, 2.2)


# --- who may be reached ---


@pytest.mark.parametrize(
    "address",
    [
        "*:5001",
        "0.0.0.0:5001",
        "[::]:5001",
        "10.1.2.3:5001",
        "eth0:5001",
        "[2001:db8::1]:5001",
        "broker.example:5001",
    ],
)
def test_no_address_but_loopback_is_bound_unless_the_configuration_says_insecure(address: str) -> None:
    text = complaint(endpoints__clients=f"tcp://{address}")
    assert text.startswith("node.yaml: endpoints.clients: others can reach this address")
    assert "insecure: true" in text
    assert "bstar keys new" in text
    assert from_mapping(minimal(endpoints__clients=f"tcp://{address}", insecure=True)).insecure


@pytest.mark.parametrize(
    "endpoint", ["tcp://127.8.8.8:1", "tcp://localhost:1", "tcp://lo:1", "tcp://[::1]:1", "ipc:///run/b"]
)
def test_a_loopback_address_needs_no_consent(endpoint: str) -> None:
    assert from_mapping(minimal(endpoints__clients=endpoint)).endpoints.clients == endpoint


_FRONT = {"fronts__http__bind": "127.0.0.1:8081", "fronts__http__peer_clients": "tcp://127.0.0.1:5002"}
_KEYS = {"security__key": "a.key", "security__principals": "list.yaml"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"fronts__http__peer_clients": None}, "peer_clients: is missing beside fronts.http.bind"),
        ({"fronts__http__bind": "nowhere"}, "is not ADDRESS:PORT"),
        ({"fronts__http__bind": "127.0.0.1:5001"}, "is the same address as endpoints.clients"),
        ({"fronts__http__peer_clients": "tcp://*:5002"}, "cannot be connected to"),
        ({"fronts__http__bind": "10.0.0.1:80"}, "others can reach this address, and without security.key"),
        ({"fronts__http__bind": "10.0.0.1:80", "insecure": True}, "without TLS tokens and bodies"),
        ({"fronts__http__tls_cert": "a.crt"}, "tls_key: is missing beside fronts.http.tls_cert"),
        ({"fronts__http__key": "front.key"}, "is given, and this node has no security.key"),
        (_KEYS, "fronts.http.key: is missing beside security.key"),
    ],
)
def test_what_an_http_front_needs_is_missed(changed: dict[str, object], said: str) -> None:
    assert said in complaint(**{**_FRONT, **changed})


def test_an_http_front_may_be_reached_in_the_clear_if_the_configuration_says_so() -> None:
    own = {**_FRONT, "fronts__http__bind": "10.0.0.1:8081"}
    assert from_mapping(minimal(**own, insecure=True, fronts__http__allow_plain=True)).fronts.http.allow_plain
    assert from_mapping(minimal(**_FRONT, **_KEYS, fronts__http__key="front.key")).fronts.http.key


def test_insecure_brokers_do_not_open_the_status_page_too() -> None:
    text = complaint(insecure=True, http__bind="0.0.0.0:9401")
    assert text.startswith("node.yaml: http.bind: others can reach this address")
    assert (
        from_mapping(minimal(http__bind="0.0.0.0:9401", http__allow_remote=True)).http.bind == "0.0.0.0:9401"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("127.0.0.1:5001", "write tcp://ADDRESS:PORT or ipc://PATH"),
        ("udp://127.0.0.1:5001", "write tcp://ADDRESS:PORT or ipc://PATH"),
        ("inproc://x", "write tcp://ADDRESS:PORT or ipc://PATH"),
        ("tcp://127.0.0.1", "is not ADDRESS:PORT"),
        ("tcp://127.0.0.1:port", "is not ADDRESS:PORT"),
        ("tcp://127.0.0.1:*", "is not ADDRESS:PORT"),
        ("tcp://127.0.0.1:0", "needs a port from 1 to 65535"),
        ("tcp://127.0.0.1:70000", "a port is at most 65535"),
        ("tcp://127.0.0.300:1", "no IPv4 address"),
        ("tcp://0:1", "no IPv4 address"),
        ("tcp://[::g]:1", "is not ADDRESS:PORT"),
        ("tcp://[1::2::3]:1", "no IPv6 address"),
        ("tcp://127.0.0.1:1;127.0.0.1:2", "is not ADDRESS:PORT"),
        ("tcp://127.0.0.1:1\n", "is not ADDRESS:PORT"),
        (f"tcp://{'x' * 64}.example:1", "no name of a host"),
        ("tcp://a..b:1", "no name of a host"),
        ("ipc://", "needs a path"),
        (f"ipc:///{'x' * 200}", "needs a path of at most"),
    ],
)
def test_what_is_no_endpoint_is_refused_with_what_is_wrong(text: str, said: str) -> None:
    assert said in complaint(endpoints__clients=text)


def test_every_address_cannot_be_connected_to() -> None:
    assert "cannot be connected to" in complaint(endpoints__peer_state="tcp://*:5004")


def test_the_http_port_may_be_any_free_one() -> None:
    assert parse_http_bind("127.0.0.1:0").port == 0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "endpoints__state",
            "tcp://127.0.0.1:5001",
            "endpoints.state: is the same address as endpoints.clients",
        ),
        (
            "endpoints__state",
            "tcp://localhost:5001",
            "endpoints.state: is the same address as endpoints.clients",
        ),
        ("http__bind", "127.0.0.1:5003", "http.bind: is the same address as endpoints.state"),
        ("endpoints__peer_state", "tcp://127.0.0.1:5003", "endpoints.peer_state: is this node's own"),
    ],
)
def test_one_address_is_used_once(key: str, value: str, said: str) -> None:
    assert said in complaint(**{key: value})


def test_two_machines_may_be_configured_alike_with_every_address() -> None:
    node = {"insecure": True, "endpoints__clients": "tcp://*:5001", "endpoints__state": "tcp://*:5003"}
    one = from_mapping(minimal(**node, endpoints__peer_state="tcp://two.example:5003"))
    two = from_mapping(minimal(**node, role="backup", endpoints__peer_state="tcp://one.example:5003"))
    check_pair(one, two)


# --- files ---


@pytest.mark.parametrize("content", ["", "---\n", "# nothing\n", "null\n"])
def test_an_empty_file_says_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text(content)
    options = {field: value for field, value in flatten(sample_settings("primary")).items() if "." in field}
    assert load(path, environ={"BSTAR_ROLE": "primary"}, options=options) == sample_settings("primary")


def test_an_empty_section_says_nothing(node_yaml: Path) -> None:
    node_yaml.write_text(MINIMAL + "timing:\nlimits:\n")
    assert load(node_yaml, environ={}) == sample_settings("primary")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("a: [1\n", "node.yaml:2: is no YAML: "),
        ("a: 1\n b: 2\n", "node.yaml:2: is no YAML: "),
        ("- a\n- b\n", "node.yaml: must hold keys with values, not a list"),
        ("just words\n", "node.yaml: must hold keys with values, not the value 'just words'"),
        ("a: !!python/object:os.system x\n", "node.yaml:1: is no YAML: could not determine a constructor"),
        ("a: !!int x\n", "node.yaml: is no YAML: "),
        ("a: !!bool x\n", "node.yaml: is no YAML: "),
        ("? [a, b]\n: 1\n", "node.yaml:1: is no YAML: "),
        ("a: \x00\n", "node.yaml: is no YAML: "),
        ("a: 1\n---\nb: 2\n", "node.yaml:2: is no YAML: "),
        # By the parser at its line, or at the recursion limit, which other tests raise.
        ("[" * 5000, ": is no YAML: "),
        ("# " + "x" * FILE_BYTES_MAX, "node.yaml: is larger than 1048576 bytes"),
        (MINIMAL + "1: x\n", "node.yaml:6: 1: unknown key"),
        (MINIMAL + "pair: 2026-02-31\n", ""),
        (
            MINIMAL + "timing:\n  drain_timeout_s: 1\n  drain_timeout_s: 2\n",
            "node.yaml:8: timing.drain_timeout_s: stands here",
        ),
        (
            MINIMAL + "timing: {}\ntiming: {}\n",
            "node.yaml:7: timing: stands here a second time, after line 6",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_with_its_place(
    node_yaml: Path, content: str, said: str
) -> None:
    node_yaml.write_text(content)
    if not said:
        assert load(node_yaml, environ={}).pair == "2026-02-31"  # a date is a text here
        return
    with pytest.raises(ConfigurationError) as caught:
        load(node_yaml, environ={})
    assert said.replace("node.yaml", str(node_yaml)) in str(caught.value)


def test_a_small_file_that_would_be_endless_to_print_is_refused_at_once(node_yaml: Path) -> None:
    laughs = "".join(f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10) if n else 'ha'}]\n" for n in range(30))
    node_yaml.write_text(MINIMAL + laughs + "pair: *x29\n")
    with pytest.raises(ConfigurationError, match="pair: a list is not a text"):
        load(node_yaml, environ={})


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file"):
        load(tmp_path / "none.yaml", environ={})


def test_a_folder_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load(tmp_path, environ={})


@examples(deadline=None)  # a slow machine is no failure
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.text(alphabet="abrole:{}[]&*!<>-?|'\"#%@, \n01.e_", max_size=80).map(str.encode),
    )
)
def test_garbage_in_a_file_is_a_configuration_error_and_nothing_else(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError):
        load(path, environ={})


_scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


@examples(deadline=None)  # a slow machine is no failure
@given(
    values=st.dictionaries(
        st.sampled_from([*FIELDS, "timing", "nonsense"]),
        _scalars
        | st.lists(_scalars, max_size=2)
        | st.dictionaries(st.text(max_size=5), _scalars, max_size=2),
    ),
    texts=st.dictionaries(st.sampled_from([variable_of(path) for path in FIELDS]), st.text(max_size=20)),
)
@pytest.mark.storm
def test_any_values_load_or_are_a_configuration_error_and_nothing_else(
    values: dict[str, Any], texts: dict[str, str]
) -> None:
    document: dict[str, Any] = minimal()
    for path, value in values.items():
        section, _, name = path.rpartition(".")
        owner = document.setdefault(section, {}) if section else document
        if isinstance(owner, dict):
            owner[name] = value
    with suppress(ConfigurationError):
        assert isinstance(from_mapping(document), Settings)
    with suppress(ConfigurationError):
        assert isinstance(load(None, environ=texts, options=values), Settings)


# --- two of them ---


def both(**backup: Any) -> list[str]:
    sample = yaml.safe_load(sample_configuration("backup"))
    for path, value in backup.items():
        section, _, name = path.rpartition("__")
        (sample[section] if section else sample)[name] = value
    return pair_problems(sample_settings("primary"), from_mapping(sample))


@pytest.mark.parametrize(
    ("backup", "said"),
    [
        ({"role": "primary"}, "role: both are primary"),
        ({"pair": "other"}, "pair: bstar on primary, other on backup; they must be the same"),
        (
            {"services": {"mail.*": {"running_max": 1_000_000}}},
            "services: {} on primary, {'mail.*': {running_max: 1000000}} on backup; they must be the same",
        ),
        ({"on_dual_active": "exit"}, "on_dual_active: yield on primary, exit on backup"),
        ({"on_clients_cut_off": "stay"}, "on_clients_cut_off: handover on primary, stay on backup"),
        (
            {"timing__failover_timeout_s": 0.2, "timing__failover_timeout_max_s": 2.0},
            "timing.failover_timeout_s: 0.3 on primary, 0.2 on backup",
        ),
        ({"timing__worker_liveness": 6}, "timing.worker_liveness: 5 on primary, 6 on backup"),
        (
            {"endpoints__state": "tcp://127.0.0.1:6004"},
            "endpoints.peer_state of primary is tcp://127.0.0.1:5004, but backup",
        ),
        (
            {"endpoints__peer_state": "tcp://127.0.0.1:6003"},
            "endpoints.peer_state of backup is tcp://127.0.0.1:6003, but",
        ),
        (
            {"endpoints__clients": "tcp://127.0.0.1:5001"},
            "endpoints.clients of primary and endpoints.clients of backup are",
        ),
        (
            {"endpoints__clients": "tcp://*:5001", "insecure": True},
            "endpoints.clients of primary and endpoints.clients of",
        ),
        (
            {"http__bind": "127.0.0.1:9401"},
            "http.bind of primary and http.bind of backup are the same address",
        ),
    ],
)
def test_what_keeps_two_nodes_from_being_a_pair_is_said(backup: dict[str, Any], said: str) -> None:
    problems = both(**backup)
    assert len(problems) == 1
    assert problems[0].startswith(said)


def test_the_order_of_the_two_does_not_matter() -> None:
    check_pair(sample_settings("backup"), sample_settings("primary"))


def test_profiles_that_differ_are_named_and_not_the_keys_that_neither_file_has() -> None:
    one = from_mapping(yaml.safe_load(sample_configuration("primary")) | {"profile": "auto"})
    two = yaml.safe_load(sample_configuration("backup")) | {"profile": "lan"}
    two.pop("timing", None)
    [problem] = pair_problems(one, from_mapping(two))
    assert problem.startswith("profile: auto on primary, lan on backup; ")
    own = from_mapping(two | {"timing": {"drain_timeout_s": 7}})
    keys = [problem.partition(":")[0] for problem in pair_problems(one, own)]
    assert keys == ["timing.drain_timeout_s", "profile"]


@pytest.mark.parametrize(("path", "value"), [("journal.sample", 0.5), ("security.orders", True)])
def test_both_nodes_record_the_same_requests_and_take_orders_alike(path: str, value: object) -> None:
    key = {"security__key": "a", "security__principals": "b"} if path.startswith("security") else {}
    one = from_mapping(minimal(**{path.replace(".", "__"): value}, **key))
    two = from_mapping(
        yaml.safe_load(sample_configuration("backup"))
        | ({"security": {"key": "c", "principals": "b"}} if key else {})
    )
    assert [problem.partition(":")[0] for problem in pair_problems(one, two)] == [path]


def test_two_nodes_on_one_machine_cannot_share_a_state_directory() -> None:
    one = from_mapping(minimal(state_dir="/var/lib/bstar"))
    two = from_mapping(yaml.safe_load(sample_configuration("backup")) | {"state_dir": "/var/lib/bstar/"})
    assert [problem.partition(":")[0] for problem in pair_problems(one, two)] == ["state_dir"]


def test_check_pair_tells_every_reason_at_once() -> None:
    other = from_mapping(minimal(pair="other"))
    with pytest.raises(ConfigurationError) as caught:
        check_pair(sample_settings("primary"), other)
    text = str(caught.value)
    assert text.startswith("the two configurations are not a pair:\n  role: both are primary")
    assert "  pair: bstar on the first, other on the second" in text
    assert "only one can bind it" in text


@pytest.mark.parametrize(
    ("to", "bound", "may"),
    [
        ("tcp://10.0.0.1:5003", "tcp://*:5003", True),
        ("tcp://10.0.0.1:5003", "tcp://10.0.0.1:5003", True),
        ("tcp://10.0.0.1:5003", "tcp://10.0.0.2:5003", False),
        ("tcp://10.0.0.1:5003", "tcp://eth0:5003", True),
        ("tcp://node.example:5003", "tcp://10.0.0.2:5003", True),
        ("tcp://node.example:5003", "tcp://10.0.0.2:5004", False),
        ("tcp://127.0.0.1:5003", "tcp://lo:5003", True),
        ("tcp://10.0.0.1:5003", "tcp://localhost:5003", False),
        ("tcp://[2001:DB8::1]:5003", "tcp://[2001:db8:0::1]:5003", True),
        ("ipc:///run/a", "ipc:///run/a", True),
        ("ipc:///run/a", "ipc:///run/b", False),
        ("ipc:///run/a", "tcp://*:5003", False),
    ],
)
def test_whether_one_endpoint_may_lead_to_another(to: str, bound: str, may: bool) -> None:
    assert parse_endpoint(to, bind=False).may_lead_to(parse_endpoint(bound, bind=True)) is may
