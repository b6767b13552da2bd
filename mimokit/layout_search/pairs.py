"""Which language candidates are valid next to candidates of other modules.

Rules of pairs read few sizes, so that many choices of other modules leave the same candidates.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mimokit.axes import SIZE_FIELDS, Axis
from mimokit.config.rules.facts import PairFacts
from mimokit.config.rules.pair_rules import REPLICAS, SAME_STAGES, SAMPLES
from mimokit.config.runtime import DeploymentMode
from mimokit.config.sizes import ParallelSizes
from mimokit.layout_search.blocks import Choices
from mimokit.layout_search.candidates import ROUNDS_OF_ENCODER, SEARCH_RULES, Candidates
from mimokit.layout_search.combinations import allowed
from mimokit.layout_search.cost_tables import Tables
from mimokit.layout_search.task import SearchTask
from mimokit.prediction.layout import pairs_of_others

REFUSED = "refused with what a module or the run has"
_READ = tuple(SIZE_FIELDS[axis] for axis in (Axis.PIPELINE, Axis.VIRTUAL_PIPELINE, Axis.DATA))
"""Sizes of another module that rules of pairs read."""

Mask = NDArray[np.bool_]
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class ValidLanguages:
    """Language candidates that are valid next to a choice of other modules.

    Attributes:
        dropped: reason -> which candidates it drops, that none before it does.
    """

    candidates: NDArray[np.int64]
    dropped: tuple[tuple[str, Mask], ...]


Kinds = tuple[tuple[Sizes, bool], ...]
"""Of each other module what `_READ` names, and whether the candidate is permitted at all."""


@dataclass
class Pairs:
    """The valid language candidates next to every kind of choice."""

    task: SearchTask
    tables: Tables
    _allowed: dict[tuple[str, str], Mask] = field(default_factory=dict)

    def kinds(self, mode: DeploymentMode, chosen: Choices) -> Kinds:
        """Return what decides which language candidates are valid next to a choice."""
        if mode == "homogeneous":
            return ()
        return tuple(self._kind(mode, *each) for each in enumerate(chosen.tolist()))

    def next_to(self, mode: DeploymentMode, kinds: Kinds) -> ValidLanguages:
        """Return the valid candidates next to other modules of these kinds."""
        language, shared = self.tables.language, mode == "homogeneous"
        permitted = self._permitted(mode, language, language)
        rules = self._shared() if shared else self._apart(mode, kinds)
        of = slice(None) if shared else self.tables.flows.of
        valid = np.full(language.count if shared else len(self.tables.flows.first), True)
        dropped = [(REFUSED, ~permitted)]
        for reason, holds in rules:
            dropped.append((reason, (valid & ~holds)[of] & permitted))
            valid = valid & holds
        some = tuple(each for each in dropped if each[1].any())
        return ValidLanguages(np.flatnonzero(valid[of] & permitted), some)

    def _kind(self, mode: DeploymentMode, which: int, candidate: int) -> tuple[Sizes, bool]:
        other = self.tables.others[which]
        sizes = tuple(int(getattr(other.sizes, name)[candidate]) for name in _READ)
        return sizes, bool(self._permitted(mode, other, other)[candidate])

    def _shared(self) -> Iterator[tuple[str, Mask]]:
        """Yield which language candidates each rule allows."""
        language = self.tables.language
        sizes = language.sizes.in_first_stage
        for encoder in self.tables.others:
            yield REFUSED, self._permitted("homogeneous", encoder, language)
            for rule in SEARCH_RULES:
                holds = np.broadcast_to(rule.holds(sizes, encoder.facts), (language.count,))
                yield f"{encoder.facts.name}: {rule.reason}", holds

    def _apart(self, mode: DeploymentMode, kinds: Kinds) -> Iterator[tuple[str, Mask]]:
        """Yield which kinds of language candidates each rule allows; see `Flows`."""
        first = self.tables.flows.first
        facts = PairFacts(mode, "", "", global_batch_size=self.task.workload.global_batch_size)
        own = self.tables.language.sizes.take(first)
        others = [ParallelSizes(**dict(zip(_READ, sizes, strict=True))) for sizes, _ in kinds]
        for sizes, (_, permitted) in zip(others, kinds, strict=True):
            yield REFUSED, np.full(first.shape, permitted)
            for rule in (SAME_STAGES, REPLICAS, SAMPLES, ROUNDS_OF_ENCODER):
                yield rule.reason, np.broadcast_to(rule.holds(sizes, own, facts), first.shape)
        names = [module.name for module in self.task.others]
        for pair in pairs_of_others(mode, self.task.feeds, self.task.language.name):
            name, other = (others[names.index(each)] for each in pair)
            divides = bool(REPLICAS.holds(name, other, facts))
            yield REPLICAS.reason, np.full(first.shape, divides)

    def _permitted(self, mode: DeploymentMode, module: Candidates, sized: Candidates) -> Mask:
        key = mode, module.facts.name
        if key not in self._allowed:
            part = self.task.parts.get(module.facts.name)
            everything = np.full(sized.count, True)
            self._allowed[key] = everything if part is None else allowed(part, mode, sized.sizes)
        return self._allowed[key]
