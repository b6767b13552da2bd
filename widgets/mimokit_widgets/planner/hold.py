"""What gives way to a size that is edited, so that GPUs and samples per step stay as they are.

A module's ranks are TP × CP × PP × DP, and a step has micro-batch size × micro-batches × DP of the
language module samples. DP gives first, then TP, CP and PP. Then the micro-batches do: their size,
so that a step is cut into as many and a pipeline idles as long, else their number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mimokit.axes import CONFIG_FIELDS, Axis
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted, listed
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.edits import with_value
from mimokit_widgets.planner.outcome import DraftOutcome
from mimokit_widgets.planner.paths import (
    ALL_MODULES,
    NETWORKS,
    PREDICTION,
    SIZES,
    Path,
    change_text,
    differences,
    mapping_at,
    modules_at,
    short_name,
    shown,
    value_at,
)

TRADED = tuple(
    CONFIG_FIELDS[axis] for axis in (Axis.DATA, Axis.TENSOR, Axis.CONTEXT, Axis.PIPELINE)
)
"""Sizes that trade, the first to give first."""
DATA_PARALLEL = TRADED[0]
BATCH: Path = ("data", "base_batch_size")
COUNT: Path = ("data", "num_microbatches")
NEAR = range(2, 9)
"""So many times more or fewer micro-batches are tried."""
MOST_BATCHES = 4
"""Of them, at most."""

Sizes = dict[str, int | None]
"""Of a module, by field; an open data_parallel is None."""


@dataclass(frozen=True)
class GaveWay:
    """What an edit changed besides its field.

    Attributes:
        sentence: what gave way and for what, or that nothing could; empty for neither.
        paths: the fields that gave way.
    """

    sentence: str = ""
    paths: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Hold:
    """The GPUs of every module and the samples of a step, which other layouts may keep.

    Attributes:
        plan: of the layout that has them.
        outcome_of: returns what follows from a draft.
    """

    plan: LayoutPlan
    outcome_of: Callable[[Draft], DraftOutcome]

    def __str__(self) -> str:
        samples = counted(self.plan.batch.global_batch_size, "sample")
        return f"{counted(self.plan.world_size, 'GPU')} and {samples}"

    def kept_with(self, draft: Draft, path: Path) -> Draft | None:
        """Return the draft in which other fields make up for the size at a path.

        None where no layout with that size keeps GPUs and samples.

        Args:
            path: of one module, or of ALL_MODULES.
        """
        if not is_traded(path):
            return None
        return next((each for each in self._traded(draft, path) if self._is_kept_by(each)), None)

    def nearly_kept_with(self, draft: Draft, path: Path) -> Draft | None:
        """Return the same where each is rejected: the first with the fewest problems.

        None where trading leaves as many problems as the size alone.
        """
        drafts = (draft, *self._traded(draft, path))
        nearest = min(drafts, key=lambda each: len(self.outcome_of(each).problems))
        return None if nearest is draft else nearest

    def ways(self, draft: Draft, path: Path) -> Iterator[tuple[Path, Draft]]:
        """Yield the paths of one size with which GPUs and samples are kept, and the drafts.

        The size of one module, and in homogeneous mode that of all.
        """
        paths = [path]
        if draft.value_at(("model", "deployment_mode")) == "homogeneous":
            paths.append((*SIZES, ALL_MODULES, path[-1]))
        for each in paths:
            changed = draft
            for name in modules_at(draft.content, each):
                size = draft.value_at(path)
                changed = with_value(changed, (*SIZES, name, path[-1]), size)
            if (kept := self.kept_with(changed, each)) is not None:
                yield each, kept

    def gave_way(self, before: Draft, now: Draft, path: Path) -> GaveWay:
        """Return what an edit of the size at a path changed besides, or that nothing keeps both."""
        place = (*path[:2], modules_at(now.content, path)[0], path[-1])
        typed = now.value_at(place)
        edited = {(*SIZES, name, path[-1]) for name in modules_at(now.content, path)}
        given = [
            change for change in differences(before.content, now.content) if change[0] not in edited
        ]
        rejected = self.outcome_of(now).layout is None
        if not self._is_kept_by(now) and not (rejected and given):
            if not _is_size(typed) or any(self.ways(now, place)):
                return GaveWay()  # errors say more
            what = f"{short_name(path[-1])} {shown(typed)}"
            return GaveWay(f"Found no sizes that keep {self} with {what}.")
        sentence = f"{told(given, path)}, to keep {self}." if given else ""
        return GaveWay(sentence, tuple(each for each, *_ in given))

    def _traded(self, draft: Draft, path: Path) -> Iterator[Draft]:
        for sized in self._with_ranks(draft, path):
            yield from self._with_samples(sized)

    def _is_kept_by(self, draft: Draft) -> bool:
        layout = self.outcome_of(draft).layout
        return layout is not None and _totals(layout.plan) == _totals(self.plan)

    def _with_ranks(self, draft: Draft, path: Path) -> Iterator[Draft]:
        names = modules_at(draft.content, path)
        for giver in (*TRADED, None):
            sized: Draft | None = draft
            for name in names:
                sized = None if sized is None else self._sized(sized, name, path[-1], giver)
            if sized is not None and giver != path[-1]:
                yield sized

    def _sized(self, draft: Draft, name: str, typed: str, giver: str | None) -> Draft | None:
        ranks, sizes = self.plan.modules.get(name), _sizes(draft, name)
        value = sizes[typed]
        if ranks is None or value is None or value < 1 or ranks.size % value:
            return None
        others = {field: size for field, size in sizes.items() if field != typed}
        given = _given(others, ranks.size // value, giver)
        for field, size in (given or {}).items():
            if size != others[field]:
                draft = with_value(draft, (*SIZES, name, field), size)
        return None if given is None else draft

    def _with_samples(self, draft: Draft) -> Iterator[Draft]:
        name = self.plan.llm_module_name
        sizes = _sizes(draft, name)
        replicas = sizes[DATA_PARALLEL]
        if replicas is None:  # it is worked out
            cuts = math.prod(size or 1 for size in sizes.values())
            replicas = max(1, self.plan.modules[name].size // cuts)
        batch, count = (draft.value_at(path) for path in (BATCH, COUNT))
        if not _is_size(batch) or not _is_size(count):
            return
        samples, left = divmod(self.plan.batch.global_batch_size, replicas)
        for whole, parts in () if left else _cuts(samples, batch, count):
            yield with_value(with_value(draft, BATCH, whole), COUNT, parts)


def is_traded(path: Sequence[str]) -> bool:
    """Return whether ranks depend on the field at a path."""
    return tuple(path[:2]) == SIZES and len(path) == 4 and path[-1] in TRADED


def told(changes: Sequence[tuple[Path, object, object]], path: Path) -> str:
    """Return changes as "DP 1 → 2 and PP 4 → 2"; those of other modules with their name."""
    return listed(
        [
            ("" if each[:2] != SIZES or each[2] == path[2] else f"{each[2]} ")
            + change_text(each, before, now)
            for each, before, now in changes
        ]
    )


def samples_of(draft: Draft) -> int | None:
    """Return the samples of a step; None where the fields do not say them."""
    language = draft.value_at(("model", "llm_module_name"))
    replicas = draft.value_at((*SIZES, str(language), DATA_PARALLEL))
    numbers = [replicas, *(draft.value_at(path) for path in (BATCH, COUNT))]
    return math.prod(numbers) if all(map(_is_size, numbers)) else None


def _totals(plan: LayoutPlan) -> tuple[int, int, dict[str, int]]:
    ranks = {name: each.size for name, each in plan.modules.items()}
    return plan.world_size, plan.batch.global_batch_size, ranks


def _sizes(draft: Draft, name: str) -> Sizes:
    written = mapping_at(draft.content, (*SIZES, name))
    sizes: Sizes = {field: size if _is_size(size := written.get(field)) else 1 for field in TRADED}
    if written.get(DATA_PARALLEL) is None:
        sizes[DATA_PARALLEL] = None
    return sizes


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _given(sizes: Sizes, product: int, giver: str | None) -> Sizes | None:
    """Return sizes with another product, in which one changes, or all for None; None if not so."""
    numbers = {field: size for field, size in sizes.items() if size is not None}
    if len(numbers) < len(sizes):  # DP is worked out, so it gives
        return (
            sizes if giver == DATA_PARALLEL and product % math.prod(numbers.values()) == 0 else None
        )
    if giver is None:
        return dict(_shared(numbers, product))
    if giver not in numbers:
        return None
    rest = math.prod(size for field, size in numbers.items() if field != giver)
    return None if product % rest else {**numbers, giver: product // rest}


def _shared(sizes: Mapping[str, int], product: int) -> dict[str, int]:
    first, *others = sizes
    shared, left = {}, product
    for field in (*others, first):
        shared[field] = math.gcd(sizes[field], left)
        left //= shared[field]
    return {**shared, first: shared[first] * left}


def _cuts(samples: int, batch: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield (micro-batch size, micro-batches) of samples: as many first, then the same size."""
    near = (each for factor in NEAR for each in (count * factor, count // factor))
    counts = dict.fromkeys(each for each in (count, samples // batch, *near) if each)
    whole = (each for each in counts if samples % each == 0)
    yield from ((samples // each, each) for each in islice(whole, MOST_BATCHES))


SHARED: tuple[Path, ...] = (("data",), NETWORKS, PREDICTION)
"""What is edited for all layouts alike."""


@dataclass(frozen=True)
class Pin:
    """A layout that others are compared with.

    Attributes:
        layout: as it was pinned.
        fields: what stood in the fields then.
    """

    layout: Draft
    fields: Draft

    def followed_by(self, draft: Draft) -> Draft:
        """Return the layout with the edits of model and batch that led to what stands there now."""
        layout = self.layout
        for section in SHARED:
            before, now = (value_at(each.content, section) for each in (self.fields, draft))
            for path, _, value in differences(before, now, section):
                layout = with_value(layout, path, value)
        return self._with_samples(layout, draft)

    def _with_samples(self, layout: Draft, draft: Draft) -> Draft:
        was, then, now = (samples_of(each) for each in (self.layout, self.fields, draft))
        if was is None or then is None or now is None or was * now % then:
            return layout
        wanted = was * now // then
        if samples_of(layout) == wanted and wanted != was:
            return layout
        batch, count = (value_at(self.layout.content, path) for path in (BATCH, COUNT))
        if count * wanted % was:
            return layout
        return with_value(with_value(layout, BATCH, batch), COUNT, count * wanted // was)
