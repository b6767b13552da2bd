"""Steps through training: all ranks do one step of the plan, stop, and can be inspected."""

from __future__ import annotations

import contextlib
import difflib
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.config import ConfigError, ExperimentConfig, Problem, check_runnable
from mimokit.config.user_code import ForwardStep, OwnLoss, OwnModule, checked_code
from mimokit.experiment import on_rank
from mimokit.experiment.prepare import Config, prepared
from mimokit.experiment.snapshot import StepSnapshot, state_table
from mimokit.planning import plan_layout
from mimokit.planning.stepper import (
    Crossing,
    PlanDifference,
    PlannedStep,
    SeenCrossing,
    Tick,
    clock_of,
    differences,
    planned_crossings,
)
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.planning.stepper.crossings import StepRecord

KEEP = 256


class StepperError(RuntimeError):
    """A request to a stepper that cannot be fulfilled; the message is one sentence."""


class Stepper:
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
            ConfigError: the config is wrong or cannot run yet.
            ClusterError: the cluster has too few engines, or a rank fails.
            ValueError: keep is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least one tick must be kept")
        self.config = prepared(config)
        check_runnable(self.config)
        _reject_replicas(self.config)
        code = checked_code(self.config, modules, loss_func, forward_step, data)
        self.plan = plan_layout(self.config)
        self.clock = clock_of(self.plan)
        self._cluster = cluster
        self._taken: list[StepSnapshot] = []
        self._position = -1
        self._sent: dict[Crossing, SeenCrossing] = {}
        self._ended: str | None = None
        self._listeners: list[Callable[[], None]] = []
        self._name = uuid.uuid4().hex
        self._run(on_rank.open_stepper, self.plan, self.config, keep, code)
        self._engines = cluster.ranks

    # State.

    @property
    def snapshots(self) -> tuple[StepSnapshot, ...]:
        """All steps done so far."""
        return tuple(self._taken)

    @property
    def now(self) -> StepSnapshot | None:
        """The current step, None before the first."""
        return self._taken[self._position] if self._position >= 0 else None

    @property
    def differences(self) -> tuple[PlanDifference, ...]:
        """All transfers so far that differ from the plan."""
        return tuple(difference for snapshot in self._taken for difference in snapshot.differences)

    @property
    def ended(self) -> str | None:
        """Why no further step is possible, None while one is."""
        return self._ended

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call back whenever the current step changes."""
        self._listeners.append(callback)

    # Forwards and backwards.

    def next(self, n: int = 1) -> StepSnapshot:
        """Go n steps forwards, first through those already done, and return the last.

        Raises:
            ValueError: n is less than 1.
            StepperError: the stepper has ended.
            RankError: a rank raised; names the rank and the step.
            RankDied: the process of a rank died.
        """
        if n < 1:
            raise ValueError(
                f"next goes at least 1 step forwards, not {n}; back goes the other way"
            )
        self._go_to(self._position + n)
        return self._taken[self._position]

    def back(self, n: int = 1) -> StepSnapshot:
        """Go n steps back to a recorded step; nothing is undone on the ranks.

        Raises:
            StepperError: there are fewer steps.
        """
        if not 0 < n <= self._position:
            raise StepperError(
                f"There are {counted(max(self._position, 0), 'step')} before the current one; "
                f"going {n} back is not possible."
            )
        return self.look_at(self._position - n)

    def look_at(self, number: int) -> StepSnapshot:
        """Make a step that was done the current one.

        Raises:
            StepperError: it was not done.
        """
        if not 0 <= number < len(self._taken):
            done = f"0 to {len(self._taken) - 1}" if self._taken else "none"
            raise StepperError(f"Step {number} was not done; the steps done are {done}.")
        self._position = number
        self._changed()
        return self._taken[number]

    def run_until(
        self,
        *,
        rank: int | None = None,
        action: str | None = None,
        microbatch: int | None = None,
        module: str | None = None,
    ) -> StepSnapshot:
        """Go forwards until the next matching step has been done, and return it.

        Args:
            action: name of the step: "forward", "gather", "send-backward", "optimizer", ….

        Raises:
            StepperError: no step of an optimizer step matches.
        """
        start = self._position + 1
        for number in range(start, start + len(self.clock)):
            steps = self._tick(number).steps
            chosen = steps.values() if rank is None else [steps[rank]] if rank in steps else []
            if any(_matches(step, action, microbatch, module) for step in chosen):
                return self.next(number - self._position)
        raise StepperError(self._no_match(rank, action, microbatch, module))

    def run_until_crossing(self) -> StepSnapshot:
        """Go forwards until a transfer between ranks; a StepperError says if there is none."""
        start = self._position + 1
        for number in range(start, start + len(self.clock)):
            if planned_crossings(self.plan, self._tick(number)):
                return self.next(number - self._position)
        raise StepperError("The steps of this layout transfer nothing between ranks.")

    def run_until_difference(self) -> StepSnapshot:
        """Go forwards until something differs from the plan, at most to the end of the iteration.

        Steps that were done already are looked at again, not done again.
        """
        while True:
            snapshot = self.next()
            last = snapshot.number % len(self.clock) == len(self.clock) - 1
            if snapshot.differences or last:
                return snapshot

    # Inspection.

    def next_step(self, rank: int) -> PlannedStep:
        """Return the next planned step of a rank."""
        return self._next_of(rank)[1]

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
        facts = self._record(rank).tensors
        rows = [{"name": name, "shape": f.shape, "dtype": f.dtype} for name, f in facts.items()]
        return pd.DataFrame(rows, columns=["name", "shape", "dtype"])

    def inspect(self, rank: int, name: str) -> NDArray[np.generic]:
        """Return a tensor of a rank as it was after the current step.

        The result is a copy as a numpy array, of bfloat16 as float32.

        Raises:
            StepperError: the rank had no tensor of that name, or its copy is no longer kept.
        """
        record = self._record(rank)
        if name not in record.tensors:
            close = difflib.get_close_matches(name, record.tensors, 3, 0.3) or record.tensors
            known = ", ".join(list(close)[:3])
            hint = f"it had for example {known}" if known else "it had no tensors"
            raise StepperError(f"Rank {rank} had no {name!r} after step {record.number}; {hint}.")
        ((values,),) = self._ask(on_rank.inspect_stepper, record.number, name, ranks=[rank])
        if values is None:
            raise StepperError(
                f"Rank {rank} no longer keeps its tensors of step {record.number}; open the "
                f"stepper with a larger keep."
            )
        return np.asarray(values)

    def close(self) -> None:
        """Release the model on the ranks; may be called again."""
        if self._ended is None:
            with contextlib.suppress(ClusterError):
                self._run(on_rank.close_stepper)
            self._ended = "it was closed"

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

    def _tick(self, number: int) -> Tick:
        return self.clock[number % len(self.clock)]

    def _go_to(self, number: int) -> None:
        missing = number + 1 - len(self._taken)
        if missing > 0:
            first = len(self._taken)
            by_rank = self._ask(on_rank.advance_stepper, first, missing)
            for records in zip(*by_rank, strict=True):
                self._taken.append(self._snapshot(records))
        self._position = number
        self._changed()

    def _snapshot(self, records: tuple[StepRecord, ...]) -> StepSnapshot:
        number = records[0].number
        tick = self._tick(number)
        by_rank = {record.rank: record for record in records}
        did = {rank: step for rank, step in tick.steps.items() if by_rank[rank].did is not None}
        pieces = [piece for record in records for piece in record.pieces]
        self._sent.update({piece.crossing: piece for piece in pieces if piece.sent})
        planned = planned_crossings(self.plan, Tick(tick.time, did))
        wrong = differences(planned, pieces, self._sent)
        for piece in pieces:
            if not piece.sent:
                self._sent.pop(piece.crossing, None)
        return StepSnapshot(number, number // len(self.clock), tick, by_rank, wrong)

    def _ask(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        """Run a function on the ranks that have the model, and return their results."""
        results = self._run(function, *args, **options)
        if any(answer is None for answer in results):
            self._ended = f"the ranks no longer have its model, because {self._why_released()}"
            self._check_open()
        return results

    def _why_released(self) -> str:
        """Return what has become of the models: their ranks were replaced, or let them go."""
        ranks = zip(self._engines, self._cluster.ranks, strict=False)
        gone = [
            f"rank {rank}" + ("" if before.pid is None else f" (process {before.pid})")
            for rank, (before, now) in enumerate(ranks)
            if before.engine_id != now.engine_id
        ]
        if gone:
            return f"{' and '.join(gone)} had died, or stood still, and was replaced"
        return "another stepper was opened or their world has been formed anew"

    def _run(self, function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
        self._check_open()
        size = self.plan.world_size
        try:
            return self._cluster.run(function, self._name, *args, world_size=size, **options)
        except KeyboardInterrupt:
            self._ended = "it was interrupted during a step"
            raise
        except ClusterError as error:
            self._ended = str(error).strip().splitlines()[0]
            raise

    def _check_open(self) -> None:
        if self._ended is not None:
            raise StepperError(f"This stepper has ended: {self._ended}; open a new one.")

    def _record(self, rank: int) -> StepRecord:
        snapshot = self.now
        if snapshot is None:
            raise StepperError("No step has been done yet; next() does the first.")
        if rank not in snapshot.records:
            last = len(snapshot.records) - 1
            raise StepperError(f"There is no rank {rank}; the ranks are 0 to {last}.")
        return snapshot.records[rank]

    def _next_of(self, rank: int) -> tuple[int, PlannedStep]:
        """Return the tick of a rank's next step, and the step."""
        number = self._position + 1
        while rank not in self._tick(number).steps:
            number += 1
        return number, self._tick(number).steps[rank]

    def _no_match(
        self, rank: int | None, action: str | None, microbatch: int | None, module: str | None
    ) -> str:
        asked = {"rank": rank, "action": action, "microbatch": microbatch, "module": module}
        words = ", ".join(f"{name}={value!r}" for name, value in asked.items() if value is not None)
        steps = [
            step
            for tick in self.clock
            for doer, step in tick.steps.items()
            if rank is None or doer == rank
        ]
        names = ", ".join(dict.fromkeys(step.name for step in steps)) or "nothing"
        who = "the ranks do" if rank is None else f"rank {rank} does"
        count = self.plan.batch.num_microbatches
        return (
            f"No step of an iteration matches {words or 'nothing'}: {who} {names}, "
            f"for micro-batches 0 to {count - 1}."
        )

    def _changed(self) -> None:
        for listener in self._listeners:
            listener()


def _matches(
    step: PlannedStep, action: str | None, microbatch: int | None, module: str | None
) -> bool:
    return (
        action in (None, step.name)
        and microbatch in (None, step.microbatch)
        and module in (None, step.module)
    )


def _reject_replicas(config: ExperimentConfig) -> None:
    if config.strategy is not None:
        sentence = (
            "Section 'strategy': strategy.replicas of a layout cannot be stepped through yet; "
            "leave the section out to step through one replica."
        )
        raise ConfigError([Problem("strategy", "replicas", config.replicas, sentence)])
