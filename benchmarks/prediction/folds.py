"""Rows that a fit leaves out together: whole families, GPU generations and software releases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.prediction.rows import Measured

Kind = Literal["family", "generation", "release"]

FAMILIES: Mapping[str, frozenset[str]] = {
    "llama 70b": frozenset({"LLAMA3_70B"}),
    "llama 8b": frozenset({"LLAMA3_8B"}),
    "llama 70b, 12 layers": frozenset({"llama3-70b-L12"}),
    "qwen3 30b": frozenset({"Qwen3_30B_a3B"}),
    "qwen3 235b": frozenset({"Qwen3_235B_a22B"}),
    "gpt-oss": frozenset({"GPT OSS 120B"}),
    "deepseek v3": frozenset({"DeepSeekV3"}),
    "deepseek v2": frozenset({"deepseekv2-L4"}),
    "gpt of 1024": frozenset(f"GPT {layers} x 1024" for layers in (12, 16, 20, 24)),
    "gpt of 2048": frozenset(f"GPT {layers} x 2048" for layers in (12, 16, 20, 24)),
    "gpt of 3072 and 12288": frozenset({"GPT 30 x 3072", "GPT 96 x 12288"}),
    "gpt of 6144 and 8192": frozenset({"GPT 40 x 6144", "GPT 48 x 8192"}),
}
"""Models that constants are fitted to; all others are test models as they are."""

FITTED_MODELS = frozenset().union(*FAMILIES.values())

GENERATIONS: Mapping[str, frozenset[str]] = {
    "hopper": frozenset({"h100", "h200"}),
    "blackwell": frozenset({"b200", "gb200"}),
    "blackwell ultra": frozenset({"b300", "gb300"}),
}
"""Name -> hardware. A generation that is left out is predicted from the middle of its bounds."""


@dataclass(frozen=True)
class Fold:
    """Rows that have something in common.

    Attributes:
        name: of the family, the generation or the release.
    """

    kind: Kind
    name: str

    @property
    def key(self) -> str:
        """Its name among the fitted constants."""
        return self.name if self.kind == "family" else f"{self.kind} {self.name}"

    def holds(self, row: Measured) -> bool:
        """Return whether a row is left out."""
        return fold_name(self.kind, row) == self.name


def fold_name(kind: Kind, row: Measured) -> str | None:
    """Return which rows a row is left out with; None: no constant was fitted to it."""
    if kind == "release":
        return row.release or None
    groups, value = (FAMILIES, row.name) if kind == "family" else (GENERATIONS, row.hardware)
    return next((name for name, members in groups.items() if value in members), None)


def folds(rows: Sequence[Measured]) -> list[Fold]:
    """Return every fold that rows are of; A100s are left out by families alone."""
    later = [row for row in rows if not row.hardware.startswith("a100")]
    kinds: tuple[tuple[Kind, Sequence[Measured]], ...] = (
        ("family", rows), ("generation", later), ("release", later),
    )  # fmt: skip
    return [
        Fold(kind, name)
        for kind, members in kinds
        for name in sorted({fold_name(kind, row) for row in members} - {None})  # type: ignore[type-var]
        if name is not None
    ]
