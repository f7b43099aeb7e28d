"""The clients for threads, made of those for asyncio: the same methods and words, without ``await``.

Who writes a method writes it once, in ``bstar_client.aio``, with a docstring for both. A paragraph of it that
begins with ``asyncio:`` is left out here. What really differs, how a call waits, is in ``aio.caller`` and
``sync.caller``.
"""

import re
import subprocess
import sys
from pathlib import Path

_FOLDER = Path("client/bstar_client")
FACES = ("brokerless", "client", "durable")
_RULES = (
    (r"\n\n +asyncio: .*?(?=\n\n|\n *\"\"\")", ""),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(?=(?:[A-Z][a-z]+)*(?:Client|Caller|Calls|Freelance)\b)", ""),
    (r"\bAsyncHAClient\b", "HAClient"),
    (r"AsyncGenerator\[(.*), None\]", r"Generator[\1, None, None]"),
    (r"Iterable\[([^\[\]]+)\] \| AsyncIterable\[\1\]", r"Iterable[\1]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\baclosing\b", "closing"),
    (r"\bsubmit_frames_any\b", "submit_frames"),
    (r"\bbstar_client\.aio\b", "bstar_client.sync"),
    (r"\bfor asyncio\b", "for threads"),
)


def generate(name: str, folder: Path = Path()) -> str:
    """The source of ``bstar_client.sync``'s module of this name."""
    source = _FOLDER / "aio" / f"{name}.py"
    text = (folder / source).read_text(encoding="utf-8")
    for pattern, replacement in _RULES:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL if "asyncio: " in pattern else 0)
    target = str(_FOLDER / "sync" / f"{name}.py")
    options = ("--fix", "--unsafe-fixes", "--exit-zero", "--select", "F401,I,UP028")
    text = _ruff(_ruff(text, target, "check", *options), target, "format")
    return f"# Made of {source} by `make docs`: edit that file.\n{text}"


def _ruff(text: str, target: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("ruff")), *arguments]
    done = subprocess.run(  # noqa: S603 - the formatter, on our own source
        [*command, "--quiet", "--stdin-filename", target, "-"],
        input=text,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
