"""Read one YAML file as a mapping, or say in a sentence why it is none."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from mimokit.config.errors import ConfigError, Problem


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML 1.2 file holds.

    Raises:
        ConfigError: the file is missing, unreadable, empty, no YAML (a tab, a key written twice)
            or no mapping.
    """
    return parse_yaml(_read_text(path), path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML 1.2 text holds; the path is what problems call it.

    Raises:
        ConfigError: it is empty, no YAML or no mapping.
    """
    try:
        content = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(path, text, error)]) from None
    except (YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise _refuse(path, "yaml", None, f"it is no YAML ({reason}); correct it") from None
    except RecursionError:
        raise _refuse(path, "yaml", None, "it is nested too deeply; flatten it") from None
    if content is None:
        raise _refuse(path, "content", None, "it is empty; write model, data and runtime")
    if not isinstance(content, dict):
        kind = "a list" if isinstance(content, list) else f"the value {str(content)[:40]!r}"
        raise _refuse(
            path, "content", kind, f"it holds {kind}; write a mapping of model, data and runtime"
        )
    return content


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _refuse(
            path, "path", path, "it does not exist; give the path of a YAML file"
        ) from None
    except IsADirectoryError:
        raise _refuse(
            path, "path", path, "it is a folder; give the path of a YAML file in it"
        ) from None
    except UnicodeDecodeError:
        raise _refuse(path, "content", None, "it is not UTF-8 text; save it as such") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refuse(
            path, "path", path, f"it cannot be read ({reason}); give a file that can"
        ) from None


def _refuse(path: Path, field: str, value: object, what: str) -> ConfigError:
    held = str(value) if isinstance(value, Path) else value
    return ConfigError([Problem("file", field, held, f"File '{path}': {what}.")])


def _syntax_problem(path: Path, text: str, error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    number = mark.line + 1 if mark is not None else 0
    line = text.splitlines()[number - 1] if 0 < number <= len(text.splitlines()) else ""
    begin = f"File '{path}', line {number}:"
    twice = re.search(r'duplicate key "(.*?)"', error.problem or "")
    if twice:
        key = twice.group(1)
        return Problem("file", key, key, f"{begin} the key {key} is written twice; keep one.")
    if "\t" in line:
        return Problem("file", "yaml", line, f"{begin} it has a tab; indent with spaces.")
    reason = " ".join(str(error.problem or error.context or "it is no YAML").split())
    return Problem("file", "yaml", line, f"{begin} {reason}; correct the YAML there.")
