"""Which constraints of the user a predicted layout breaks, as sentences."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.architecture.parallel_sizes import RECOMPUTE_NAMES
from mimokit.layout_search.constraints import DIMENSIONS
from mimokit.layout_search.task import SearchTask
from mimokit.layout_search.words import GIB, seconds_text
from mimokit.prediction import Prediction


def broken_limits(task: SearchTask, found: Prediction) -> Iterator[str]:
    """Yield a sentence per constraint that a layout breaks: memory, time, GPUs, mode, values."""
    rules, layout = task.constraints, found.layout
    if found.peak_memory > task.memory_limit:
        yield _too_large(task, found)
    if rules.most_seconds is not None and found.seconds > rules.most_seconds:
        yield (
            f"A step takes {seconds_text(found.seconds)}, more than the "
            f"{seconds_text(rules.most_seconds)} allowed."
        )
    if len(layout.modules) > 1 and layout.mode not in rules.modes:
        yield f"Its mode {layout.mode} was left out: modes are {', '.join(rules.modes)}."
    if layout.gpus < rules.least_gpus:
        yield f"It takes {layout.gpus} GPUs, fewer than the {rules.least_gpus} asked for."
    yield from _values_left_out(task, found)


def _too_large(task: SearchTask, found: Prediction) -> str:
    fullest = max(found.memory, key=lambda name: sum(found.memory[name].values()))
    parts = found.memory[fullest]
    largest = max(parts, key=lambda name: parts[name])
    return (
        f"It does not fit: its fullest rank needs {found.peak_memory / GIB:.1f} GiB, "
        f"{(found.peak_memory - task.memory_limit) / GIB:.1f} more than the "
        f"{task.memory_limit / GIB:.1f} that may be planned; most of '{fullest}' is {largest} "
        f"({parts[largest] / GIB:.1f} GiB)."
    )


def _values_left_out(task: SearchTask, found: Prediction) -> Iterator[str]:
    """Yield values that the user left out; micro-batches and homogeneous encoders just follow."""
    layout = found.layout
    for name, sizes in layout.modules.items():
        follows = name != layout.language
        if follows and layout.mode == "homogeneous":
            continue
        for dimension, field in DIMENSIONS.items():
            values = task.constraints.values(name, dimension, is_language=not follows)
            own = int(getattr(sizes, field))
            if values is None or own in values or (follows and dimension == "micro_batch_size"):
                continue
            words = [
                RECOMPUTE_NAMES[one] if dimension == "recompute" else str(one)
                for one in (own, *values)
            ]
            yield (
                f"Module '{name}': {dimension} {words[0]} was left out by the constraints, which "
                f"have {', '.join(words[1:])}."
            )
