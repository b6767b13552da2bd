"""Terms of every candidate of every module, computed once, to be combined afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture.parallel_sizes import ParallelSizes
from mimokit.layout_search.candidates import Candidates
from mimokit.layout_search.pairs import ALONE_TOO_LARGE
from mimokit.layout_search.task import SearchTask
from mimokit.prediction import Layout, terms_of
from mimokit.prediction.memory import total_bytes
from mimokit.prediction.module_costs import EncoderTerms, LanguageTerms
from mimokit.prediction.placement import in_first_stage
from mimokit.prediction.step_time import Parts
from mimokit.prediction.step_time.stage import StageTime

Index = slice | NDArray[Any]


@dataclass(frozen=True)
class Tables:
    """Candidates and their terms.

    Attributes:
        language: candidates of the language model.
        encoders: candidates of each encoder on its own ranks, and of size 1 in a pipeline where it
            shares them.
        samples: samples of a global micro-batch, of each language candidate.
        step: position of these samples in the encoders' terms.
        language_terms: terms of the language model.
        encoder_terms: per encoder the terms of candidate i and step k at i times steps + k.
        steps: how many numbers of samples there are.
        inside: terms of the encoders in the first stage of each language candidate.
    """

    language: Candidates
    encoders: tuple[Candidates, ...]
    samples: NDArray[np.int64]
    step: NDArray[np.int64]
    language_terms: LanguageTerms
    encoder_terms: tuple[EncoderTerms, ...]
    steps: int
    inside: tuple[EncoderTerms, ...]

    def encoder(self, which: int, candidate: int, languages: slice) -> EncoderTerms:
        """Return the terms of one encoder candidate beside some language candidates."""
        index = candidate * self.steps + self.step[languages]
        terms: EncoderTerms = taken(self.encoder_terms[which], index)
        return terms

    def languages(self, which: slice) -> LanguageTerms:
        """Return the terms of some language candidates."""
        terms: LanguageTerms = taken(self.language_terms, which)
        return terms


def fitting_alone(
    task: SearchTask, language: Candidates, encoders: tuple[Candidates, ...]
) -> Candidates:
    """Return language candidates without those that are too large without any encoder.

    They are dropped once for all combinations, unless that leaves none: then the leanest
    combination is still to be found.
    """
    anywhere = {one.facts.name: one.at(0) for one in encoders}
    terms, _ = _terms(task, anywhere, language.sizes)
    fits = np.broadcast_to(terms.memory <= task.memory_limit, (language.count,))
    if fits.all() or not fits.any():
        return language
    dropped = {**language.dropped, ALONE_TOO_LARGE: int(np.count_nonzero(~fits))}
    return replace(language.take(fits), dropped=dropped)


def make_tables(task: SearchTask, language: Candidates, encoders: tuple[Candidates, ...]) -> Tables:
    """Compute the terms of all candidates."""
    samples = np.asarray(language.sizes.micro_batch * language.sizes.data)
    distinct, step = np.unique(samples, return_inverse=True)
    names = [candidates.facts.name for candidates in encoders]
    apart = {
        name: _beside(candidates.sizes, distinct)
        for name, candidates in zip(names, encoders, strict=True)
    }
    shared = dict.fromkeys(names, in_first_stage(language.sizes))
    terms, encoder_terms = _terms(task, apart, language.sizes)
    inside = _terms(task, shared, language.sizes)[1] if encoders else []
    return Tables(
        language=language,
        encoders=encoders,
        samples=samples,
        step=step,
        language_terms=collapsed(terms),
        encoder_terms=tuple(encoder_terms),
        steps=len(distinct),
        inside=tuple(inside),
    )


def _terms(
    task: SearchTask, encoders: Mapping[str, ParallelSizes], language: ParallelSizes
) -> tuple[LanguageTerms, list[EncoderTerms]]:
    layout = Layout("colocated", {**encoders, task.language.name: language})
    with np.errstate(divide="ignore", invalid="ignore"):  # ends of a range nobody will choose
        return terms_of(task.model, layout, task.workload, task.hardware, task.software)


def _beside(sizes: ParallelSizes, samples: NDArray[np.int64]) -> ParallelSizes:
    """Return every candidate with every number of samples, of which each replica takes a share."""
    count = len(samples)
    repeated = sizes.take(np.repeat(np.arange(np.size(sizes.tensor)), count))
    each = np.tile(samples, np.size(sizes.tensor)) / repeated.data
    return replace(repeated, micro_batch=each)


def collapsed(terms: LanguageTerms) -> LanguageTerms:
    """Return terms whose parts are added up, as combining modules asks for totals only."""

    def stage(one: StageTime) -> StageTime:
        return StageTime(Parts(host=one.forward.total), Parts(host=one.backward.total))

    first, middle, last = terms.step.stages
    step = replace(
        terms.step,
        work=Parts(host=terms.step.work.total),
        stages=(stage(first), stage(middle), stage(last)),
    )
    return replace(
        terms,
        step=step,
        first={"all": total_bytes(terms.first)},
        last={"all": total_bytes(terms.last)},
    )


def taken(value: Any, index: Index) -> Any:
    """Return the entries of all arrays inside a record; single numbers stay."""
    if isinstance(value, np.ndarray):
        return value[index] if value.ndim else value
    if is_dataclass(value) and not isinstance(value, type):
        inner = {field.name: taken(getattr(value, field.name), index) for field in fields(value)}
        return replace(value, **inner)
    if isinstance(value, Mapping):
        return {name: taken(one, index) for name, one in value.items()}
    if isinstance(value, tuple):
        return tuple(taken(one, index) for one in value)
    return value
