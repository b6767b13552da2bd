"""What is wrong with a config, as data and as sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypedDict


class Fix(TypedDict):
    """One change that would right a problem: set `path` (dots between the keys) to `value`."""

    path: str
    value: object


@dataclass(frozen=True)
class Problem:
    """One refusal.

    Attributes:
        module: the module, or the section ("model", "data", "runtime", "file") it is about.
        field: the field that holds the refused value.
        value: the refused value itself.
        sentence: one sentence that names all three and what would be right.
        fix: a change that rights it, or None where no single one does.
    """

    module: str
    field: str
    value: object
    sentence: str
    fix: Fix | None = None


class ConfigError(ValueError):
    """A config was refused; `problems` holds every reason, `str()` one sentence per line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("\n".join(problem.sentence for problem in self.problems))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


def refuse_if_any(problems: Iterable[Problem]) -> None:
    """Raise `ConfigError` with all problems, or return where there is none."""
    by_sentence = {problem.sentence: problem for problem in problems}
    if by_sentence:
        raise ConfigError(by_sentence.values())
