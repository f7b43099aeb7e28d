"""The page that every node serves at ``/``: what a browser makes of it, and what no text of the wire can do.

The page is drawn by a real browser from a real server. The node behind it answers as it is told.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from bstar.net import http_server
from bstar.records.role import RoleChange
from bstar.wire.progress import Progress
from bstar_broker.core.snapshot import PeerChange, RequestProgress
from bstar_broker.operate import page, status
from support.busy_node import BusyNode, busy_state
from support.chromium import chromium
from support.node_states import node_state, service_state, store_state
from support.status_site import FakeNode, Site, running
from support.waiting import LIMIT_S

if TYPE_CHECKING:
    from support.chromium import Browser, Page

BYTES_MAX = 30_000

# Waits until an expression is true, checked after every change of the page.
UNTIL = """new Promise((done, fail) => {{
  const look = () => {{ if ({0}) {{ watch.disconnect(); done(true); }} }};
  const watch = new MutationObserver(look);
  watch.observe(document, {{subtree: true, childList: true, characterData: true, attributes: true}});
  setTimeout(() => fail(new Error("never: " + document.body.innerText)), {1});
  look();
}})"""
WORD = "document.querySelector('#here .state').textContent"
TEXT = "document.body.innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


def wait(shown: Page, condition: str) -> None:
    assert shown.evaluate(UNTIL.format(condition, int(LIMIT_S * 1000)))


def show(browser: Browser, site: Site, *, width: int = 1280, is_dark: bool = False) -> Page:
    shown = browser.open(
        f"{site.server.url}/", width=width, height=844, is_phone=width < 600, is_dark=is_dark
    )
    wait(shown, f"{WORD} !== ''")
    return shown


def first_event(site: Site) -> dict[str, object]:
    with site.connection() as connection:
        connection.sendall(b"GET /events HTTP/1.1\r\n\r\n")
        read = connection.makefile("rb")
        line = next(line for line in read if line.startswith(b"data: "))
        found: dict[str, object] = json.loads(line[6:])
        return found


# --- the document ---------------------------------------------------------------------------------------


def test_the_document_is_small_and_refers_to_nothing_elsewhere() -> None:
    assert len(page.DOCUMENT) < BYTES_MAX
    found = re.findall(rb'(?:src|href)="([^"]*)"', page.DOCUMENT)
    assert all(re.match(rb"(#|/\w*$|data:,$)", each) for each in found)
    assert set(re.findall(rb"https?://[^\"'\s]*", page.DOCUMENT)) == {b"http://www.w3.org/2000/svg"}


def test_the_script_parses_no_markup() -> None:
    assert not re.search(rb"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page.DOCUMENT)


def test_the_policy_lets_nothing_else_run() -> None:
    policy = dict(page.HEADERS)["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


def test_services_in_trouble_are_shown_first_and_the_rest_is_counted() -> None:
    names = [f"s{number:04}" for number in range(page.SERVICES_SHOWN_MAX)]
    state = node_state(
        *(service_state(name, workers=1, accepted=9) for name in names), service_state("zz", queued=1)
    )
    shown = page.view(state)
    assert shown.state.broker.services[0].service == "zz"
    assert (len(shown.state.broker.services), shown.services_hidden) == (page.SERVICES_SHOWN_MAX, 1)


def test_an_event_of_many_services_stays_below_a_quarter_of_a_megabyte() -> None:
    state = busy_state(100_000, [f"service number {number}" for number in range(2_000)])
    assert len(page.event(state)) < 250_000


# --- the stream -----------------------------------------------------------------------------------------


@pytest.mark.loopback
def test_the_stream_begins_with_the_state_of_now() -> None:
    with running(BusyNode()) as site:
        found = first_event(site)
    assert found["services_hidden"] == 0


@pytest.mark.loopback
def test_streams_share_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "EVENT_INTERVAL_S", 1_000.0)
    with running(BusyNode()) as site:
        for _ in range(4):
            first_event(site)
        assert site.node.asked == 1


@pytest.mark.loopback
def test_streams_are_bounded_and_leave_room_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STREAMS_MAX", 2)
    with running(BusyNode()) as site:
        watching = [site.connection() for _ in range(2)]
        for each in watching:
            each.sendall(b"GET /events HTTP/1.1\r\n\r\n")
            assert each.recv(65_536).startswith(b"HTTP/1.1 200 ")
        assert site.probe("/events")[0] == 503
        assert site.probe("/healthz")[0] == 200
        for each in watching:
            each.close()


def watch(site: Site, address: str) -> socket.socket | None:
    """A stream that is read from this address; None if there are too many."""
    place = ("127.0.0.1", int(site.server.url.rpartition(":")[2]))
    reader = socket.create_connection(place, timeout=LIMIT_S, source_address=(address, 0))
    reader.sendall(b"GET /events HTTP/1.1\r\n\r\n")
    if reader.recv(65_536).startswith(b"HTTP/1.1 200 "):
        return reader
    reader.close()
    return None


@pytest.mark.loopback
def test_one_address_cannot_hold_all_streams_and_those_that_share_keep_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "STREAMS_MAX", 3)
    monkeypatch.setattr(status, "EVENT_INTERVAL_S", 0.05)
    with running(BusyNode()) as site:
        greedy = [watch(site, "127.0.0.1") for _ in range(3)]
        first, second, third = greedy
        assert first is not None
        assert watch(site, "127.0.0.1") is None
        other = watch(site, "127.0.0.2")
        assert other is not None
        while first.recv(65_536):
            pass  # the oldest one of the greedy address has ended
        assert watch(site, "127.0.0.2") is None, "1 of 3 is its share while the other has 2"
        assert watch(site, "127.0.0.1") is None
        another = watch(site, "127.0.0.3")
        assert another is not None
        assert watch(site, "127.0.0.4") is None, "each has one"
        for each in (first, second, third, other, another):
            assert each is not None
            each.close()


@pytest.mark.loopback
def test_a_reader_that_does_not_keep_up_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "EVENT_INTERVAL_S", 0.0)
    monkeypatch.setattr(http_server, "STREAM_BEHIND_S_MAX", 0.2)
    node = BusyNode()
    node.names = [f"service {number}" for number in range(200)]
    with running(node) as site, site.connection() as slow:
        slow.sendall(b"GET /events HTTP/1.1\r\n\r\n")
        # It reads nothing until the server has no stream any more, and then finds an end.
        slow.recv(1, socket.MSG_PEEK)
        while any(each.is_stream for each in list(site.server._server._connections.values())):
            assert site.probe("/healthz")[0] == 200
        octets = b"".join(iter(lambda: slow.recv(1 << 20), b""))
    assert octets.startswith(b"HTTP/1.1 200 ")


@pytest.mark.loopback
def test_a_stream_lives_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "STREAM_S_MAX", 0.2)
    with running(BusyNode()) as site:
        assert b"data: " in site.say(b"GET /events HTTP/1.1\r\n\r\n")


# --- in a browser ---------------------------------------------------------------------------------------


@pytest.mark.loopback
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_draws_the_page(browser: Browser, width: int, is_dark: bool) -> None:
    with running(BusyNode()) as site:
        shown = show(browser, site, width=width, is_dark=is_dark)
        wait(shown, f"{TEXT}.includes('/s') && document.querySelectorAll('tbody tr').length === 4")
        assert shown.evaluate(WORD) == "ACTIVE"
        assert shown.evaluate("document.querySelector('#peer .state').textContent") == "PASSIVE"
        assert shown.evaluate("document.title") == "ACTIVE · primary · orders · bstar"
        assert shown.evaluate("document.querySelectorAll('#timeline rect').length") >= 2
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        red = shown.evaluate("parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])")
        assert (red < 60) == is_dark
        assert shown.complaints() == []
        assert all(each.startswith((site.server.url, "data:")) for each in shown.addresses())


@pytest.mark.loopback
def test_the_page_follows_the_node_by_itself(browser: Browser) -> None:
    node = BusyNode()
    with running(node) as site:
        shown = show(browser, site)
        node.changes = {"state": "PASSIVE", "is_active": False, "peer_state": "ACTIVE"}
        wait(shown, f"{WORD} === 'PASSIVE'")
        changes = shown.evaluate("document.getElementById('changes').textContent")
    assert "this node: ACTIVE" in changes
    assert "this node: PASSIVE" in changes


@pytest.mark.loopback
def test_the_timeline_and_the_changes_begin_with_the_node_s_history(browser: Browser) -> None:
    node = BusyNode()
    hour_us = 3_600_000_000
    now_us = time.time_ns() // 1_000
    node.history = [
        RoleChange(
            now_us - 2 * hour_us, "primary", "BACKUP", "PASSIVE", "PEER_ACTIVE", "The peer serves.", 0
        ),
        RoleChange(now_us - hour_us, "primary", "PASSIVE", "ACTIVE", "VOTE", "The peer is gone.", 7, 420_000),
    ]
    with running(node) as site:
        shown = show(browser, site)
        changes = shown.evaluate("document.getElementById('changes').textContent")
        assert "PASSIVE → ACTIVE, epoch 7: The peer is gone. Requests waited for at most 420 ms." in changes
        wait(shown, "document.getElementById('span').textContent.includes('2 h')")


@pytest.mark.loopback
def test_the_page_works_while_the_peer_is_down(browser: Browser) -> None:
    with running(BusyNode(is_peer_fresh=False, is_peer_gone=True, peer_age_s=75.0)) as site:
        shown = show(browser, site)
        assert shown.evaluate("document.querySelector('#peer .state').textContent") == "GONE"
        assert "it has not heard its peer" in shown.evaluate("document.getElementById('notes').textContent")
        assert "75 s ago" in shown.evaluate(TEXT)


@pytest.mark.loopback
def test_the_page_says_that_the_loop_hangs(browser: Browser) -> None:
    node = BusyNode()
    with running(node) as site:
        shown = show(browser, site)
        node.state = TimeoutError()
        wait(shown, "document.getElementById('stale').textContent.includes('did not answer within')")
        node.state = node_state()
        wait(shown, "document.getElementById('stale').hidden")


@pytest.mark.loopback
def test_the_page_says_that_the_node_is_gone(browser: Browser) -> None:
    with running(BusyNode()) as site:
        shown = show(browser, site)
    wait(shown, "document.getElementById('stale').textContent.includes('does not answer')")


@pytest.mark.loopback
def test_texts_of_the_wire_stay_texts(browser: Browser) -> None:
    wicked = "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>"
    node = BusyNode(pause_why=wicked, paused_for_s=60.0, pair=wicked)
    node.names = [wicked, "__proto__", "constructor"]
    with running(node) as site:
        shown = show(browser, site)
        wait(shown, "document.querySelectorAll('tbody tr').length === 3")
        names = shown.evaluate(
            "[...document.querySelectorAll('tbody tr td:first-child span')].map(td => td.textContent)"
        )
        assert sorted(names) == sorted(node.names)
        assert shown.evaluate("typeof window.broken") == "undefined"
        assert shown.evaluate("document.querySelectorAll('img, main script').length") == 0
        assert shown.complaints() == []


@pytest.mark.loopback
def test_the_table_is_sorted_and_filtered_from_the_keyboard(browser: Browser) -> None:
    with running(BusyNode()) as site:
        shown = show(browser, site)
        names = "[...document.querySelectorAll('tbody tr td:first-child span')].map(td => td.textContent)"
        wait(shown, "document.querySelectorAll('tbody tr').length === 4")
        assert shown.evaluate(names) == ["invoice", "mail", "price", "search"]
        shown.press("Tab", "Tab", "Tab", "Tab")
        assert shown.evaluate("document.activeElement.textContent") == "service"
        shown.press("Enter")
        assert shown.evaluate(names) == ["search", "price", "mail", "invoice"]
        shown.press("/", "m", "a", "i")
        assert shown.evaluate(names) == ["mail"]
        shown.press("Escape")
        assert len(shown.evaluate(names)) == 4


@pytest.mark.loopback
def test_a_phone_sorts_by_one_choice_and_shows_no_ten_headings(browser: Browser) -> None:
    hidden = "getComputedStyle(document.querySelector('{}')).display === 'none'"
    with running(BusyNode()) as site:
        at_a_desk = show(browser, site)
        assert at_a_desk.evaluate(hidden.format("#sorting"))
        assert not at_a_desk.evaluate(hidden.format("thead"))
        shown = show(browser, site, width=390)
        wait(shown, "document.querySelectorAll('tbody tr').length === 4")
        assert shown.evaluate(hidden.format("thead"))
        assert not shown.evaluate(hidden.format("#sorting"))
        choices = shown.evaluate("[...document.getElementById('sort').options].map(each => each.text)")
        assert choices[:3] == ["service", "queued", "in flight"]
        assert len(choices) == 11
        shown.evaluate(
            "{const sort = document.getElementById('sort'); sort.selectedIndex = 3;"
            "sort.dispatchEvent(new Event('change'))}"
        )
        names = "[...document.querySelectorAll('tbody tr td:first-child span')].map(td => td.textContent)"
        assert shown.evaluate(names) == ["price", "invoice", "mail", "search"], "most workers first"
        assert shown.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.loopback
@pytest.mark.parametrize("width", [1280, 390])
def test_services_have_their_versions_and_descriptions(browser: Browser, width: int) -> None:
    with running(BusyNode()) as site:
        shown = show(browser, site, width=width)
        wait(shown, "document.querySelectorAll('tbody tr').length === 4")
        cells = (
            "Object.fromEntries([...document.querySelectorAll('tbody tr')].map(row => ["
            "row.querySelector('span').textContent, [row.querySelector('small').textContent, "
            "row.lastChild.textContent, row.lastChild.className]]))"
        )
        assert shown.evaluate(cells) == {
            "invoice": ["", "-", ""],
            "mail": ["Sends a mail once its order is paid.", "2026.11", ""],
            "price": ["Price of an item, in cents.", "1.4 ×4, 1.5 ×2", "starting"],
            "search": ["", "-", ""],
        }
        assert shown.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.loopback
def test_what_bounds_a_service_is_a_line_of_the_page(browser: Browser) -> None:
    node = FakeNode()
    bound = "running_max 10: 10 running, 37 wait"
    node.state = node_state(service_state("mail", bound=bound), service_state("price"))
    with running(node) as site:
        shown = show(browser, site)
        wait(shown, "document.querySelector('#notes li') !== null")
        lines = "[...document.querySelectorAll('#notes li')].map(line => line.textContent)"
        assert shown.evaluate(lines) == [f"Service mail: {bound}."]
        node.state = node_state(service_state("mail"), service_state("price"))
        wait(shown, "document.querySelector('#notes li') === null")


@pytest.mark.loopback
def test_the_progress_of_durable_requests_has_a_card_that_follows(browser: Browser) -> None:
    node = FakeNode()
    half = RequestProgress("11", "film", Progress(102, 204, "drawing <b>"))
    node.state = node_state(store=store_state(progress=[half, RequestProgress("12", "mail", Progress(7))]))
    with running(node) as site:
        shown = show(browser, site)
        card = (
            "[...document.querySelectorAll('#parts article')].find(each => /^Progress/.test(each.innerText))"
        )
        wait(shown, f"{card} !== undefined")
        lines = f"[...{card}.querySelectorAll('dt, dd')].map(each => each.textContent)"
        assert shown.evaluate(lines) == ["film 11", "102 of 204: drawing <b>", "mail 12", "7"]
        node.state = node_state(store=store_state(progress=[RequestProgress("12", "mail", Progress(8))]))
        wait(shown, f"{lines}.join() === 'mail 12,8'")
        node.state = node_state(store=store_state())
        wait(shown, f"{card} === undefined")


@pytest.mark.loopback
def test_the_peer_s_bar_begins_with_what_the_node_has_heard_and_is_pale_before(browser: Browser) -> None:
    node = BusyNode()
    now_us, hour_us = time.time_ns() // 1_000, 3_600_000_000
    node.history = [RoleChange(now_us - 4 * hour_us, "primary", "PRIMARY", "ACTIVE", "VOTE", "Begin.", 1)]
    node.peer_history = [PeerChange(now_us - 2 * hour_us, "PASSIVE"), PeerChange(now_us - hour_us, "SILENT")]
    bars = (
        "[...document.querySelectorAll('#timeline rect')].filter(each => each.getAttribute('y') > 30)"
        ".map(each => [each.getAttribute('class'), Math.round(each.getAttribute('width') / 10)])"
    )
    with running(node) as site:
        shown = show(browser, site)
        wait(shown, "document.querySelectorAll('#timeline rect').length >= 4")
        assert shown.evaluate(bars)[:3] == [["before", 50], ["passive", 25], ["unknown", 25]]
        assert "pale: not known" in shown.evaluate("document.getElementById('span').textContent")
        assert "peer: SILENT" in shown.evaluate("document.getElementById('changes').textContent")


@pytest.mark.loopback
def test_the_focus_stays_where_it_is_while_the_page_follows(browser: Browser) -> None:
    node = FakeNode()
    node.state = node_state(service_state("echo", queued=1))
    with running(node) as site:
        shown = show(browser, site)
        wait(shown, "document.querySelectorAll('tbody tr').length === 1")
        shown.evaluate("document.querySelector('th:nth-child(3) button').focus()")
        node.state = node_state(service_state("echo", queued=77), service_state("more"))
        wait(shown, "document.querySelectorAll('tbody tr').length === 2")
        assert shown.evaluate("document.activeElement.textContent") == "in flight"
