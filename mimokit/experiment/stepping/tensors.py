"""The tensors of a step on all ranks: one rank's, and the whole with the borders of its parts."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.experiment.snapshot import StepSnapshot
from mimokit.experiment.stepping.ranks import RankSessions, StepperError
from mimokit.planning.stepper.pictures import MOST_CELLS, TensorPicture, TensorSamples, Window
from mimokit.planning.types import LayoutPlan, SampleRange

LEAST_LINES = 8
"""Of a part of a whole tensor, however many parts there are."""


@dataclass(frozen=True)
class TensorPart:
    """What some ranks hold of a tensor, all of them the same.

    Attributes:
        samples: of the micro-batch; None where it is not known.
        unlike: another part holds other values of the same samples.
    """

    ranks: tuple[int, ...]
    samples: SampleRange | None
    picture: TensorPicture
    unlike: bool = False


def module_of(plan: LayoutPlan, rank: int, name: str) -> str:
    """Return the module to which a tensor of a suspended step belongs, by its name."""
    parts = name.split(".")
    if parts[0] == "boundaries" and parts[2] in ("encoder_output", "bridge_input"):
        return parts[1]
    on_rank = [module for module, sizes in plan.modules.items() if rank in sizes.ranks]
    if parts[0] == "microbatch":
        return parts[2] if parts[2] in plan.modules else on_rank[-1]
    return plan.llm_module_name if plan.llm_module_name in on_rank else on_rank[-1]


def samples_of_part(plan: LayoutPlan, rank: int, name: str) -> SampleRange | None:
    """Return the samples of the micro-batch that a tensor of a rank has."""
    if name.startswith("loaded."):
        return plan.batch.read_by(rank)
    return plan.batch.modules[module_of(plan, rank, name)].samples.get(rank)


def tensor_samples(plan: LayoutPlan, rank: int, name: str) -> TensorSamples | None:
    """Return which samples a tensor of a rank has; None where it is not known."""
    span, read = samples_of_part(plan, rank, name), plan.batch.read_by(rank)
    if span is None:
        return None
    parts = name.split(".")
    encoders = [part for part in parts if part in plan.modules]
    module = encoders[-1] if encoders else module_of(plan, rank, name)
    return TensorSamples(span[1] - span[0], module, span[0] - (read or span)[0])


class StepTensors:
    """The tensors that ranks kept of the steps that were done."""

    def __init__(self, plan: LayoutPlan, sessions: RankSessions) -> None:
        self._plan, self._sessions = plan, sessions

    def inspect(self, snapshot: StepSnapshot, rank: int, name: str) -> NDArray[np.generic]:
        """Return a tensor; see `Stepper.inspect`."""
        self._check(snapshot, rank, name)
        (values,) = self._sessions.ask("inspect", snapshot.number, name, ranks=[rank])
        if values is None:
            raise _not_kept(snapshot, rank)
        return np.asarray(values)

    def pictures(self, snapshot: StepSnapshot, rank: int) -> Mapping[str, TensorPicture]:
        """Return a small picture of every tensor of a rank."""
        names = snapshot.records[rank].tensors
        told = {name: tensor_samples(self._plan, rank, name) for name in names}
        known = {name: samples for name, samples in told.items() if samples is not None}
        (pictures,) = self._sessions.ask("pictures", snapshot.number, known, ranks=[rank])
        if pictures is None:
            raise _not_kept(snapshot, rank)
        return dict(pictures)

    def picture(
        self, snapshot: StepSnapshot, rank: int, name: str, window: Window | None
    ) -> TensorPicture:
        """Return the picture of a tensor, or of a window of it."""
        self._check(snapshot, rank, name)
        asked = snapshot.number, name, tensor_samples(self._plan, rank, name), window
        (answer,) = self._sessions.ask("picture", *asked, ranks=[rank])
        if answer is None:
            raise _not_kept(snapshot, rank)
        picture: TensorPicture = answer
        return picture

    def whole(self, snapshot: StepSnapshot, rank: int, name: str) -> tuple[TensorPart, ...]:
        """Return the parts of a tensor on all ranks that have it, in the order of their samples."""
        self._check(snapshot, rank, name)
        module = module_of(self._plan, rank, name)
        ranks = [
            each
            for each, record in snapshot.records.items()
            if name in record.tensors and module_of(self._plan, each, name) == module
        ]
        lines = max(LEAST_LINES, MOST_CELLS[0] // len(ranks))
        samples = {each: tensor_samples(self._plan, each, name) for each in ranks}
        asked = snapshot.number, name, samples, (lines, MOST_CELLS[1])
        answers = self._sessions.ask("part", *asked, ranks=ranks)
        if any(answer is None for answer in answers):
            raise _not_kept(snapshot, rank)
        return _parts(self._plan, name, ranks, answers)

    def edit(
        self,
        snapshot: StepSnapshot,
        rank: int,
        name: str,
        values: NDArray[Any],
        index: tuple[int, ...] | None,
    ) -> None:
        """Write values into a tensor of the step that was done last.

        Raises:
            StepperError: they do not fit.
        """
        self._check(snapshot, rank, name)
        shape = snapshot.records[rank].tensors[name].shape
        try:
            wanted = shape if index is None else np.empty(shape, np.int8)[index].shape
            np.broadcast_to(values, wanted)
        except (IndexError, ValueError) as error:
            place = "" if index is None else f" at {list(index)}"
            raise StepperError(
                f"Values of shape {list(values.shape)} do not fit into {name!r}{place}, which has "
                f"the shape {list(shape)} ({error})."
            ) from None
        self._sessions.ask("edit", snapshot.number, name, values, index, ranks=[rank])

    def _check(self, snapshot: StepSnapshot, rank: int, name: str) -> None:
        record = snapshot.records[rank]
        if name not in record.tensors:
            near = difflib.get_close_matches(name, record.tensors, 3, 0.3) or record.tensors
            known = ", ".join(list(near)[:3])
            hint = f"it had for example {known}" if known else "it had no tensors"
            raise StepperError(f"Rank {rank} had no {name!r} after step {record.number}; {hint}.")


def _parts(
    plan: LayoutPlan, name: str, ranks: Sequence[int], answers: Sequence[tuple[TensorPicture, str]]
) -> tuple[TensorPart, ...]:
    groups: dict[tuple[SampleRange | None, str], list[int]] = {}
    pictures = {}
    for rank, (picture, printed) in zip(ranks, answers, strict=True):
        key = samples_of_part(plan, rank, name), printed
        groups.setdefault(key, []).append(rank)
        pictures[key] = picture
    spans = [span for span, _ in groups]
    ordered = sorted(groups, key=lambda key: (key[0] or (0, 0), groups[key]))
    return tuple(
        TensorPart(tuple(groups[key]), key[0], pictures[key], spans.count(key[0]) > 1)
        for key in ordered
    )


def _not_kept(snapshot: StepSnapshot, rank: int) -> StepperError:
    return StepperError(
        f"Rank {rank} no longer keeps its tensors of step {snapshot.number}; open the stepper with "
        "a larger keep."
    )
