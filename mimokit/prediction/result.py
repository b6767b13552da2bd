"""The result of a prediction: time, memory and price of one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from mimokit.config.errors import ConfigError, Problem
from mimokit.config.runtime import PRECISION_OF_RUNS, RUNNABLE_PRECISIONS, TF32
from mimokit.prediction.layout import Layout
from mimokit.prediction.memory import MemoryLine
from mimokit.prediction.step_time.breakdown import PART_WORDS
from mimokit.prediction.verdict import Verdict, chance_text, verdict_lines
from mimokit.tables import Report, Section
from mimokit.units import GIB, counted, seconds_text

if TYPE_CHECKING:
    from mimokit.prediction.explanation import StepExplanation
    from mimokit.prediction.module_costs import EncoderCost, LanguageCost
    from mimokit.prediction.task import PredictionTask

_NOT_WRITTEN = ("lines", "memory_table", "work")


@dataclass(frozen=True)
class Prediction(Report):
    """Predicted step time, memory and price of a layout.

    A notebook and `rich.print` show it as tables; `print` shows its totals.

    Attributes:
        low: lower end of the band that holds four of five measured steps.
        parts: `seconds` by part: encoder, bridge, bubble, update, and the language model's matrix,
            attention, memory, tensor, context, expert, host and pipeline parts.
        memory_table: makes `lines`, which most layouts of a search are never asked for.
        peak_memory: bytes of the rank with the most memory.
        utilisation: of the peak of the precision (MFU).
        precision: of matrix products.
        exchange_seconds: how long replicas wait for exchanges per step, on average. It comes on
            top of `seconds` and of what follows from it, all of which are those of one replica.
            None: no strategy between replicas, or it does not describe the links.
        fit_chance: probability that it fits, of the uncertainty of predicted memory.
        supposed: sentences about what widens the band.
        work: what the explanation is made of.
    """

    layout: Layout
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float]
    memory_table: Callable[[], Mapping[str, tuple[MemoryLine, ...]]] = field(
        repr=False, compare=False
    )
    peak_memory: float
    capacity: float
    tokens_per_second: float
    tflops_per_gpu: float
    utilisation: float
    dollars_per_million_tokens: float | None
    precision: str
    exchange_seconds: float | None = None
    fit_chance: float = 1.0
    supposed: tuple[str, ...] = ()
    work: tuple[PredictionTask, LanguageCost, list[EncoderCost]] | None = field(
        default=None, repr=False, compare=False
    )

    @cached_property
    def lines(self) -> Mapping[str, tuple[MemoryLine, ...]]:
        """Module -> memory of its rank with the most memory, each number with its formula."""
        return self.memory_table()

    def explain(self) -> StepExplanation:
        """Return what every module does in a step: operations, bytes, launches, rates, seconds.

        Raises:
            ConfigError: the prediction was not made by `predict`.
        """
        if self.work is None:
            sentence = "Prediction: it does not know what it was made of; make it with predict."
            raise ConfigError([Problem("prediction", "work", None, sentence)])
        from mimokit.prediction.explanation import explain_task  # few are asked to explain

        return explain_task(*self.work)

    @property
    def fits(self) -> bool:
        """Whether the rank with the most memory fits on a GPU."""
        return self.peak_memory <= self.capacity

    def __str__(self) -> str:
        peak, room = self.peak_memory / GIB, self.capacity / GIB
        text = (
            f"{self.layout}\n{self.conditions()}\n"
            f"step {self.seconds:.3g} s ({self.low:.3g} to {self.high:.3g}), "
            f"{self.tokens_per_second:,.0f} tokens/s, {self.tflops_per_gpu:.0f} TFLOP/s per GPU, "
            f"{self.utilisation:.0%} of its peak\n"
            f"memory {peak:.1f} of {room:.1f} GiB: {'fits' if self.fits else 'does not fit'}"
            f"{chance_text(self.fit_chance)}"
        )
        if self.exchange_seconds is not None:
            text += f"\n{self.exchange_text()}"
        if self.dollars_per_million_tokens is not None:
            text += f"\n{self.dollars_per_million_tokens:.3g} dollars per million tokens"
        return "\n".join((text, *self.supposed))

    @property
    def verdict(self) -> Verdict:
        """What layouts are compared by."""
        totals = {name: sum(parts.values()) for name, parts in self.memory.items()}
        if self.layout.mode == "heterogeneous":
            fullest = max(totals, key=totals.__getitem__)
            totals = {fullest: totals[fullest]}
        price = self.dollars_per_million_tokens
        return Verdict(
            seconds=self.seconds,
            low=self.low,
            high=self.high,
            tokens_per_gpu=self.tokens_per_second / self.layout.gpus,
            memory=totals,
            capacity=self.capacity,
            idle=self.parts.get("bubble", 0.0) / self.seconds,
            dollars=None if price is None else 1000 * price,
            fit_chance=self.fit_chance,
            supposed=self.supposed,
        )

    def sections(self) -> tuple[Section, ...]:
        """Return what layouts are compared by, the parts of the step and the memory."""
        lines = verdict_lines(self.verdict)
        totals = [[line.value for line in lines], [line.note for line in lines]]
        labels = [line.label for line in lines]
        heading = f"{counted(self.layout.gpus, 'GPU')}, {self.layout}"
        parts = sorted(self.parts.items(), key=lambda part: -part[1])
        step = [
            (PART_WORDS.get(name, name), f"{seconds:.4f}", f"{seconds / self.seconds:.1%}")
            for name, seconds in parts
            if seconds > 0
        ]
        memory = [(row["module"], row["part"], f"{row['gib']:.2f}") for row in self.memory_rows()]
        fullest = "Memory of the fullest rank of each module"
        return (
            Section(heading, labels, totals, str(self).splitlines()[1:]),
            Section("Step time", ("part", "seconds", "share"), step),
            Section(fullest, ("module", "part", "GiB"), memory),
        )

    def conditions(self) -> str:
        """Return what is predicted besides the sizes, and how `mimokit run` differs from it."""
        modules = self.layout.modules.values()
        having = {
            "a distributed optimizer": any(
                np.any(np.logical_and(sizes.distributed_optimizer, sizes.replicas > 1))
                for sizes in modules
            ),
            "FSDP": any(np.any(sizes.fully_sharded) for sizes in modules),
        }
        sliced = any(np.any(sizes.sequence_shards > 1) for sizes in modules)
        lacking = [name for name, present in having.items() if present]
        parts = [*(["sequence parallelism"] if sliced else []), *lacking]
        text = f"predicted in {self.precision}"
        if parts:
            text += f" with {' and '.join(parts)}"
        if self.precision == PRECISION_OF_RUNS and not lacking:
            return text
        if self.precision not in (TF32, *RUNNABLE_PRECISIONS):
            return f"{text}; `mimokit run` does not train in {self.precision}"
        without = f" without {' and '.join(lacking)}" if lacking else ""
        return f"{text}; a config that does not say so trains in {PRECISION_OF_RUNS}{without}"

    def exchange_text(self) -> str:
        """Return a sentence about the exchanges between replicas; empty if there are none."""
        if self.exchange_seconds is None:
            return ""
        share = self.seconds / (self.seconds + self.exchange_seconds)
        return (
            f"replicas wait {seconds_text(self.exchange_seconds)} per step on average for "
            f"exchanges and compute {share:.1%} of the time"
        )

    @property
    def memory(self) -> Mapping[str, Mapping[str, float]]:
        """Module -> part -> bytes on its rank with the most memory."""
        return {
            name: {line.part: line.bytes for line in lines} for name, lines in self.lines.items()
        }

    def memory_rows(self) -> list[dict[str, Any]]:
        """Return the memory as rows of a table: module, part, GiB, formula, numbers, source."""
        return [
            {
                "module": name,
                "part": line.part,
                "gib": line.bytes / GIB,
                "formula": line.formula,
                "numbers": line.numbers,
                "source": line.source,
            }
            for name, lines in self.lines.items()
            for line in lines
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            **{name: value for name, value in vars(self).items() if name not in _NOT_WRITTEN},
            "supposed": list(self.supposed),
            "parts": dict(self.parts),
            "memory": {name: dict(parts) for name, parts in self.memory.items()},
            "memory_rows": self.memory_rows(),
            "layout": self.layout.to_json(),
            "fits": self.fits,
        }
