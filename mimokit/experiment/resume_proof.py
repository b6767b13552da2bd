"""Proves that a resume goes on as if the run had not stopped, and names what was lost.

A run trains, saves and trains on. Another one loads and trains the same steps. Compared are the
state before saving and after loading, entry by entry; the samples; and losses and weights after.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig, check_runnable
from mimokit.config.checked_code import checked_code
from mimokit.config.runtime import PRECISION_OF_RUNS, CheckpointConfig
from mimokit.config.user_code import UserCode
from mimokit.experiment.prepare import Config, check_room, finalized_copy
from mimokit.experiment.reference import for_verification
from mimokit.experiment.resume_on_rank import resume_rank
from mimokit.experiment.resume_report import ResumeReport
from mimokit.experiment.trainable import check_trainable
from mimokit.experiment.verification import TOLERANCE
from mimokit.experiment.verification_report import relative
from mimokit.planning import checkpoints, plan_layout
from mimokit.units import counted

if TYPE_CHECKING:
    from mimokit.engine.data.sources import DataSource
    from mimokit.engine.verify.resume import RankRecord, StateRecord

BEFORE, AFTER = 3, 5
"""Steps before and after the checkpoint."""

MOST_NOISE = 0.05
"""Relative difference that fewer bits than fp32 may make under another layout, where sums are
rounded in another order. What was loaded is compared exactly in any precision."""

_ON_RANK = re.compile(r" on rank \d+$")
_WEIGHT = "weight"
"""`mimokit.engine.verify.resume.WEIGHT`, which imports torch."""
_Tensors: TypeAlias = "dict[tuple[str, str, str], np.ndarray]"


def resume_check(
    cluster: EngineCluster,
    config: Config,
    data: DataSource | None = None,
    *,
    into: Config | None = None,
    tolerance: float = TOLERANCE,
) -> ResumeReport:
    """Prove that a run of one layout goes on under another from its checkpoint.

    The checkpoint goes into a new folder, which is removed, in `runtime.checkpoint.directory` of
    the config, or else in the folder for temporary files of this host. All ranks share it.

    Args:
        cluster: with at least as many engines as the larger layout has ranks.
        into: the layout to go on with, of the same model; None: the same one, bit for bit.
        tolerance: largest relative difference of losses and weights after the steps that follow;
            0 under the same layout. In fewer bits than fp32 `MOST_NOISE`.

    Raises:
        ConfigError: a config is wrong or cannot run, or they are of different models or data.
        RankError: a rank fails.
    """
    ready = finalized_copy(config)
    saved = for_verification(ready)
    resumed = saved if into is None else for_verification(finalized_copy(into))
    for layout in (saved, resumed):
        check_runnable(_changed(layout, checkpoint=CheckpointConfig()))
        check_room(layout, len(cluster))
    code = checked_code(saved, data=data)
    if resumed.runtime.precision not in (None, PRECISION_OF_RUNS):
        tolerance = max(tolerance, MOST_NOISE)
    if checkpoints.layout_json(saved) == checkpoints.layout_json(resumed):
        tolerance = 0.0
    with _folder(ready) as folder:
        before = _run(cluster, _saving(saved, folder), code, BEFORE)
        going_on = _resuming(resumed, folder)
        check_trainable(going_on)
        after = _run(cluster, going_on, code, None)
    replicas = 1 if saved.strategy is None else saved.strategy.replicas
    return ResumeReport(
        name=resumed.name,
        saved_layout=checkpoints.layout_text(checkpoints.layout_json(saved)),
        layout=checkpoints.layout_text(checkpoints.layout_json(resumed)),
        tolerance=tolerance,
        findings=tuple(_of_each_replica(before, after, tolerance, replicas)),
        first=BEFORE,
        losses=tuple(after[0].losses),
        expected=tuple(before[0].losses),
    )


@contextmanager
def _folder(config: ExperimentConfig) -> Iterator[Path]:
    """Yield the folder for the checkpoint; what a killed process leaves, the next run removes."""
    settings = config.runtime.checkpoint
    shared = None if settings is None else settings.directory
    try:
        if shared is not None:
            Path(shared).mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(".resume" + checkpoints.PARTIAL, ".", shared)
    except OSError as error:
        why = f"it cannot be written ({error.strerror or error}); choose another folder"
        raise checkpoints.unusable(Path(shared or tempfile.gettempdir()), why) from None
    with temporary as folder:
        yield Path(folder)


def _run(
    cluster: EngineCluster, config: ExperimentConfig, code: UserCode, before: int | None
) -> list[RankRecord]:
    plan = plan_layout(config)
    records: list[RankRecord] = cluster.run(
        resume_rank, plan, config, before, AFTER, code, world_size=plan.world_size
    )
    return records


def _saving(config: ExperimentConfig, folder: Path) -> ExperimentConfig:
    checkpoint = CheckpointConfig(directory=str(folder.absolute()))
    return _changed(config, checkpoint=checkpoint, resume_from=None)


def _resuming(config: ExperimentConfig, folder: Path) -> ExperimentConfig:
    saved = folder.absolute() / checkpoints.folder_of_step(BEFORE)
    return _changed(config, checkpoint=None, resume_from=str(saved))


def _changed(config: ExperimentConfig, **values: object) -> ExperimentConfig:
    runtime = config.runtime.model_copy(update={**values, "num_iterations": BEFORE + AFTER})
    return config.model_copy(update={"runtime": runtime})


def _of_each_replica(
    before: Sequence[RankRecord], after: Sequence[RankRecord], tolerance: float, replicas: int
) -> Iterator[str]:
    for replica in range(replicas):
        own, now = (_ranks_of(records, replica, replicas) for records in (before, after))
        named = f"Replica {replica}: " if replicas > 1 else ""
        yield from (f"{named}{finding}" for finding in find_differences(own, now, tolerance))


def _ranks_of(records: Sequence[RankRecord], replica: int, replicas: int) -> Sequence[RankRecord]:
    ranks = len(records) // replicas
    return records[replica * ranks : (replica + 1) * ranks]


def find_differences(
    before: Sequence[RankRecord], after: Sequence[RankRecord], tolerance: float
) -> Iterator[str]:
    """Yield a sentence for everything that a resume has not brought back.

    Args:
        before: of every rank of the run that was saved and trained on.
        after: of every rank of the run that goes on.
        tolerance: see `resume_check`; 0: the layouts are the same.
    """
    yield from state_differences(
        [record.saved for record in before], [record.saved for record in after], tolerance == 0.0
    )
    yield from _sample_differences(before, after)
    pairs = list(zip(before[0].losses, after[0].losses, strict=True))
    wrong = [step for step, (own, other) in enumerate(pairs) if relative(other, own) > tolerance]
    if wrong:
        own, other = pairs[wrong[0]]
        yield (
            f"The loss of step {wrong[0] + 1} after the checkpoint is {other:.8g}, without a stop "
            f"{own:.8g}."
        )
    ended = _wholes(record.ended for record in before)
    worst = 0.0, ""
    for record in after:
        for key, held in record.ended.shards.items():
            expected = held.shard.of(ended[key]) if key[0] == _WEIGHT and key in ended else None
            if expected is not None and expected.shape == held.values.shape:
                scale = float(np.abs(ended[key]).max()) or 1.0
                difference = float(np.abs(held.values - expected).max(initial=0.0)) / scale
                worst = max(worst, (difference, _path(key)))
    if worst[0] > tolerance:
        yield f"After the steps that follow, {worst[1]} differs by {worst[0]:.1e} of its largest."


def state_differences(
    before: Sequence[StateRecord], after: Sequence[StateRecord], same_layout: bool
) -> Iterator[str]:
    """Yield a sentence for everything of a state that is not loaded as it was saved."""
    yield from _count_differences(before, after)
    yield from _tensor_differences(_wholes(before), after)
    for name in sorted({name for record in after for name in record.rounded}):
        yield f"{name} is not its main weight, rounded."
    for what, own in before[0].progress.items():
        if (now := after[0].progress[what]) != own:
            yield f"The {what.replace('_', ' ')} was {own} and is {now}."
    yield from _random_differences(before, after, same_layout)


def _path(key: tuple[str, str, str]) -> str:
    part, module, name = key
    return f"{part} of {module}/{name}"


def _wholes(records: Iterable[StateRecord]) -> _Tensors:
    wholes: _Tensors = {}
    for record in records:
        for key, held in record.shards.items():
            whole = wholes.setdefault(key, np.zeros(held.shard.cut.whole, held.values.dtype))
            for block in held.shard.rectangles if held.is_first else ():
                into = _slices(block.whole, block.shape)
                whole[into] = held.values[_slices(block.local, block.shape)]
    return wholes


def _slices(offsets: Sequence[int], lengths: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(first, first + length) for first, length in zip(offsets, lengths, strict=True)
    )


def _count_differences(
    before: Sequence[StateRecord], after: Sequence[StateRecord]
) -> Iterator[str]:
    own = {key: value for record in before for key, value in record.counts.items()}
    now = {key: value for record in after for key, value in record.counts.items()}
    wrong = [key for key in own if now.get(key) != own[key]]
    if wrong:
        key = wrong[0]
        is_now = "missing" if key not in now else f"{now[key]:g}"
        yield f"The optimizer's {_path(key)} was {own[key]:g} and is {is_now}{_and(wrong)}."


def _and(keys: Sequence[object]) -> str:
    return "" if len(keys) == 1 else f", and {counted(len(keys) - 1, 'other')} likewise"


def _tensor_differences(wholes: _Tensors, after: Sequence[StateRecord]) -> Iterator[str]:
    there = {key for record in after for key in record.shards}
    became: dict[str, list[tuple[str, str, str]]] = defaultdict(list)
    for key in sorted(wholes.keys() - there):
        became["is missing"].append(key)
    for record in after:
        for key, held in record.shards.items():
            how = _change(wholes.get(key), held.values, held.shard)
            if how and key not in became[how]:
                became[how].append(key)
    for how, keys in became.items():
        if keys:
            yield f"The {_path(keys[0])} {how}{_and(keys)}."


def _change(whole: np.ndarray | None, values: np.ndarray, shard: Any) -> str:
    if whole is None:
        return "was not saved, and is there"
    expected = shard.of(whole)
    if expected.shape != values.shape:
        return f"is {list(values.shape)} instead of {list(expected.shape)}"
    if np.array_equal(expected, values):
        return ""
    if not values.any():
        return "was dropped: all its entries are 0"
    if np.array_equal(_in_bf16(expected), values):
        return "was rounded through bf16"
    if _has_rows_of(whole, values):
        return "has rows of other places: how the tensor is cut was lost"
    return "has other values"


def _in_bf16(values: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32).reshape(values.shape)


def _has_rows_of(whole: np.ndarray, values: np.ndarray) -> bool:
    return bool(np.isin(values, whole).all())


def _random_differences(
    before: Sequence[StateRecord], after: Sequence[StateRecord], same_layout: bool
) -> Iterator[str]:
    own = {title: value for record in reversed(before) for title, value in record.random.items()}
    now = {title: value for record in reversed(after) for title, value in record.random.items()}
    for title, value in now.items():
        of_module = title.startswith("that of ")
        # What belongs to no module comes from rank 0 under another layout.
        saved = title if of_module or same_layout else _ON_RANK.sub(" on rank 0", title)
        if saved not in own or value == own[saved]:
            continue
        of = [other for other, theirs in own.items() if theirs == value and other != title]
        whose = f"is {of[0]}" if of else "is none that was saved"
        yield f"The random state, {title}, {whose}."


def _sample_differences(before: Sequence[RankRecord], after: Sequence[RankRecord]) -> Iterator[str]:
    own, now = _samples(before), _samples(after)
    first = len(own) - len(now)
    if own[first:] == now:
        return
    again = next((step for step in range(first) if own[step] == now[0]), None)
    if again is not None:
        yield f"The data position starts again: the next samples are those of step {again + 1}."
    else:
        yield "The data position is another one: the next samples are not those of a step before."


def _samples(records: Sequence[RankRecord]) -> list[list[int]]:
    steps = zip(*(record.samples for record in records), strict=True)
    return [sorted({index for rank in step for index in rank}) for step in steps]
