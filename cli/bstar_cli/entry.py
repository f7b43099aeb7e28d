"""Where the ``bstar`` command begins, before anything that takes time to import.

Ctrl-C ends the command without a traceback from its first moment on. While the imports last it ends at once.
After that each command decides what Ctrl-C means; at the very end the signal ends the process again. The
import of this module begins the program: nothing else imports it.

What only the command and the nodes need is the extra ``server``; applications do without it.
"""

import gc
import os
import signal
import sys

# Imports make 48,000 objects that stay. To look through them for cycles again and again takes a tenth of a
# node's start. ``main`` collects again before a command begins.
gc.disable()

# ``exits.INTERRUPTED`` and ``exits.USAGE``: their import takes as long as the rest.
_INTERRUPTED = 130
_USAGE = 2

_EXTRA_MODULES = frozenset({"prometheus_client", "rich", "typer", "yaml"})

# Not if the parent ignores the signal, as nohup and a shell's & do.
_is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _is_ours:
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(_INTERRUPTED))

# These stay, and a service manager's SIGHUP ends none of them: a node reads its configuration again, and what
# they start inherits this. If they stand in a terminal, it says that this has gone, and ends them.
_STAYING = frozenset({"serve", "arbiter", "http", "run", "worker"})
if _STAYING.intersection(sys.argv[1:2]) and not os.isatty(0):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def main() -> int:
    """Run the command of the process's arguments; its exit code."""
    try:
        from bstar_cli.main import main as run  # noqa: PLC0415 - this is what takes the time

        if _is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_MODULES:
            raise
        sys.stderr.write(
            f"bstar: {error.name} is not installed: pip install '.[server]' in a clone of bstar\n"
        )
        return _USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    finally:
        if _is_ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
