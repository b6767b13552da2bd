"""A layout that was read from somebody else's file."""

from __future__ import annotations

from dataclasses import dataclass

from mimokit.architecture import LanguageModel
from mimokit.config.errors import ConfigError, Problem
from mimokit.prediction import Layout, Workload


@dataclass(frozen=True)
class Imported:
    """What a file says.

    Attributes:
        layout: the layout.
        workload: what one step computes, or None where the file does not say.
        model: the language model, or None where the file does not describe it.
        notes: a sentence for everything that was assumed or left aside.
    """

    layout: Layout
    workload: Workload | None = None
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()


def refused(where: str, field: str, value: object, sentence: str) -> ConfigError:
    """Return the refusal of something in a file."""
    return ConfigError([Problem(where, field, value, f"{where}: {sentence}")])
