"""A training step that pauses before every step of its schedule, on one rank."""

from __future__ import annotations

import gc
import time
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import ExperimentConfig
from mimokit.config.user_code import NO_CODE, UserCode
from mimokit.engine.data.sources import DataSource
from mimokit.engine.device import close_groups_since, open_groups
from mimokit.engine.stepper.recorder import Watcher
from mimokit.engine.stepper.suspended import code_to_come, executor_of, tensors_of
from mimokit.engine.steps import Step, StepGenerator
from mimokit.engine.training.loop import StepResult, prepare, training_step
from mimokit.planning.stepper import PlannedStep, clock_of
from mimokit.planning.stepper.crossings import StepRecord, TensorFacts
from mimokit.planning.types import LayoutPlan


class StepFailedError(RuntimeError):
    """A step raised an error; the message contains both."""


@dataclass(frozen=True)
class _Kept:
    """A copy of a tensor, and a reference to the original."""

    copy: torch.Tensor
    original: weakref.ref[torch.Tensor]
    version: int


class RankSession:
    """The model of a rank and its paused training step.

    Args:
        keep: number of ticks for which copies of the tensors are kept.
    """

    def __init__(
        self,
        plan: LayoutPlan,
        config: ExperimentConfig,
        source: DataSource,
        keep: int,
        code: UserCode,
    ) -> None:
        """Build model, optimizer and data. Collective."""
        self._groups = open_groups()
        self.state = prepare(plan, config, source, code=code)
        self.clock = clock_of(plan)
        self._rank = dist.get_rank()
        self._world = dist.group.WORLD
        self._watcher = Watcher(self.state.model)
        self._keep = keep
        self._kept: OrderedDict[int, dict[str, _Kept]] = OrderedDict()
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
                number, self._rank, None, self._then(), tensors=self._remember(number)
            )
        return self._do(number, planned)

    def _is_next(self, planned: PlannedStep) -> bool:
        """Return whether a planned step is next; a rank skips steps for which it has no data.

        Raises:
            StepFailedError: the next step of this rank is not in the plan at this place.
        """
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
            self._pending = next(self._schedule)
        except StopIteration as end:
            self._pending = None
            result = _figures(end.value)
        except Exception as error:
            raise StepFailedError(
                f"{type(error).__name__} in the step {planned}: {error}"
            ) from error
        seconds = time.perf_counter() - begin
        pieces = watcher.take()
        return StepRecord(
            number=number,
            rank=self._rank,
            did=str(planned),
            then=self._then(),
            seconds=seconds,
            code=pieces[0].code if pieces else code,
            pieces=pieces,
            tensors=self._remember(number),
            result=result,
        )

    def _then(self) -> str:
        return "" if self._pending is None else str(_in_words(self._pending))

    def _remember(self, number: int) -> dict[str, TensorFacts]:
        """Copy the tensors, except those that have not changed since the last tick."""
        before = next(reversed(self._kept.values()), {})
        now = {name: _copy(tensor, before.get(name)) for name, tensor in self.tensors().items()}
        self._kept[number] = now
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return {
            name: TensorFacts(tuple(kept.copy.shape), str(kept.copy.dtype).removeprefix("torch."))
            for name, kept in now.items()
        }

    def inspect(self, number: int, name: str) -> Any:
        """Return a tensor as it was after a tick, as a numpy array; None where it is not kept."""
        kept = self._kept.get(number, {}).get(name)
        if kept is None:
            return None
        tensor = kept.copy
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()

    def close(self) -> None:
        """Release the model. Collective while its world exists."""
        self._schedule.close()
        self._kept.clear()
        for module in self.state.model.modules().values():
            module.release()
        if self.intact:
            close_groups_since(self._groups)


def _same(planned: PlannedStep, step: Step) -> bool:
    wanted = (planned.name, planned.module, planned.microbatch)
    return wanted == (step.name, step.module, step.microbatch)


def _in_words(step: Step) -> PlannedStep:
    return PlannedStep(step.name, step.module, step.microbatch)


def _copy(tensor: torch.Tensor, before: _Kept | None) -> _Kept:
    version = tensor._version
    if before is not None and before.original() is tensor and before.version == version:
        return before
    return _Kept(tensor.detach().to("cpu", copy=True), weakref.ref(tensor), version)


def _figures(result: StepResult) -> dict[str, float]:
    return {
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "num_tokens": float(result.num_tokens),
    }


_open: dict[str, RankSession] = {}
"""Name -> the session that is open on this rank, at most one."""


def open_session(
    name: str,
    plan: LayoutPlan,
    config: ExperimentConfig,
    source: DataSource,
    keep: int,
    code: UserCode = NO_CODE,
) -> None:
    """Close the open session and open a new one. Collective."""
    close_session()
    _open[name] = RankSession(plan, config, source, keep, code)


def close_session(name: str | None = None) -> None:
    """Close the open session, if there is one and it has the given name."""
    names = [each for each in _open if name in (None, each)]
    for each in names:
        _open.pop(each).close()
    if names:
        gc.collect()  # the model has reference cycles, and each of its groups keeps threads


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
