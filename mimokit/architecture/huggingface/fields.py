"""Read fields of a Hugging Face config and collect what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mimokit.config.base import LARGEST_SIZE
from mimokit.config.errors import ConfigError, Problem
from mimokit.units import listed, shown


class Fields:
    """One section of a config; `check` raises everything that was wrong with what was read."""

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str = "Hugging Face config",
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._values = {**(defaults or {}), **{k: v for k, v in values.items() if v is not None}}
        self._where = where
        self._problems: list[Problem] = []

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def size(self, *names: str, least: int = 1) -> int:
        """Return the first of the fields that is set: a whole number from `least` on."""
        for name in names:
            if name in self._values:
                value = self._values[name]
                whole = value if isinstance(value, int) and not isinstance(value, bool) else None
                if whole is not None and least <= whole <= LARGEST_SIZE:
                    return whole
                large = whole is not None and whole > LARGEST_SIZE
                right = (
                    f"at most {LARGEST_SIZE:,}" if large else f"a whole number of at least {least}"
                )
                self.refuse(name, f"it must be {right}")
                return max(1, least)
        self.refuse(names[0], "give it a value")
        return max(1, least)

    def size_or(self, name: str, default: int, least: int = 0) -> int:
        """Return a whole number, or the default if the field is missing."""
        return self.size(name, least=least) if name in self._values else default

    def number_or(self, name: str, default: float) -> float:
        """Return a number above 0, or the default if the field is missing."""
        value = self._values.get(name, default)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf:
            return float(value)
        self.refuse(name, "it must be a number above 0")
        return default

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self._values.get(name, default)
        if isinstance(value, bool):
            return value
        self.refuse(name, "write true or false")
        return default

    def text(self, name: str, default: str) -> str:
        """Return a text field."""
        value = self._values.get(name, default)
        return value if isinstance(value, str) else shown(value)

    def integers(self, name: str) -> list[int]:
        """Return a list of whole numbers of at least 0; none if it is missing."""
        value = self._values.get(name, [])
        numbers = range(LARGEST_SIZE + 1)
        if isinstance(value, list) and all(
            type(number) is int and number in numbers for number in value
        ):
            return value
        self.refuse(name, "write a list of whole numbers of at least 0")
        return []

    def words_of(self, name: str, known: Sequence[str]) -> list[str]:
        """Return a list of texts, each one of those that are known; none if it is missing."""
        value = self._values.get(name, [])
        if isinstance(value, list) and all(word in known for word in value):
            return value
        self.refuse(name, f"write a list of {listed(known)}")
        return []

    def one_integer(self, name: str, default: int) -> int:
        """Return a whole number of any sign, also as a list of one; a longer list is refused."""
        value = self._values.get(name, default)
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        if type(value) is int and abs(value) <= LARGEST_SIZE:
            return value
        several = isinstance(value, list) and len(value) > 1
        self.refuse(name, "only one can run; write one number" if several else "write one number")
        return default

    def numbered_of(self, name: str, layers: int) -> tuple[int, ...]:
        """Return the layers that a list of layer numbers, from 0, names: from 1.

        The list has to be there, and its numbers have to ascend.
        """
        named = self.integers(name)
        if name not in self:
            self.refuse(name, "give it a value")
        elif named != sorted(set(named)):
            self.refuse(name, "write ascending numbers, each once")
        elif named and named[-1] >= layers:
            self.refuse(name, f"there are only {layers} layers, counted from 0")
            return ()
        return tuple(number + 1 for number in sorted(set(named)))

    def section(self, name: str, defaults: Mapping[str, Any] | None = None) -> Fields:
        """Return a section inside this one; `check` of this one checks it too.

        A missing section is one problem; its fields add none.
        """
        values = self._values.get(name)
        present = isinstance(values, Mapping)
        if not present:
            self.refuse(name, "give the section of that name")
        inner = Fields(
            values if isinstance(values, Mapping) else {}, f"{self._where}, {name}", defaults
        )
        inner._problems = self._problems if present else []
        return inner

    def refuse(self, name: str, right: str) -> None:
        """Collect the problem that a field is wrong or missing, once if it is read often."""
        value = self._values.get(name)
        wrong = f"is {shown(value)}" if name in self._values else "is missing"
        sentence = f"{self._where}: {name} {wrong}; {right}."
        problem = Problem("config.json", name, value, sentence)
        if problem not in self._problems:
            self._problems.append(problem)

    def must_divide(self, divisor: int, value: int, divisor_name: str, name: str) -> None:
        """Collect a problem if `divisor` does not divide `value`."""
        if value % divisor:
            self.refuse(name, f"it contradicts {divisor_name} {divisor}, which does not divide it")

    def check(self) -> None:
        """Raise `ConfigError` with all collected problems."""
        if self._problems:
            raise ConfigError(self._problems)
