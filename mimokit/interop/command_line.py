"""The content of another tool's file, and how its options and numbers are read."""

import shlex
from collections.abc import Mapping, Sequence

from mimokit.config.errors import ConfigError, Problem
from mimokit.units import shown

LARGEST = 2**40
"""The largest number that is accepted; no size and no number of tokens or samples reaches it."""

MEGATRON_LM = "Megatron-LM arguments"
"""The name of a command line in messages."""

Options = Mapping[str, Sequence[str]]
"""Flag without dashes in front -> its values."""


def wrong_file(where: str, field: str, value: object, sentence: str) -> ConfigError:
    """Return the refusal of something in a file."""
    return ConfigError([Problem(where, field, value, f"{where}: {sentence}")])


def options_of(arguments: str | Sequence[str]) -> Options:
    """Return the options of a command line; flags are written with - or _.

    Megatron-LM has several hundred flags and launchers add more, so every flag takes the words up
    to the next flag.

    Raises:
        ConfigError: its quotes do not close.
    """
    words = _words(arguments) if isinstance(arguments, str) else arguments
    options: dict[str, list[str]] = {}
    last: list[str] = []
    for argument in words:
        if argument.startswith("--"):
            name, equals, value = argument[2:].partition("=")
            last = options[name.replace("_", "-")] = [value] if equals else []
        else:
            last.append(argument)
    return options


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        sentence = f"they are not a command line ({str(error).lower()}); give the words of one."
        raise wrong_file(MEGATRON_LM, "arguments", text[:60], sentence) from None


def number(options: Options, flag: str, missing: int | None = None) -> int:
    """Return the value of a flag, from 1 to `LARGEST`, or `missing` if it is not given."""
    if flag not in options and missing is not None:
        return missing
    text = word(options, flag)
    value = whole_number(text)
    if value is None or value < 1:
        large = value is None and text.isdecimal()
        right = f"at most {LARGEST:,}" if large else "a whole number of at least 1"
        raise wrong_file(MEGATRON_LM, flag, text, f"--{flag} is {shown(text)}; it must be {right}.")
    return value


def real(options: Options, flag: str, missing: float) -> float:
    """Return the value of a flag, a number above 0, or `missing` if it is not given."""
    text = word(options, flag, str(missing))
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= LARGEST:
        right = "a number above 0"
        raise wrong_file(MEGATRON_LM, flag, text, f"--{flag} is {shown(text)}; it must be {right}.")
    return value


def word(options: Options, flag: str, missing: str = "") -> str:
    """Return the first value of a flag."""
    return (*options.get(flag, ()), missing)[0]


def whole_number(text: str) -> int | None:
    """Return a text as a whole number, or None if it is not one or is above `LARGEST`."""
    if not text.isdecimal() or len(text.lstrip("0")) > len(str(LARGEST)):
        return None
    value = int(text)
    return value if value <= LARGEST else None
