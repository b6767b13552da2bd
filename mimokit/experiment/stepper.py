"""Steps through training: all ranks do one step of the plan, stop, and can be inspected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mimokit.cluster import EngineCluster
from mimokit.config import ConfigError, ExperimentConfig, Problem, check_runnable
from mimokit.config.checked_code import checked_code
from mimokit.config.user_code import ForwardStep, OwnLoss, OwnModule
from mimokit.experiment.prepare import Config, finalized_copy
from mimokit.experiment.snapshot import StepSnapshot, snapshot_of, state_table
from mimokit.experiment.stepping.findings import Piece
from mimokit.experiment.stepping.ranks import RankSessions, StepperError
from mimokit.experiment.stepping.step_history import StepMoves
from mimokit.experiment.stepping.tensors import StepTensors, TensorPart
from mimokit.planning import plan_layout
from mimokit.planning.stepper import Crossing, SeenCrossing, clock_of
from mimokit.planning.stepper.pictures import TensorPicture, Window
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.planning.stepper.crossings import PieceRows, StepRecord

KEEP = 256


@dataclass(frozen=True)
class Edit:
    """Values that a user wrote into a tensor after a step.

    Attributes:
        index: where in the tensor; None: all of it.
    """

    number: int
    rank: int
    name: str
    values: NDArray[Any]
    index: tuple[int, ...] | None = None


class Stepper(StepMoves):
    """Goes through training tick by tick; `mimokit_widgets.StepperView(stepper)` shows it.

    All ranks advance by the plan's clock: at a tick every rank does one step of its schedule or
    none, and no rank has to wait for a rank that does none. Transfers between ranks are checked
    against the plan as they happen. Between two steps the ranks are idle: `cluster.run` and `%%px`
    work on them, and `mimokit.engine.stepper.live()` returns the current tensors.

    Opening a stepper replaces the one that was open on the cluster.
    """

    def __init__(
        self,
        cluster: EngineCluster,
        config: Config,
        data: DataSource | None = None,
        *,
        keep: int = KEEP,
        modules: Mapping[str, OwnModule] | None = None,
        loss_func: OwnLoss | None = None,
        forward_step: ForwardStep | None = None,
    ) -> None:
        """Build the model on the ranks.

        Args:
            cluster: with at least as many engines as the layout has ranks.
            data: makes the data, as for `train`.
            keep: the number of ticks for which ranks keep copies of their tensors, for `inspect`.
            modules: module -> what builds it in place of mimokit, as for `train`.
            forward_step: of a micro-batch, as for `train`; it is one step, with its backward
                another one.

        Raises:
            ConfigError: the config is wrong or cannot run.
            ClusterError: the cluster has too few engines, or a rank fails.
            ValueError: keep is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one tick must be kept")
        self.config = finalized_copy(config)
        check_runnable(self.config)
        _reject_replicas(self.config)
        code = checked_code(self.config, modules, loss_func, forward_step, data)
        self.plan = plan_layout(self.config)
        self.clock = clock_of(self.plan)
        super().__init__()
        self._sent: dict[Crossing, SeenCrossing] = {}
        self._edits: list[Edit] = []
        opening = self.plan, self.config, keep, code
        self._sessions = RankSessions(cluster, self.plan.world_size, opening)
        self._tensors = StepTensors(self.plan, self._sessions)

    # State.

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was written into tensors, in that order."""
        return tuple(self._edits)

    @property
    def ended(self) -> str | None:
        """Why no further step is possible, None while one is."""
        return self._sessions.ended

    # Inspection.

    def state(self) -> pd.DataFrame:
        """Return what every rank did last, does next, and waits for.

        Columns: rank, modules, samples (of the micro-batch), did, seconds, next, at (the tick of
        that step), waits_for.
        """
        number = self._position + 1
        following = {rank: self._next_of(rank) for rank in range(self.plan.world_size)}
        return state_table(self.plan, self.now, self._tick(number), number, following)

    def tensors(self, rank: int) -> pd.DataFrame:
        """Return the tensors of a rank after the current step.

        Columns: name, shape, dtype; `inspect` takes the names.
        """
        facts = self._looked_at(rank).records[rank].tensors
        rows = [{"name": name, "shape": f.shape, "dtype": f.dtype} for name, f in facts.items()]
        return pd.DataFrame(rows, columns=["name", "shape", "dtype"])

    def inspect(self, rank: int, name: str) -> NDArray[np.generic]:
        """Return a tensor of a rank as it was after the current step.

        The result is a copy as a numpy array, of bfloat16 as float32.

        Raises:
            StepperError: the rank had no tensor of that name, or its copy is no longer kept.
        """
        return self._tensors.inspect(self._looked_at(rank), rank, name)

    def pictures(self, rank: int) -> Mapping[str, TensorPicture]:
        """Return a small picture of every tensor that a rank had after the current step.

        Raises:
            StepperError: the copies are no longer kept.
        """
        return self._tensors.pictures(self._looked_at(rank), rank)

    def picture(self, rank: int, name: str, window: Window | None = None) -> TensorPicture:
        """Return a tensor of a rank after the current step as a picture.

        Args:
            window: the part of the tensor, as a matrix, that is shown.

        Raises:
            StepperError: the rank had no tensor of that name, or its copy is no longer kept.
        """
        return self._tensors.picture(self._looked_at(rank), rank, name, window)

    def whole(self, rank: int, name: str) -> tuple[TensorPart, ...]:
        """Return what all ranks have of a tensor of a rank, in the order of the samples.

        Raises:
            StepperError: as `picture`.
        """
        return self._tensors.whole(self._looked_at(rank), rank, name)

    # Changes.

    def edit(
        self, rank: int, name: str, values: ArrayLike, index: tuple[int, ...] | None = None
    ) -> None:
        """Write values into a tensor of a rank; the next step reads them.

        Args:
            values: of the shape of the tensor, or of what `index` selects.
            index: as of a numpy array; None: the whole tensor.

        Raises:
            StepperError: the current step is not the last that was done, the rank has no tensor of
                that name, or the values do not fit.
        """
        snapshot = self._looked_at(rank)
        if snapshot.number != len(self._taken) - 1:
            raise StepperError(
                f"The ranks stand after step {len(self._taken) - 1}, and step {snapshot.number} is "
                f"looked at; restore({snapshot.number}) takes them back to it."
            )
        edit = Edit(snapshot.number, rank, name, np.array(values), index)
        self._write(edit)
        self._changed()

    def restore(self, number: int) -> StepSnapshot:
        """Take the ranks back to where they stood after a step, before any edit of it.

        Their models are built anew, and all steps up to this one are done again, with the edits
        that were made before it. Every tensor that is kept of the step is compared.

        Raises:
            StepperError: the step was not done; or a tensor is not bit for bit what it was, because
                data or model are drawn from something else than the seed.
        """
        self._check_done(number)
        before = self._sessions.ask("prints", number)
        edits = [edit for edit in self._edits if edit.number < number]
        self._sessions.open()
        self._taken, self._sent, self._edits = [], {}, []
        for edit in edits:
            self._do_until(edit.number)
            self._write(edit)
        self._do_until(number)
        self._position = number
        after = self._sessions.ask("prints", number)
        self._changed()
        for rank, (was, now) in enumerate(zip(before, after, strict=True)):
            other = [name for name in was or () if was[name] != now.get(name)]
            if other:
                raise StepperError(
                    f"Step {number} was done again, but {other[0]!r} of rank {rank} is not bit for "
                    "bit what it was; data or model depend on more than the seed."
                )
        return self._taken[number]

    def take_back(self) -> StepSnapshot:
        """Undo the last edit: the steps behind it are done again without it.

        Raises:
            StepperError: nothing was edited; or as `restore`.
        """
        if not self._edits:
            raise StepperError("There is no edit to take back.")
        *others, last = self._edits
        done, looked_at = len(self._taken) - 1, self._position
        self.restore(last.number)
        for edit in others:
            if edit.number == last.number:
                self._write(edit)
        self._do_until(done)
        return self.look_at(looked_at)

    def close(self) -> None:
        """Release the model on the ranks; may be called again."""
        self._sessions.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        now = self.now if self.now is not None else "before step 0"
        return (
            f"<Stepper of {counted(self.plan.world_size, 'rank')}, "
            f"{counted(len(self.clock), 'tick')} per iteration; {now}>"
        )

    # Implementation.

    def _do_until(self, number: int) -> None:
        first = len(self._taken)
        missing = number + 1 - first
        if missing > 0:
            by_rank = self._sessions.ask("advance", first, missing)
            for records in zip(*by_rank, strict=True):
                self._taken.append(self._snapshot(records))

    def _write(self, edit: Edit) -> None:
        snapshot = self._taken[edit.number]
        self._tensors.edit(snapshot, edit.rank, edit.name, edit.values, edit.index)
        self._edits.append(edit)

    def _snapshot(self, records: tuple[StepRecord, ...]) -> StepSnapshot:
        number = records[0].number

        def ask(pieces: Mapping[int, Sequence[Piece]]) -> Mapping[int, list[PieceRows | None]]:
            ranks = list(pieces)
            answers = self._sessions.ask("rows", number, dict(pieces), ranks=ranks)
            return dict(zip(ranks, answers, strict=True))

        return snapshot_of(self.plan, len(self.clock), self._tick(number), records, self._sent, ask)

    def _looked_at(self, rank: int) -> StepSnapshot:
        snapshot = self.now
        if snapshot is None:
            raise StepperError("No step has been done yet; next() does the first.")
        if rank not in snapshot.records:
            last = len(snapshot.records) - 1
            raise StepperError(f"There is no rank {rank}; the ranks are 0 to {last}.")
        return snapshot


def _reject_replicas(config: ExperimentConfig) -> None:
    if config.strategy is not None:
        sentence = (
            "Section 'strategy': strategy.replicas of a layout cannot be stepped through yet; "
            "leave the section out to step through one replica."
        )
        raise ConfigError([Problem("strategy", "replicas", config.replicas, sentence)])
