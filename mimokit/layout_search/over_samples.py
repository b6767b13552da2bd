"""The best layout for the samples that there are: finalists of a search, over drawn batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from mimokit.config.runtime import BALANCED
from mimokit.extra_rooms import import_extra
from mimokit.layout_search.constraints import score
from mimokit.prediction import Layout, Prediction
from mimokit.prediction.band import is_tie
from mimokit.prediction.layout import micro_batches
from mimokit.prediction.sample_loads import loads_of
from mimokit.tables import Report, Section
from mimokit.units import counted, gib_text, seconds_text
from mimokit.workload.mix import TAIL, SampleMix, mix_of

if TYPE_CHECKING:
    from mimokit.layout_search.task import SearchTask
    from mimokit.prediction.over_samples import Policy, PolicyPrediction, SamplesPrediction

ROWS = 10
LEAST_KEPT = 0.8
"""Least share of samples below the tail; where fewer are, those at its beginning are kept."""


@dataclass(frozen=True)
class LayoutOverSamples:
    """A finalist with what it comes to under the policy that is best for it.

    Attributes:
        fits: its largest drawn samples fit into the memory that may be planned.
    """

    prediction: Prediction
    samples: SamplesPrediction
    chosen: PolicyPrediction
    fits: bool

    @property
    def seconds(self) -> float:
        """Of the mean step of drawn batches."""
        return self.chosen.mean


@dataclass(frozen=True)
class SearchOverSamples(Report):
    """Finalists of a search, the one with the least mean step over drawn batches first."""

    task: SearchTask
    finalists: tuple[LayoutOverSamples, ...]

    def __repr__(self) -> str:
        return f"SearchOverSamples({self.best.samples.layout}, {self.best.chosen.policy})"

    @property
    def best(self) -> LayoutOverSamples:
        """The best layout and policy."""
        return self.finalists[0]

    @property
    def ties(self) -> tuple[LayoutOverSamples, ...]:
        """Other finalists that may be as fast as the best."""
        return tuple(each for each in self.finalists[1:] if is_tie(each.seconds, self.best.seconds))

    def why_not(self, layout: Layout) -> str:
        """Return why a layout was not chosen, and which samples make the difference.

        Raises:
            ConfigError: as `SearchResult.why_not`.
        """
        from mimokit.layout_search.why_not import why_not

        means = why_not(self.task, self.best.prediction, layout)
        if means.broken or means.prediction is None:
            return means.text
        other = evaluated(self.task, means.prediction)
        share = other.seconds / self.best.seconds - 1
        slower = "slower" if share >= 0 else "faster"
        said = (
            f"Over drawn batches its best is {other.chosen.policy}, {abs(share):.1%} {slower} than "
            f"the best ({self.best.chosen.policy}); samples alike, it is "
            f"{other.samples.alike / self.best.samples.alike - 1:+.1%}."
        )
        return f"{said} {self._without_tail(other, share)}"

    def _without_tail(self, other: LayoutOverSamples, share: float) -> str:
        mix, told = without_tail(self.task)
        whole = self.task.workload.mix
        assert whole is not None
        if len(mix) == len(whole):
            return "No samples are larger than the others."
        task = replace(self.task, workload=replace(self.task.workload, mix=mix))
        mine, its = (
            _samples().predict_samples(
                task.prediction_task(each.samples.layout), [each.chosen.policy]
            )
            for each in (self.best, other)
        )
        left = its.policies[0].mean / mine.policies[0].mean - 1
        dropped = 1 - len(mix) / len(whole)
        return (
            f"Without the largest {dropped:.0%} of the samples ({told}) it would be {left:+.1%}: "
            f"they make {share - left:+.1%} of the difference."
        )

    def section(self) -> Section:
        """Return the best finalists as a table."""
        rows = [
            [
                str(number),
                str(each.chosen.policy),
                seconds_text(each.chosen.p50),
                seconds_text(each.chosen.p95),
                gib_text(each.chosen.memory),
                f"{each.chosen.lost:.1%}",
                str(each.samples.layout),
            ]
            for number, each in enumerate(self.finalists[:ROWS], 1)
        ]
        ties = len(self.ties)
        said = f"{ties} of them may be as fast as the best." if ties else "No other ties with it."
        sentences = [said]
        over = sum(not each.fits for each in self.finalists)
        if over:
            sentences.append(f"In {counted(over, 'layout')} the largest samples do not fit.")
        columns = ("", "samples", "p50", "p95", "memory at most", "lost to stragglers", "layout")
        heading = f"Over samples of {self.best.samples.source}"
        return Section(heading, columns, rows, sentences, unwrapped=columns[:5])

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "finalists": [
                {**each.chosen.to_json(), "layout": each.samples.layout.to_json()}
                for each in self.finalists
            ],
            "ties": len(self.ties),
        }


def over_samples(task: SearchTask, finalists: Sequence[Prediction]) -> SearchOverSamples:
    """Return the finalists of a search, each under its best policy, in a new order.

    Raises:
        ConfigError: the workload has no mix, or it does not fit the model.
    """
    known = [evaluated(task, each) for each in finalists]

    def objective(each: LayoutOverSamples) -> tuple[bool, float]:
        # Rounded, and sorted stably: where all samples are alike the order is that of the search.
        memory, gpus = each.chosen.memory, each.samples.layout.gpus
        return not each.fits, round(float(score(task.objective, each.seconds, memory, gpus)), 9)

    return SearchOverSamples(task, tuple(sorted(known, key=objective)))


def evaluated(task: SearchTask, prediction: Prediction) -> LayoutOverSamples:
    """Return a layout under its best policy that fits; of ties the one that asks for least."""
    layouts = [prediction.layout, *_fewer_at_once(task, prediction)]
    best: LayoutOverSamples | None = None
    for layout in layouts:
        samples = _samples().predict_samples(task.prediction_task(layout), policies_of(task))
        for policy in samples.policies:
            known = LayoutOverSamples(
                prediction, samples, policy, policy.memory <= task.memory_limit
            )
            if best is None or known.fits > best.fits:
                best = known
            elif known.fits == best.fits and known.seconds < best.seconds:
                best = best if is_tie(known.seconds, best.seconds) else known
    assert best is not None
    return best


def policies_of(task: SearchTask) -> tuple[Policy, ...]:
    """Return the policies that are tried, of those that run; those that ask for least first.

    Rows have the samples of a micro-batch, so that its sizes are lengths of rows, too.
    """
    drawn, policy = _samples().DRAWN, _samples().Policy
    in_row = policy(packing="row")
    if not task.branches:
        return drawn, in_row
    shared = policy(shared_frames=True)
    return drawn, policy(order=BALANCED), shared, in_row, replace(shared, packing="row")


def _samples() -> ModuleType:
    return import_extra("prediction.over_samples", "A search over samples")


def _fewer_at_once(task: SearchTask, prediction: Prediction) -> Iterator[Layout]:
    layout = prediction.layout
    count = micro_batches(layout, task.workload)
    if layout.mode == "colocated" and task.workload.encoder_microbatches is None and count > 1:
        yield replace(layout, encoder_microbatches=1)


def without_tail(task: SearchTask) -> tuple[SampleMix, str]:
    """Return the mix without its largest samples, and what these have, in words."""
    mix = task.workload.mix
    assert mix is not None
    loads = loads_of(mix, task.model, task.workload)
    sizes = [loads.tokens, *loads.items.values()]
    size = np.max([each / (np.quantile(each, TAIL) or each.max() or 1.0) for each in sizes], axis=0)
    begins = np.quantile(size, TAIL)
    kept = size < begins if np.mean(size < begins) > LEAST_KEPT else size <= begins
    told = [f"more than {np.quantile(loads.tokens[kept], 1.0):,.0f} tokens"]
    told += [f"{items[kept].max():,.0f} items of {name}" for name, items in loads.items.items()]
    columns = {name: column[kept] for name, column in mix.columns.items()}
    return mix_of(columns, mix.source), " or ".join(told)
