"""Words of a Megatron-LM command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from mimokit.interop.imported import refused

WHERE = "Megatron-LM arguments"

Options = Mapping[str, Sequence[str]]
"""Flag without dashes in front -> its values."""


def options_of(arguments: str | Sequence[str]) -> Options:
    """Return the options of a command line; flags are written with - or _.

    Raises:
        ConfigError: its quotes do not close.
    """
    words = _words(arguments) if isinstance(arguments, str) else arguments
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            last = found[name.replace("_", "-")] = [value] if equals else []
        else:
            last.append(word)
    return found


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        sentence = f"they are no command line ({str(error).lower()}); give the words of one."
        raise refused(WHERE, "arguments", text[:60], sentence) from None


def number(given: Options, flag: str, missing: int | None = None) -> int:
    """Return the value of a flag, or `missing` where it is not given.

    Raises:
        ConfigError: it is no whole number of at least 1.
    """
    if flag not in given and missing is not None:
        return missing
    text = word(given, flag)
    if not text.isdecimal() or int(text) < 1:
        sentence = f"--{flag} is '{text}'; it must be a whole number of at least 1."
        raise refused(WHERE, flag, text, sentence)
    return int(text)


def word(given: Options, flag: str, missing: str = "") -> str:
    """Return the first value of a flag."""
    return (*given.get(flag, ()), missing)[0]
