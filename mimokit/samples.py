"""Records that ranks send, their columns, and the reduction of ranks to one row.

A column is a field of `StepSample` or `ModuleSample` and is written nowhere else: tables, CSV files
and the browser read names, order and reduction from here. This file is plain Python, because the
notebook, the engines and the command line use it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

Row: TypeAlias = dict[str, float]
Event: TypeAlias = tuple[str, str | None, int | None, float, float]
"""(name of the step, module, micro-batch, start, stop), seconds on the clock of rank 0."""


class OverRanks(StrEnum):
    """Reduction of the values of all ranks to one; the members are pandas' names for it.

    A step ends with its last rank: the parts of its time are those of the rank with the largest
    `total_time`, so that they add up to it, and of a module that it lacks, those of the slowest
    rank that has it. Memory takes the largest value. Rates divide work of the world by the step
    time: the smallest is the slowest rank's. Loss and gradient norm are the same number on every
    rank of a replica: that of its lowest rank is taken, as a mean would add rounding, and the mean
    of those over the replicas of the layout. What one rank achieves becomes a mean, as in "FLOP/s
    per GPU". For SLOWEST and REPLICAS pandas has no name.
    """

    SLOWEST = "slowest"
    LARGEST = "max"
    SMALLEST = "min"
    FIRST = "first"
    REPLICAS = "replicas"
    MEAN = "mean"


def _column(over: OverRanks, *, live: bool = False) -> Any:
    """Return a field for a column of numbers: None if not measured; `live`: a browser draws it."""
    return field(default=None, metadata={"over": over, "live": live})


@dataclass(frozen=True, slots=True)
class ModuleSample:
    """What a rank measured of one module in one step: seconds, and rates of all ranks together.

    `forward_time` of module `images` is the column `images_forward_time`. `busiest_expert` is the
    largest load of one expert of one layer, see `expert_column`.
    """

    forward_time: float | None = _column(OverRanks.SLOWEST, live=True)
    backward_time: float | None = _column(OverRanks.SLOWEST, live=True)
    communication_time: float | None = _column(OverRanks.SLOWEST)
    data_time: float | None = _column(OverRanks.SLOWEST)
    tokens_per_sec: float | None = _column(OverRanks.SMALLEST, live=True)
    optimizer_time: float | None = _column(OverRanks.SLOWEST)
    collective_time: float | None = _column(OverRanks.SLOWEST)
    point_to_point_time: float | None = _column(OverRanks.SLOWEST)
    waiting_time: float | None = _column(OverRanks.SLOWEST)
    samples_per_sec: float | None = _column(OverRanks.SMALLEST)
    flops_per_sec: float | None = _column(OverRanks.MEAN)
    busiest_expert: float | None = _column(OverRanks.LARGEST)


@dataclass(frozen=True, slots=True)
class StepSample:
    """What one rank measured in one optimizer step; the fields are the columns, in file order.

    Times are seconds, memory is bytes, rates are those of all ranks together except for `_per_rank`
    and `flops_per_sec` (of this rank). `model_flop_utilisation` is the share of all ranks' peak, 0
    to 1. `warmup` is 1.0 in the first iterations, which averages leave out, else 0.0. `time` is the
    end of the step in Unix seconds. Without the performance monitor only rank, iteration, time,
    loss, grad_norm, validation_loss, warmup and replica have values; `PerformanceMonitor` says
    more. `replica` is that of the rank under a strategy between replicas, or its node in a fit.

    Attributes:
        modules: module -> its measurements.
        further: other columns, such as phases timed by a user's training loop.
    """

    iteration: int = field(metadata={"over": OverRanks.FIRST, "live": True})
    total_time: float | None = _column(OverRanks.LARGEST, live=True)
    forward_time: float | None = _column(OverRanks.SLOWEST)
    backward_time: float | None = _column(OverRanks.SLOWEST)
    optimizer_time: float | None = _column(OverRanks.SLOWEST, live=True)
    tokens_per_sec: float | None = _column(OverRanks.SMALLEST, live=True)
    samples_per_sec: float | None = _column(OverRanks.SMALLEST)
    memory_allocated: int | None = _column(OverRanks.LARGEST, live=True)
    memory_reserved: int | None = _column(OverRanks.LARGEST)
    loss: float | None = _column(OverRanks.REPLICAS, live=True)
    communication_time: float | None = _column(OverRanks.SLOWEST, live=True)
    data_time: float | None = _column(OverRanks.SLOWEST, live=True)
    tokens_per_sec_per_rank: float | None = _column(OverRanks.SMALLEST)
    samples_per_sec_per_rank: float | None = _column(OverRanks.SMALLEST)
    grad_norm: float | None = _column(OverRanks.REPLICAS)
    report_time: float | None = _column(OverRanks.SLOWEST)
    time: float = field(default=0.0, metadata={"over": OverRanks.LARGEST, "live": True})
    rank: int = field(default=0, metadata={"over": OverRanks.FIRST, "live": True})
    collective_time: float | None = _column(OverRanks.SLOWEST)
    point_to_point_time: float | None = _column(OverRanks.SLOWEST)
    waiting_time: float | None = _column(OverRanks.SLOWEST, live=True)
    memory_peak: int | None = _column(OverRanks.LARGEST, live=True)
    validation_loss: float | None = _column(OverRanks.REPLICAS, live=True)
    flops_per_sec: float | None = _column(OverRanks.MEAN)
    model_flop_utilisation: float | None = _column(OverRanks.SMALLEST, live=True)
    warmup: float | None = _column(OverRanks.FIRST)
    replica: int | None = _column(OverRanks.FIRST, live=True)
    modules: Mapping[str, ModuleSample] = field(default_factory=dict)
    further: Mapping[str, float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether the performance monitor was on."""
        return self.total_time is not None

    def row(self) -> Row:
        """Return column -> value, without columns that have none."""
        row = dict(zip(STEP_COLUMNS, _step_values(self), strict=True))
        for module, sample in self.modules.items():
            for name, value in zip(MODULE_COLUMNS, _module_values(sample), strict=True):
                row[module_column(module, name)] = value
        row.update(self.further)
        return {name: value for name, value in row.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSample:
    """A test on held-out samples; the fields are the columns, in file order.

    Attributes:
        exact_match: share of samples with every answer token right, between 0 and 1.
        digit_accuracy: share of answer tokens that are right.
        loss: mean over answer tokens.
        chance: exact match of guessing; None if it is not known.
    """

    rank: int = 0
    iteration: int
    time: float
    task: str
    exact_match: float
    digit_accuracy: float
    loss: float
    chance: float | None
    samples: int

    def row(self) -> dict[str, Any]:
        """Return column -> value."""
        return {name: getattr(self, name) for name in EVALUATION_COLUMNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswersSample:
    """What the model answers to the first held-out samples, from the rank that has the logits.

    Attributes:
        iteration: after which the model was tested.
        answers: (number of the sample in the test set, the tokens of its answer).
    """

    rank: int
    iteration: int
    answers: tuple[tuple[int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSample:
    """Start and end of the steps of one iteration on one rank.

    Attributes:
        clock_offset: seconds added to the rank's clock.
        clock_error: the true offset is at most this far from `clock_offset`, in seconds.
        inside: what took place inside these steps: keys and values that are gathered, tokens that
            are dispatched to experts and combined, layers that are recomputed, and how gradients
            are reduced; with module and micro-batch of the step.
    """

    rank: int
    iteration: int
    clock_offset: float
    clock_error: float
    events: tuple[Event, ...]
    inside: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthSample:
    """What a rank holds after an iteration.

    Attributes:
        iteration: after which.
        digests: tensor or shard -> digest of its bits and their places; ranks of one replica of a
            layout that have a name in common must have the same.
        not_finite: those with an entry that is not finite.
        random_state: digest of the state of torch's generator, which the ranks of a tensor parallel
            group must have alike.
        states_inside: module -> digest of the random state of its tensor parallel regions, which
            must differ between the ranks of a tensor parallel group, and be alike in its replicas.
        collectives: module -> collectives of its tensor parallel group in the iteration; where
            modules share a group, the first of them has those of all.
        held: module -> part -> bytes in the first iteration: weights, gradients, optimizer (main
            weights and states), activations (the most that autograd kept); empty if not measured.
    """

    rank: int
    iteration: int
    digests: Mapping[str, int]
    not_finite: Sequence[str] = ()
    random_state: int = 0
    states_inside: Mapping[str, int] = field(default_factory=dict)
    collectives: Mapping[str, int] = field(default_factory=dict)
    held: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSample:
    """A part of a file of PyTorch's profiler, sent to the process that writes the run's folder.

    Parts come in order; `name` is that of the file in `PROFILES`, `content` are bytes of gzip.
    """

    rank: int
    name: str
    part: int
    parts: int
    content: bytes


@dataclass(frozen=True, slots=True)
class CalibrationSample:
    """Names the part that a calibration measures next."""

    part: str


@dataclass(frozen=True, slots=True)
class RankHardware:
    """The machine of a rank.

    Attributes:
        accelerator: the name of its GPU, None on a CPU.
        load: processes that wanted a core in the minute before the run; None if not known.
    """

    cpu: str
    cores: int
    memory_bytes: int
    accelerator: str | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """Where a rank runs; it sends this once, before its first step.

    Attributes:
        peak_flops_per_sec: what its device computes at most; None if it is not known.
    """

    rank: int
    host: str
    hardware: RankHardware
    peak_flops_per_sec: float | None = None


Sample: TypeAlias = (
    StepSample
    | EvaluationSample
    | AnswersSample
    | TraceSample
    | HealthSample
    | ProfileSample
    | CalibrationSample
    | RankFacts
)
Emit: TypeAlias = Callable[[Sample], None]

_STEP_FIELDS: Mapping[str, Field[Any]] = {
    column.name: column
    for column in fields(StepSample)
    if column.name not in ("modules", "further")
}
_MODULE_FIELDS: Mapping[str, Field[Any]] = {column.name: column for column in fields(ModuleSample)}

STEP_COLUMNS = tuple(_STEP_FIELDS)
"""Columns of every step table, in file order; those of modules follow."""
MODULE_COLUMNS = tuple(_MODULE_FIELDS)
"""Columns of a step table for every module; see `module_column`."""
_step_values = attrgetter(*STEP_COLUMNS)
_module_values = attrgetter(*MODULE_COLUMNS)
EVALUATION_COLUMNS = tuple(column.name for column in fields(EvaluationSample))
"""Columns of every evaluation table."""
TEXT_COLUMNS = ("task",)
"""The columns of text."""
NEEDED_STEP_COLUMNS = ("iteration", "total_time", "loss")
NEEDED_EVALUATION_COLUMNS = ("iteration", "exact_match")
"""A table must have these columns; any other one may be absent."""
OF_A_RANK = ("rank", "replica")
"""Columns that say whose row it is, and that the row of all ranks lacks."""
TOGETHER_COLUMNS = tuple(name for name in STEP_COLUMNS if name not in OF_A_RANK)
"""Columns of the row of all ranks."""
LIVE_STEP_COLUMNS = tuple(name for name, column in _STEP_FIELDS.items() if column.metadata["live"])
LIVE_MODULE_COLUMNS = tuple(
    name for name, column in _MODULE_FIELDS.items() if column.metadata["live"]
)
"""The columns that are sent to a browser during a run."""


def module_column(module: str, column: str) -> str:
    """Return the name of a column of a module in a table."""
    return f"{module}_{column}"


MTP_LOSS = "mtp_loss"
"""Column of the mean loss of the tokens that multi-token prediction predicts."""

RECONSTRUCTION_LOSS = "reconstruction_loss"
"""Of a decoder of images or sound: the mean squared error of its numbers, without the weight."""


def expert_column(module: str, expert: int) -> str:
    """Return the column of the load of an expert, among the further columns of a step.

    It is the tokens that the expert took in the layers of all ranks together, over those that it
    would take if all took equally many and dropped none.
    """
    return module_column(module, f"expert_{expert}_load")


_EXPERT_COLUMN = re.compile(expert_column(r"(?P<module>.+)", 0).replace("0", r"(?P<expert>\d+)"))


def experts_of(columns: Iterable[str]) -> dict[str, dict[int, str]]:
    """Return module -> expert -> its column, of the modules with such columns in a table."""
    names: dict[str, dict[int, str]] = {}
    for name in columns:
        match = _EXPERT_COLUMN.fullmatch(name)
        if match is not None:
            names.setdefault(match["module"], {})[int(match["expert"])] = name
    return names


def modules_of(columns: Iterable[str]) -> list[str]:
    """Return the modules with columns in a table, in the order of the columns."""
    suffix = module_column("", "forward_time")
    return [name.removesuffix(suffix) for name in columns if name.endswith(suffix)]


def over_ranks(column: str) -> OverRanks:
    """Return the reduction of a column over ranks; of an unknown column the slowest rank's."""
    known = _STEP_FIELDS.get(column)
    if known is None:
        ends = (
            definition for name, definition in _MODULE_FIELDS.items() if column.endswith(f"_{name}")
        )
        known = next(ends, None)
    over: OverRanks = OverRanks.SLOWEST if known is None else known.metadata["over"]
    return over


class Iterations:
    """The steps of each iteration together, of ranks that report theirs in order.

    Args:
        ranks: how many report an iteration; None: it is not known.
    """

    def __init__(self, ranks: int | None = None) -> None:
        self._ranks = ranks
        self._begun: dict[int, list[StepSample]] = defaultdict(list)

    def add(self, sample: StepSample) -> list[list[StepSample]]:
        """Add a step, and return the iterations that are over, in order.

        That are those that all ranks have reported, and those before: what ranks have not reported
        of these, they never will.
        """
        group = self._begun[sample.iteration]
        group.append(sample)
        return self._out(sample.iteration) if len(group) == self._ranks else []

    def rest(self) -> list[list[StepSample]]:
        """Return the other iterations, in order, when no more steps will come."""
        return self._out(max(self._begun, default=0))

    def _out(self, last: int) -> list[list[StepSample]]:
        over = sorted(iteration for iteration in self._begun if iteration <= last)
        return [self._begun.pop(iteration) for iteration in over]


def by_iteration(
    samples: Iterable[StepSample], ranks: int | None = None
) -> Iterator[list[StepSample]]:
    """Yield the steps of each iteration, in order of iterations.

    Args:
        ranks: how many report an iteration, each in order: then no more is held than they are
            apart. None: steps are in any order.
    """
    iterations = Iterations(ranks)
    for sample in samples:
        yield from iterations.add(sample)
    yield from iterations.rest()


def reduce_ranks(group: Iterable[StepSample]) -> Row:
    """Return the row of an iteration, with every column that any rank has."""
    values: dict[str, list[_Measured]] = defaultdict(list)
    for sample in sorted(group, key=lambda sample: sample.rank):
        seconds = sample.total_time
        if seconds is None or math.isnan(seconds):
            seconds = -1.0
        for name, value in sample.row().items():
            values[name].append(_Measured(seconds, sample.replica, value))
    for name in OF_A_RANK:
        values.pop(name, None)
    return {name: _reduce(over_ranks(name), measured) for name, measured in values.items()}


class _Measured(NamedTuple):
    """A value of a rank, with the seconds of its step and its replica."""

    seconds: float
    replica: int | None
    value: float


def _reduce(over: OverRanks, values: Sequence[_Measured]) -> float:
    known = [measured for measured in values if not math.isnan(measured.value)]
    numbers = [measured.value for measured in known]
    if not numbers:
        return math.nan
    if over is OverRanks.FIRST:
        return numbers[0]
    if over is OverRanks.SLOWEST:
        return max(known, key=attrgetter("seconds")).value
    if over is OverRanks.REPLICAS:
        numbers = list({measured.replica: measured.value for measured in reversed(known)}.values())
    if over in (OverRanks.MEAN, OverRanks.REPLICAS):
        return math.fsum(numbers) / len(numbers)
    return max(numbers) if over is OverRanks.LARGEST else min(numbers)


_STEP, _OTHER = "step", "sample"


def to_wire(sample: Sample) -> dict[str, Any]:
    """Return a sample as a message: a mapping, where a step is values without names of columns."""
    if not isinstance(sample, StepSample):
        return {_OTHER: sample}
    modules = {name: _module_values(measured) for name, measured in sample.modules.items()}
    return {_STEP: (_step_values(sample), modules, sample.further)}


def from_wire(message: Mapping[str, Any]) -> Sample:
    """Return the sample of a message of `to_wire`.

    Raises:
        KeyError: it contains none.
    """
    if _STEP not in message:
        sample: Sample = message[_OTHER]
        return sample
    values, modules, further = message[_STEP]
    of_modules = {name: ModuleSample(*measured) for name, measured in modules.items()}
    return StepSample(*(*values, of_modules, further))
