"""A training step that pauses before every step of its schedule, on one rank."""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from mimokit.engine.device import close_groups_since, open_groups
from mimokit.engine.inside_steps import Inside, listening
from mimokit.engine.run_of_rank import RunOfRank
from mimokit.engine.stepper.inputs import InputWatch
from mimokit.engine.stepper.recorder import Watcher
from mimokit.engine.stepper.rows import CrossingRows, KeptRows, print_of
from mimokit.engine.stepper.suspended_schedule import code_to_come, executor_of, tensors_of
from mimokit.engine.stepper.tensor_copies import KeptTensors
from mimokit.engine.steps import Step, StepGenerator
from mimokit.engine.training.optimizer_step import StepResult, training_step
from mimokit.engine.training.resuming import go_on
from mimokit.planning.stepper import Crossing, PlannedStep, SeenCrossing, clock_of
from mimokit.planning.stepper.crossings import PieceRows, StepRecord
from mimokit.planning.stepper.pictures import TensorPicture, TensorSamples, Window
from mimokit.step_kinds import StepKind

MOST_LINES = 1 << 12
"""Of a tensor of which a fingerprint is taken."""


class StepFailedError(RuntimeError):
    """A step raised an error; the message contains both."""


class RankSession:
    """The model of a rank and its paused training step.

    Args:
        keep: number of ticks for which copies of the tensors are kept.
    """

    def __init__(self, run: RunOfRank, keep: int) -> None:
        """Build model, optimizer and data. Collective."""
        self._groups = open_groups()
        self.state = go_on(run)
        self.clock = clock_of(run.plan)
        self._rank = dist.get_rank()
        self._world = dist.group.WORLD
        self._watcher = Watcher(self.state.model)
        self._inputs: list[tuple[SeenCrossing, CrossingRows]] = []
        self._input_watch = None
        if self.state.model.forward_step is None:
            self._input_watch = InputWatch(self.state, self._note_input)
        self._inside: dict[str, tuple[int, float]] = {}
        self._kept, self._rows = KeptTensors(keep), KeptRows(keep)
        self._schedule: StepGenerator[StepResult] = training_step(self.state)
        self._pending: Step | None = None

    @property
    def intact(self) -> bool:
        """Whether the world in which the model was built still exists."""
        return dist.is_initialized() and dist.group.WORLD is self._world

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors of the paused step by name."""
        return tensors_of(self._schedule)

    def advance(self, first: int, count: int) -> list[StepRecord]:
        """Run the steps of this rank in `count` ticks from `first` on.

        Raises:
            StepFailedError: a step raised an error, or differs from the plan.
        """
        return [self._tick(number) for number in range(first, first + count)]

    def _tick(self, number: int) -> StepRecord:
        planned = self.clock[number % len(self.clock)].steps.get(self._rank)
        if number % len(self.clock) == 0:
            self._schedule = training_step(self.state)
            self._pending = next(self._schedule)
        if planned is None or not self._is_next(planned):
            return StepRecord(
                number,
                self._rank,
                None,
                self._then(),
                tensors=self._kept.remember(number, self.tensors()),
            )
        return self._do(number, planned)

    def _is_next(self, planned: PlannedStep) -> bool:
        """Return whether a planned step is next; a rank skips steps for which it has no data."""
        pending = self._pending
        if pending is not None and _same(planned, pending):
            return True
        if planned.module in self.state.model.bridges:
            return False
        words = "nothing more" if pending is None else str(_in_words(pending))
        raise StepFailedError(f"the plan says {planned}, but the rank is about to do {words}")

    def _do(self, number: int, planned: PlannedStep) -> StepRecord:
        watcher, code = self._watcher, code_to_come(self._schedule, self._pending)
        watcher.microbatch = planned.microbatch
        watcher.executor = executor_of(self._schedule)
        result: dict[str, float] = {}
        begin = time.perf_counter()
        try:
            with self._watched(planned):
                self._pending = next(self._schedule)
        except StopIteration as end:
            self._pending = None
            result = _figures(end.value)
        except Exception as error:
            raise StepFailedError(
                f"{type(error).__name__} in the step {planned}: {error}"
            ) from error
        seconds = time.perf_counter() - begin
        pieces, rows = watcher.take()
        inputs = dict(self._inputs)
        of_inputs = {(piece.crossing, piece.sent): kept for piece, kept in inputs.items()}
        self._rows.remember(number, {**rows, **of_inputs})
        return StepRecord(
            number=number,
            rank=self._rank,
            did=str(planned),
            then=self._then(),
            seconds=seconds,
            code=pieces[0].code if pieces else code,
            pieces=pieces,
            tensors=self._kept.remember(number, self.tensors()),
            result=result,
            inputs=tuple(inputs),
            inside=self._inside,
        )

    @contextmanager
    def _watched(self, planned: PlannedStep) -> Iterator[None]:
        self._inputs, self._inside = [], {}
        watch = self._input_watch
        if watch is not None and planned.name == StepKind.FORWARD:
            watch.microbatch = planned.microbatch
        try:
            with listening(self._heard):
                yield
        finally:
            if watch is not None:
                watch.microbatch = None

    def _note_input(self, piece: SeenCrossing, rows: CrossingRows) -> None:
        self._inputs.append((piece, rows))

    def _heard(self, kind: Inside, begun: float, ended: float) -> None:
        count, seconds = self._inside.get(str(kind), (0, 0.0))
        self._inside[str(kind)] = count + 1, seconds + ended - begun

    def _then(self) -> str:
        return "" if self._pending is None else str(_in_words(self._pending))

    # What a client asks for between two ticks.

    def inspect(self, number: int, name: str) -> NDArray[np.generic] | None:
        """Return a tensor as it was after a tick; None where it is not kept."""
        tensor = self._kept.get(number, name)
        if tensor is None:
            return None
        return np.asarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())

    def pictures(
        self, number: int, samples: Mapping[str, TensorSamples]
    ) -> dict[str, TensorPicture] | None:
        """Return a small picture of every tensor after a tick; None where they are not kept."""
        return self._kept.pictures(number, samples)

    def picture(
        self, number: int, name: str, samples: TensorSamples | None, window: Window | None
    ) -> TensorPicture | None:
        """Return a tensor after a tick, or a window of it; None where it is not kept."""
        if self._kept.get(number, name) is None:
            return None
        return self._kept.drawn(number, name, samples, window)

    def part(
        self,
        number: int,
        name: str,
        samples: Mapping[int, TensorSamples | None],
        most: tuple[int, int],
    ) -> tuple[TensorPicture, str] | None:
        """Return this rank's part of a whole tensor, and a fingerprint; None if not kept."""
        tensor = self._kept.get(number, name)
        if tensor is None:
            return None
        picture = self._kept.drawn(number, name, samples[self._rank], most=most)
        return picture, print_of(
            tensor[:: 1 + len(tensor) // MOST_LINES] if tensor.dim() else tensor
        )

    def rows(
        self, number: int, pieces: Mapping[int, Sequence[tuple[Crossing, bool]]]
    ) -> list[PieceRows | None]:
        """Return the rows of pieces of this rank, last seen up to a tick; None where not kept."""
        asked = pieces[self._rank]
        return [self._rows.get(number, crossing, sent) for crossing, sent in asked]

    def prints(self, number: int) -> dict[str, str] | None:
        """Return fingerprints of all tensors as a tick computed them; None if not kept."""
        return self._kept.prints(number)

    def edit(
        self, number: int, name: str, values: NDArray[Any], index: tuple[int, ...] | None
    ) -> None:
        """Write values into a tensor that the next step reads, after the tick that was last done.

        What autograd has noted of the tensor stays valid; its backward reads the new values.
        """
        tensor = self.tensors()[name]
        target = tensor.data if index is None else tensor.data[index]
        target.copy_(torch.as_tensor(values).to(tensor.dtype))
        self._kept.edited(number, name, tensor)

    def close(self) -> None:
        """Release the model. Collective while its world exists.

        Hooks on tensors between two ranks refer to this session through C++: what it keeps of a
        step that is not at its end would keep the graph of that step, and so on round.
        """
        self._schedule.close()
        self._pending, self._watcher.executor = None, None
        self._kept.clear()
        self._rows.clear()
        for module in self.state.model.modules().values():
            module.release()
        if self.intact:
            close_groups_since(self._groups)


def _same(planned: PlannedStep, step: Step) -> bool:
    wanted = (planned.name, planned.module, planned.microbatch)
    return wanted == (step.name, step.module, step.microbatch)


def _in_words(step: Step) -> PlannedStep:
    return PlannedStep(step.name, step.module, step.microbatch)


def _figures(result: StepResult) -> dict[str, float]:
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "num_tokens": float(result.num_tokens),
    }


_open: dict[str, RankSession] = {}
"""Name -> the session that is open on this rank, at most one."""


def open_session(name: str, run: RunOfRank, keep: int) -> None:
    """Close the open session and open a new one. Collective."""
    close_session()
    _open[name] = RankSession(run, keep)


def close_session(name: str | None = None) -> None:
    """Close the open session, if there is one and it has the given name."""
    names = [each for each in _open if name in (None, each)]
    for each in names:
        _open.pop(each).close()
    if names:
        gc.collect()  # the model has reference cycles, and each of its groups keeps threads
        gc.collect()  # a graph that the first has freed kept others


def session_of(name: str) -> RankSession | None:
    """Return the session of that name; None if it is closed, or its world is gone."""
    session = _open.get(name)
    return session if session is not None and session.intact else None


def current() -> RankSession:
    """Return the open session.

    Raises:
        RuntimeError: no session is open on this rank, or its world is gone.
    """
    for session in _open.values():
        if session.intact:
            return session
    raise RuntimeError("No stepper is open on this rank, or its world has been formed anew.")
