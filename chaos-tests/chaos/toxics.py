"""Typed toxics: what a proxied link can be made to suffer, as ``with`` blocks.

    with links["primary-backup"].latency(ms=500, jitter_ms=200, stream=BOTH): …

The one place that speaks to toxiproxy-python, which is untyped, has one address for all servers, no
time-outs, obeys HTTP_PROXY and takes a server's error 500 for success. Here its calls get a time-out and no
proxy, errors are raised, and after each change the server is asked whether it is as it was told to be. A
control call that hangs (removing a toxic can, under traffic) ends with the proxy being made anew, which
breaks its connections; that is noted.

``Stream`` is relative to the TCP client: ``DOWN`` is what the server sends to it. On a state link the client
is the SUB, so DOWN carries the peer's state.

- ``reset_peer`` resets connections that are opened while it lasts; those that were there are closed.
- ``timeout`` swallows everything while connecting still succeeds; its end closes the connections.
- ``stall`` (bandwidth 0) holds everything back; its end lets it out in one burst, as old as it is by then.
- ``down`` refuses connections and breaks those that were there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

import requests
from toxiproxy import Proxy, Toxiproxy
from toxiproxy.api import APIConsumer, validate_response

from bstar_testing.hosts import LoopbackHost
from chaos.history import Writer
from chaos.toxiproxy import Server

T = TypeVar("T")

_CONTROL_S_MAX = 5.0


class Stream(Enum):
    """A direction, relative to the TCP client."""

    UP = ("upstream",)
    """What the client sends."""
    DOWN = ("downstream",)
    """What the server sends."""
    BOTH = ("upstream", "downstream")


UP, DOWN, BOTH = Stream.UP, Stream.DOWN, Stream.BOTH


class ToxicError(Exception):
    """The Toxiproxy server did not do what it was told."""


def _install_consumer(port: int) -> None:
    """Give the library's calls a time-out, no proxy of the environment, and errors that are errors."""
    session = requests.Session()
    session.trust_env = False

    def call(method: str) -> Callable[..., Any]:
        def perform(url: str, **options: Any) -> Any:
            answer = session.request(
                method, f"http://127.0.0.1:{port}{url}", timeout=_CONTROL_S_MAX, **options
            )
            if answer.status_code >= 500:
                raise ToxicError(f"{method} {url}: the server answers {answer.status_code}: {answer.text}")
            return validate_response(answer)

        return perform

    for method in ("get", "post", "delete"):
        setattr(APIConsumer, method, staticmethod(call(method.upper())))


class Links:
    """The proxied links of one run, by name. ``route`` makes a link the first time it is asked for."""

    def __init__(self, server: Server, journal: Writer) -> None:
        self._server = server
        self._journal = journal
        self._ports = LoopbackHost()
        self._links: dict[str, Link] = {}
        _install_consumer(server.port)

    def route(self, name: str, address: str) -> str:
        """Where to connect to instead of ``address`` (a ``chaos.cluster.Route``)."""
        if name not in self._links:
            self._links[name] = Link(name, f"127.0.0.1:{self._ports.ports(1)[0]}", address, self)
            self._links[name].make()
        link = self._links[name]
        assert link.upstream == address, f"{name} leads to {link.upstream}, not to {address}"
        return link.listen

    def __getitem__(self, name: str) -> Link:
        return self._links[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._links)

    def matching(self, belongs: Callable[[str], bool]) -> list[Link]:
        """Links by a condition on their names."""
        return [link for name, link in self._links.items() if belongs(name)]

    def note(self, what: str, target: str, text: str = "") -> None:
        """Write down what was done to a link."""
        self._journal.note(what, target, text)

    def start_over(self) -> None:
        """The server hangs: a new one, and every link made anew."""
        self.note("restart", "toxiproxy", "it did not answer a control call in time")
        self._server.restart()
        for link in self._links.values():
            link.make()

    def close(self) -> None:
        """Give the ports back; the server's end is the proxies' end."""
        self._ports.close()


class Link:
    """One proxied link."""

    def __init__(self, name: str, listen: str, upstream: str, links: Links) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self._links = links
        self._proxy: Any = None  # the library has no types
        self._toxics: dict[str, dict[str, int]] = {}

    def make(self) -> None:
        """Make the proxy, without toxics."""
        self._toxics.clear()
        self._proxy = Toxiproxy().create(name=self.name, upstream=self.upstream, listen=self.listen)
        self._expect(lambda: self._look().listen == self.listen, f"listens on {self.listen}")

    def _look(self) -> Any:
        proxy: Proxy | None = Toxiproxy().get_proxy(self.name)
        if proxy is None:
            raise ToxicError(f"{self.name}: the server knows no such proxy")
        return proxy

    def _expect(self, is_so: Callable[[], bool], what: str) -> None:
        if not is_so():
            raise ToxicError(f"{self.name}: the server was told otherwise, but it is not so: {what}")

    # --- toxics -------------------------------------------------------------------------------------------

    @contextmanager
    def latency(self, *, ms: int, jitter_ms: int = 0, stream: Stream = BOTH) -> Iterator[None]:
        """Everything takes so much longer (order is kept)."""
        with self._toxic("latency", stream, latency=ms, jitter=jitter_ms):
            yield

    @contextmanager
    def bandwidth(self, *, kb_per_s: int, stream: Stream = BOTH) -> Iterator[None]:
        """So many kilobytes a second."""
        with self._toxic("bandwidth", stream, rate=kb_per_s):
            yield

    @contextmanager
    def stall(self, *, stream: Stream = BOTH) -> Iterator[None]:
        """Nothing passes; at the end all of it does at once."""
        with self._toxic("bandwidth", stream, rate=0):
            yield

    @contextmanager
    def timeout(self, *, ms: int = 0, stream: Stream = BOTH) -> Iterator[None]:
        """Everything is swallowed, and after ``ms`` (0: never) the connection is closed."""
        with self._toxic("timeout", stream, timeout=ms):
            yield

    @contextmanager
    def reset_peer(self, *, ms: int = 0, stream: Stream = BOTH) -> Iterator[None]:
        """Connections are reset ``ms`` after the first octets."""
        with self._toxic("reset_peer", stream, timeout=ms):
            yield

    @contextmanager
    def slicer(
        self, *, average_size: int = 8, variation: int = 4, delay_us: int = 100, stream: Stream = BOTH
    ) -> Iterator[None]:
        """What is sent arrives in small pieces with pauses between them."""
        with self._toxic(
            "slicer", stream, average_size=average_size, size_variation=variation, delay=delay_us
        ):
            yield

    @contextmanager
    def limit_data(self, *, octets: int, stream: Stream = BOTH) -> Iterator[None]:
        """Each connection is closed after so many octets."""
        with self._toxic("limit_data", stream, bytes=octets):
            yield

    @contextmanager
    def slow_close(self, *, ms: int, stream: Stream = BOTH) -> Iterator[None]:
        """A close arrives so much later."""
        with self._toxic("slow_close", stream, delay=ms):
            yield

    @contextmanager
    def down(self) -> Iterator[None]:
        """Connections are broken, and new ones refused."""
        self._links.note("down", self.name)
        self._control(lambda: self._proxy.disable())  # noqa: PLW0108 - the proxy may be made anew
        self._expect(lambda: not self._look().enabled, "disabled")
        try:
            yield
        finally:
            self._links.note("up", self.name)
            self._control(lambda: self._proxy.enable())  # noqa: PLW0108
            self._expect(lambda: bool(self._look().enabled), "enabled")

    @contextmanager
    def _toxic(self, kind: str, stream: Stream, **attributes: int) -> Iterator[None]:
        names = [f"{kind}_{direction}" for direction in stream.value]
        for name in names:
            assert name not in self._toxics, f"{self.name} suffers from {name} already"
        text = " ".join([*stream.value, *(f"{key}={value}" for key, value in attributes.items())])
        self._links.note(f"+{kind}", self.name, text)
        added: list[str] = []
        try:
            for name, direction in zip(names, stream.value, strict=True):
                self._add(name, kind, direction, attributes)
                added.append(name)
            yield
        finally:
            self._links.note(f"-{kind}", self.name, text)
            for name in added:
                self._remove(name)

    def _add(self, name: str, kind: str, direction: str, attributes: dict[str, int]) -> None:
        self._toxics[name] = attributes
        self._control(
            lambda: self._proxy.add_toxic(type=kind, stream=direction, name=name, attributes=attributes)
        )
        toxic = self._proxy.get_toxic(name)
        self._expect(
            lambda: toxic is not None and toxic.stream == direction and toxic.attributes == attributes,
            f"{name} {attributes}",
        )

    def _remove(self, name: str) -> None:
        if self._toxics.pop(name, None) is None:
            return  # the proxy was made anew meanwhile, without it
        self._control(lambda: self._proxy.destroy_toxic(name))
        self._expect(lambda: self._proxy.get_toxic(name) is None, f"no {name}")

    def _control(self, call: Callable[[], object]) -> None:
        """A call that hangs is given up, and the proxy made anew (or the server, if that hangs as well)."""
        try:
            call()
        except requests.Timeout:
            self._links.note("recreate", self.name, "a control call hung")
            try:
                self._proxy.destroy()
                self.make()
            except requests.RequestException:
                self._links.start_over()
