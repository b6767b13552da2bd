"""Read one YAML file as a mapping, or say in a sentence why it is not one.

Aliases and merge keys let a short text represent more values than a machine can hold. The nodes of
a text are composed once each, and what they expand to is counted, not built.
"""

import copy
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import read_text_file, reason_of

MOST_VALUES = 8000
"""Keys and values of a text, with aliases counted wherever they are used. A model of 128 modules
has 4,000."""

MOST_LEVELS = 40
"""Mappings and lists within each other. A config has 6."""

_YAML = "tag:yaml.org,2002:"
_TAGS = {*SafeConstructor.yaml_constructors, f"{_YAML}merge", f"{_YAML}value"}
"""Tags of plain values; a text gives them by writing a number, a word, a list or a mapping."""


class YamlLimitError(Exception):
    """A text is not built."""

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
        _check_characters(node)
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


def _check_characters(node: Any) -> None:
    """Refuse half a character, which an escape can stand for and no file can hold."""
    if isinstance(node, ScalarNode) and any("\ud800" <= sign <= "\udfff" for sign in node.value):
        what = "it has half a character (an escape from \\ud800 to \\udfff); write a whole one"
        raise YamlLimitError(node.start_mark, what)


def _too_many(mark: Any) -> YamlLimitError:
    what = f"it has more than {MOST_VALUES:,} values, aliases counted where they are used"
    return YamlLimitError(mark, f"{what}; shorten it")


def _too_deep(mark: Any) -> YamlLimitError:
    return YamlLimitError(mark, f"it is nested more than {MOST_LEVELS} levels deep; flatten it")


MOST_CHARACTERS = 2**18
"""Of a text; the largest shipped file has 3,000. Reading YAML takes about 2 s per 2**20."""
MOST_IN_A_LINE = 2**16
"""Of characters; some tokens take a time that grows with the square of their length."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML 1.2 file holds.

    Raises:
        ConfigError: the file is missing, unreadable, empty, not YAML (a tab, a key written twice),
            too large or not a mapping.
    """
    return parse_yaml(_read_text(path), path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML 1.2 text holds; the path is what problems call it."""
    _check_length(text, path)
    content = _loaded(text, path)
    if content is None:
        raise _refuse(path, "content", None, "it is empty; write model, data and runtime")
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else f"the value {str(content)[:40]!r}"
        raise _refuse(
            path, "content", kind, f"it holds {kind}; write a mapping of model, data and runtime"
        )
    return content


def _check_length(text: str, path: Path) -> None:
    if len(text) > MOST_CHARACTERS:
        what = f"it has more than {MOST_CHARACTERS:,} characters; shorten it"
        raise _refuse(path, "content", None, what)
    if len(text) > MOST_IN_A_LINE and max(map(len, text.splitlines())) > MOST_IN_A_LINE:
        what = f"a line has more than {MOST_IN_A_LINE:,} characters; break it"
        raise _refuse(path, "content", None, what)


@lru_cache(maxsize=16)
def _values_of(text: str) -> object:
    """Keep what a text holds: scanning takes most of a plan, and the same file is read often."""
    reader = YAML(typ="safe", pure=True)
    reader.Composer = BoundedComposer
    content: object = reader.load(text)
    return content


def _loaded(text: str, path: Path) -> object:
    try:
        return copy.deepcopy(_values_of(text))
    except YamlLimitError as error:
        sentence = f"File '{path}', line {error.line}: {error.what}."
        problem = Problem("file", error.key or "yaml", error.key, sentence)
        raise ConfigError([problem]) from None
    except MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(path, text, error)]) from None
    except (YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise _refuse(path, "yaml", None, f"it is not YAML ({reason}); correct it") from None
    except RecursionError:
        raise _refuse(path, "yaml", None, "it is nested too deeply; flatten it") from None


def _read_text(path: Path) -> str:
    try:
        return read_text_file(path, MOST_CHARACTERS)
    except FileNotFoundError:
        what = "it does not exist; give the path of a YAML file"
    except IsADirectoryError:
        what = "it is a folder; give the path of a YAML file in it"
    except UnicodeDecodeError:
        raise _refuse(path, "content", None, "it is not UTF-8 text; save it as such") from None
    except OSError as error:
        what = f"it cannot be read ({reason_of(error)}); give a file that can"
    raise _refuse(path, "path", path, what)


def _refuse(path: Path, field: str, value: object, what: str) -> ConfigError:
    shown = str(value) if isinstance(value, Path) else value
    return ConfigError([Problem("file", field, shown, f"File '{path}': {what}.")])


def _syntax_problem(path: Path, text: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark is not None else 0
    line = text.splitlines()[number - 1] if 0 < number <= len(text.splitlines()) else ""
    begin = f"File '{path}', line {number}:"
    if "\t" in line:
        return Problem("file", "yaml", line, f"{begin} it has a tab; indent with spaces.")
    reason = " ".join(str(error.problem or error.context or "it is not YAML").split())
    shown = reason if len(reason) <= 200 else f"{reason[:197]}..."
    return Problem("file", "yaml", line, f"{begin} {shown}; correct the YAML there.")


def yaml_text(content: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, its keys in their order."""
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    writer.width = 100
    text = io.StringIO()
    writer.dump(dict(content), text)
    return text.getvalue()
