"""What is wrong with a config, as data and as sentences."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict

from mimokit.sentence_error import SentenceError
from mimokit.units import short


class Fix(TypedDict):
    """One change that would right a problem: set `path` (dots between the keys) to `value`."""

    path: str
    value: object


@dataclass(frozen=True)
class Problem:
    """One reason to reject a config.

    Attributes:
        module: the module, or the section ("model", "data", "runtime", "file") it is about.
        sentence: one sentence that names all three and what would be right.
        fix: a change that rights it, or None where no single one does.
    """

    module: str
    field: str
    value: object
    sentence: str
    fix: Fix | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sentence", short(self.sentence))


class ConfigError(SentenceError, ValueError):
    """A config was rejected; `problems` has every reason, `str()` one sentence per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(problem.sentence for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def refuse_if_any(problems: Iterable[Problem]) -> None:
    """Raise `ConfigError` with all problems, if there are any."""
    by_sentence = {problem.sentence: problem for problem in problems}
    if by_sentence:
        raise ConfigError(by_sentence.values())


def unknown_name(kind: str, name: object, known: Iterable[str]) -> ConfigError:
    """Return the error for a name that is not one of the known ones."""
    names = sorted(known)
    nearest = difflib.get_close_matches(str(name).lower(), names, n=3, cutoff=0.4)
    right = (
        f"did you mean {' or '.join(nearest)}?" if nearest else f"choose one of {', '.join(names)}."
    )
    sentence = f"{kind} '{name}': it does not exist; {right}"
    return ConfigError([Problem(kind.lower(), "name", name, sentence)])
