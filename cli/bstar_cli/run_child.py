"""A process of ``bstar run``: it imports the App, serves it, and reports its figures to the parent."""

import os
import sys
import threading
import time
from contextlib import suppress

import msgspec

from bstar.errors import BstarError, ConfigurationError
from bstar_cli import exits
from bstar_cli.importing import imported
from bstar_cli.logs import configure_logs
from bstar_client.app import App

_REPORT_S = 0.5


def main(arguments: list[str]) -> int:
    """``MODULE:APP LEVEL FORMAT SLOT DESCRIPTOR``. The exit code: 2 if the app cannot be served, 1 if it
    ended by an error.
    """
    name, level, form, slot, descriptor = arguments
    configure_logs(level, form, process=slot)
    try:
        return _serve(_find(name), int(descriptor))
    except ConfigurationError as error:
        sys.stderr.write(f"bstar run: {error}\n")
        return exits.USAGE
    except BstarError as error:
        sys.stderr.write(f"bstar run: {type(error).__name__}: {error}\n")
        return exits.FAILED


def _find(name: str) -> App:
    app = imported(name, "app")
    if isinstance(app, App):
        return app
    raise ConfigurationError(f"{name!r} is {type(app).__name__}, not a bstar_client.App")


def _serve(app: App, descriptor: int) -> int:
    over = threading.Event()
    # Not for the processes that handlers begin.
    os.set_inheritable(descriptor, False)
    threading.Thread(target=_end_with_parent, args=(app, descriptor), daemon=True).start()
    reporter = threading.Thread(target=_report, args=(app, descriptor, over))
    reporter.start()
    try:
        app.run()
    finally:
        over.set()
        reporter.join()
    return exits.OK


def _end_with_parent(app: App, descriptor: int) -> None:
    with suppress(OSError):
        while os.read(descriptor, 1024):
            pass
    app.stop()
    from bstar_cli.run import LEAVES_S_MAX  # noqa: PLC0415 - a child needs the command's code no sooner

    # Nobody is left who would kill it.
    time.sleep(LEAVES_S_MAX)
    os._exit(exits.FAILED)


def _report(app: App, descriptor: int, over: threading.Event) -> None:
    """Until it is over, or the reader has gone."""
    try:
        while not over.wait(_REPORT_S):
            os.write(descriptor, msgspec.json.encode(app.figures()) + b"\n")
    except OSError:
        return  # the parent has gone, which ends the app


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
