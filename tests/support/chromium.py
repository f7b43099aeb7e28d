"""A headless Chromium for tests of pages, spoken to in the DevTools protocol over a pair of pipes.

No driver, no port, no download: the browser reads commands from its descriptor 3 and writes to 4, JSON
messages that end with a zero byte. A machine without Chromium skips the test and says so; with ``CI=true`` it
fails. The browser has a profile of its own in the given folder, and reaches what a test opens in it.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
LIMIT_S = 60.0


def find_chromium() -> str:
    """The browser's path; skips the test, or fails it in CI, if there is none."""
    for name in NAMES:
        path = shutil.which(name)
        if path is not None:
            return path
    reason = "no Chromium on the PATH; Debian: apt-get install --no-install-recommends chromium"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


class Browser:
    """One process; ``open`` makes pages in it."""

    def __init__(self, process: subprocess.Popen[bytes], commands: int, answers: int) -> None:
        self.process = process
        self._commands = commands
        self._answers = os.fdopen(answers, "rb", buffering=0)
        self._buffer = b""
        self._number = 0
        self._target = ""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; what is told meanwhile is kept in ``events``."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            told = self._read()
            if told.get("id") == self._number:
                assert "error" not in told, f"{method}: {told['error']}"
                result: dict[str, Any] = told["result"]
                return result
            self.events.append(told)

    def wait_for(self, method: str) -> None:
        """Wait until an event has come."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._answers], [], [], LIMIT_S)
            assert ready, f"the browser said nothing for {LIMIT_S} s"
            chunk = self._answers.read(1 << 16)
            assert chunk, "the browser ended"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(
        self,
        place: Path | str,
        *,
        width: int,
        height: int,
        is_phone: bool,
        is_dark: bool = False,
        scale: int | None = None,
        zone: str = "UTC",
    ) -> "Page":
        """Load a page in a window of that many CSS pixels, and wait for it. The page before is closed.

        ``place`` is a file or an address. ``scale``: pixels per CSS pixel, two on a phone. ``zone``: the
        reader's zone of time.
        """
        if self._target:
            # A page in the background draws nothing.
            self.call("Target.closeTarget", targetId=self._target)
        self._target = target = str(self.call("Target.createTarget", url="about:blank")["targetId"])
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            session,
            width=width,
            height=height,
            deviceScaleFactor=scale or (2 if is_phone else 1),
            mobile=is_phone,
        )
        self.call("Emulation.setTouchEmulationEnabled", session, enabled=is_phone)
        self.call("Emulation.setTimezoneOverride", session, timezoneId=zone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", session, features=[scheme])
        self.call("Page.navigate", session, url=place if isinstance(place, str) else place.as_uri())
        self.wait_for("Page.loadEventFired")
        return Page(self, session)


class Page:
    """A loaded page."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = self._browser.call(
            "Runtime.evaluate", self._session, expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, as a keyboard does."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for key in keys:
            text = {"text": "\r"} if key == "Enter" else {} if key in codes else {"text": key}
            code = codes.get(key, ord(key[0].upper()))
            for kind in ("keyDown", "keyUp"):
                self._browser.call(
                    "Input.dispatchKeyEvent",
                    self._session,
                    type=kind,
                    key=key,
                    windowsVirtualKeyCode=code,
                    **(text if kind == "keyDown" else {}),
                )

    def screenshot(self, path: Path) -> None:
        """The whole page as a PNG or a WebP, as the file's name says."""
        kind = path.suffix.removeprefix(".")
        shot = self._browser.call(
            "Page.captureScreenshot", self._session, format=kind, quality=80, captureBeyondViewport=True
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """Exceptions, console errors and warnings, and what the browser logged as such."""
        found = []
        for event in self._browser.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(str(params["entry"]))
        return found

    def addresses(self) -> list[str]:
        """Everything that was asked of any network or file."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser that is ended with the block. ``profile``: a folder of its own."""
    path = find_chromium()
    commands_read, commands = os.pipe()
    answers, answers_write = os.pipe()
    arguments = [
        path, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
        "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--disable-extensions", "--disable-dev-shm-usage", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    # The shell only puts the pipes where the browser expects them.
    process = subprocess.Popen(
        ["bash", "-c", f'exec "$@" 3<&{commands_read} 4>&{answers_write}', "bash", *arguments],
        pass_fds=(commands_read, answers_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(commands_read)
    os.close(answers_write)
    browser = Browser(process, commands, answers)
    try:
        yield browser
    finally:
        # Its helpers are of its process group, which nobody else is in.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        os.close(commands)
        browser._answers.close()
