"""What a file with a layout says."""

from dataclasses import dataclass

from mimokit.architecture import LanguageModel
from mimokit.prediction import Layout, Workload


@dataclass(frozen=True)
class Imported:
    """The content of a file.

    Attributes:
        workload: what one step computes, or None if the file does not state it.
        model: the language model, or None if the file does not describe it.
    """

    layout: Layout
    workload: Workload | None = None
    model: LanguageModel | None = None
    notes: tuple[str, ...] = ()
