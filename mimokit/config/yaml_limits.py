"""What a YAML text may hold, checked before any of it is built.

Aliases and merge keys let a short text represent more values than a machine can hold. The nodes of
a text are composed once each, and what they expand to is counted, not built.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

MOST_VALUES = 8000
"""Keys and values of a text, with aliases counted wherever they are used. A model of 128 modules
has 4,000."""

MOST_LEVELS = 40
"""Mappings and lists within each other. A config has 6."""

_YAML = "tag:yaml.org,2002:"
_TAGS = {*SafeConstructor.yaml_constructors, f"{_YAML}merge", f"{_YAML}value"}
"""Tags of plain values; a text gives them by writing a number, a word, a list or a mapping."""


class YamlLimitError(Exception):
    """A text is not built.

    Attributes:
        line: counted from 1.
        what: the rest of the sentence.
        key: the key that is written twice, None for other reasons.
    """

    def __init__(self, mark: Any, what: str, key: str | None = None) -> None:
        super().__init__(what)
        self.line: int = mark.line + 1
        self.what = what
        self.key = key


class BoundedComposer(Composer):
    """Composes the nodes of a text, and gives up early on one that no config can be.

    Raises:
        YamlLimitError: it has too many values or levels, an alias of what it is part of, a key
            twice, or a tag.
    """

    def __init__(self, loader: Any = None) -> None:
        super().__init__(loader=loader)
        self.warn_double_anchors = False
        self._values = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Return the next node, with all below it."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise _too_many(self.parser.peek_event().start_mark)
        if self.depth >= MOST_LEVELS:
            raise _too_deep(self.parser.peek_event().start_mark)
        return super().compose_node(parent, index)

    def get_single_node(self) -> Any:
        """Return the root of a text, after a look at what it expands to."""
        root = super().get_single_node()
        if root is not None:
            _Expansion().measure(root)
        return root


class _Expansion:
    """The values and levels of nodes, with every alias replaced by its value."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[int, int]] = {}
        self._open: set[int] = set()

    def measure(self, node: Any) -> tuple[int, int]:
        """Return (values, levels) of a node."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._open:
            what = "an alias names what it is part of; write the value out"
            raise YamlLimitError(node.start_mark, what)
        self._open.add(id(node))
        _check_tag(node)
        below = [self.measure(child) for child in _children(node)]
        self._open.remove(id(node))
        values = 1 + sum(size[0] for size in below)
        levels = 1 + max((size[1] for size in below), default=0)
        if values > MOST_VALUES:
            raise _too_many(node.start_mark)
        if levels > MOST_LEVELS:
            raise _too_deep(node.start_mark)
        self._sizes[id(node)] = (values, levels)
        return values, levels


def _children(node: Any) -> list[Any]:
    if isinstance(node, SequenceNode):
        return list(node.value)
    if not isinstance(node, MappingNode):
        return []
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if not isinstance(key, ScalarNode):
            continue
        written = (str(key.tag), key.value)
        if written in seen:
            what = f"the key {key.value[:60]} is written twice; keep one"
            raise YamlLimitError(key.start_mark, what, key.value)
        seen.add(written)
    return [part for pair in node.value for part in pair]


def _check_tag(node: Any) -> None:
    tag = str(node.tag)
    if tag not in _TAGS:
        shown = tag.replace(_YAML, "!!")[:60]
        what = f"it has the tag {shown}, and no tag is read; write the value without one"
        raise YamlLimitError(node.start_mark, what)


def _too_many(mark: Any) -> YamlLimitError:
    what = f"it has more than {MOST_VALUES:,} values, aliases counted where they are used"
    return YamlLimitError(mark, f"{what}; shorten it")


def _too_deep(mark: Any) -> YamlLimitError:
    return YamlLimitError(mark, f"it is nested more than {MOST_LEVELS} levels deep; flatten it")
