"""PyYAML's safe loader with bounds, so that a small file cannot cost minutes.

Three constructs grow out of all proportion: merge keys (``<<``) of merges of merges, values in great number
(80 µs each), and numbers of very many digits, which YAML 1.1 also writes to the base 60. Each has a bound
here and an error with its line. Aliases that are not merged cost nothing: they are the same object.
"""

import re
from typing import Any

import yaml
from yaml.constructor import ConstructorError

# Keys and values of a document, and the keys that its merges add up to. A fleet of a hundred pairs with a
# thousand pins has some 2,500; this many take a second.
NODES_MAX = 10_000
# The longest number that means anything here has twenty digits.
_NUMBER_CHARACTERS_MAX = 100

_UNWRITABLE = re.compile("[\\0\ud800-\udfff]")

_MERGE = "tag:yaml.org,2002:merge"


class BoundError(ConstructorError):
    """The document is YAML, but too much of it."""


class Loader(yaml.SafeLoader):
    """The safe loader, except for its bounds, and that an unquoted date is a text like any other word."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and the kind are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: bytes) -> None:
        super().__init__(stream)
        self._nodes = 0
        self._merged = 0
        self._sizes: dict[int, int] = {}

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:  # Any: PyYAML's own type
        """A text that can be written into a file's name or a message."""
        value = super().construct_scalar(node)
        if _UNWRITABLE.search(value):
            text = "a text has a zero character or half of a surrogate pair"
            raise ConstructorError(None, None, text, node.start_mark)
        return value

    def compose_node(self, parent: Any, index: Any) -> Any:  # Any: PyYAML's own types, which have no names
        """Count what the document is made of."""
        self._nodes += 1
        if self._nodes > NODES_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise BoundError(None, None, f"it has more than {NODES_MAX} keys and values", mark)
        return super().compose_node(parent, index)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Count what merge keys add, before they add it."""
        if any(key.tag == _MERGE for key, _ in node.value):
            self._merged += self._size(node)
            if self._merged > NODES_MAX:
                text = f"its merge keys (<<) make more than {NODES_MAX} keys"
                raise BoundError(None, None, text, node.start_mark)
        super().flatten_mapping(node)

    def _size(self, node: yaml.Node) -> int:
        """How many keys it has when all that it merges has been merged."""
        if not isinstance(node, yaml.MappingNode):
            return 0
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        self._sizes[id(node)] = 0  # what merges itself adds nothing
        size = 0
        for key, value in node.value:
            if key.tag != _MERGE:
                size += 1
            else:
                size += sum(map(self._size, value.value if isinstance(value, yaml.SequenceNode) else [value]))
        self._sizes[id(node)] = size
        return size

    def number(self, node: yaml.ScalarNode) -> object:
        """A whole number or a fraction, of a length that can be one."""
        if len(node.value) > _NUMBER_CHARACTERS_MAX:
            text = f"no number here has more than {_NUMBER_CHARACTERS_MAX} characters"
            raise BoundError(None, None, text, node.start_mark)
        is_whole = node.tag == "tag:yaml.org,2002:int"
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


for _tag in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
    Loader.add_constructor(_tag, Loader.number)
