"""How Sphinx makes a site of docs/ (``make docs``). A link to a page or a heading that is not there fails it.

The site stands alone: the README is its first page, a link to a file of the repository that is no page
becomes that file's path, and the page of the configuration ends with the sample.
"""

import re
from pathlib import Path
from posixpath import dirname, normpath
from typing import Any

project = "bstar"
html_title = "bstar"
html_theme = "furo"
extensions = ["myst_parser"]
root_doc = "index"
# The anchors that a forge makes of headings, which the pages' links name.
myst_heading_anchors = 6
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
# A forge draws diagrams of Mermaid. Here they stay text: what draws them comes from other hosts.
suppress_warnings = ["misc.highlighting_failure"]

_ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def setup(app: Any) -> None:
    """Rewrite the pages' links before they are parsed."""
    app.connect("source-read", _prepare)


def _prepare(_: Any, page: str, source: list[str]) -> None:
    folder = dirname(page)
    text = source[0]
    if page == root_doc:
        contents = text[text.index("```{toctree}") :]
        text = _LINK.sub(_from_root, (_ROOT / "README.md").read_text()) + contents
    if page == "configuration":
        text += f"\n## All keys\n\n```yaml\n{(_ROOT / 'configs/primary.yaml').read_text()}```\n"
    source[0] = _LINK.sub(lambda link: _kept(link, folder), text)


def _from_root(link: re.Match[str]) -> str:
    """A link of the README as one of docs/index.md."""
    target = link[3]
    if ":" not in target and not target.startswith("#"):
        target = target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"
    return f"{link[1]}[{link[2]}]({target})"


def _kept(link: re.Match[str], folder: str) -> str:
    target = link[3].partition("#")[0]
    path = normpath(f"docs/{folder}/{target}")
    if ":" in target or path.startswith("docs/"):
        return link[0]
    return f"`{path}`" if path.endswith(link[2].strip("`")) else f"{link[2]} (`{path}`)"
