"""Read one YAML file as a mapping, or say in a sentence why it is not one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.text_file import read_text_file, reason_of
from mimokit.config.yaml_limits import BoundedComposer, YamlLimitError

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
    """Return the mapping that a YAML 1.2 text holds; the path is what problems call it.

    Raises:
        ConfigError: it is empty, not YAML, too large or not a mapping.
    """
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


def _loaded(text: str, path: Path) -> object:
    reader = YAML(typ="safe", pure=True)
    reader.Composer = BoundedComposer
    try:
        content: object = reader.load(text)
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
    return content


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
