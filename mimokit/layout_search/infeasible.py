"""What is missing if no layout fits."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mimokit.config.errors import ConfigError, Problem
from mimokit.layout_search.blocks import blocks
from mimokit.layout_search.constraints import DIMENSIONS, EVERY_MODULE, Constraints
from mimokit.layout_search.cost_tables import enumerate_modules, make_tables
from mimokit.layout_search.evaluate import TOO_SLOW, Scan
from mimokit.layout_search.finalists import make_layout
from mimokit.layout_search.task import SearchTask
from mimokit.prediction.layout import sizes_text
from mimokit.units import counted, gib_text

MOST_GPUS = 16_384


def nothing_fits(scan: Scan, dropped: Mapping[str, int], complete: bool) -> ConfigError:
    """Return the error of a search that found nothing, and what would help."""
    task = scan.task
    name = f"Model '{task.model.name}'"
    if not complete:
        sentence = f"{name}: the search was stopped before it found a layout that fits."
    elif not scan.evaluated:
        reasons = sorted(dropped.items(), key=lambda item: -item[1])[:3]
        often = [f"{reason} ({counted(count, 'time')})" for reason, count in reasons if count]
        sentence = (
            f"{name}: no layout on {counted(task.gpus, 'GPU')} is valid; most were dropped because "
            f"of: {'; '.join(often) or 'the constraints, which leave no value to try'}."
        )
    elif scan.dropped[TOO_SLOW]:
        sentence = (
            f"{name}: no layout that fits takes at most {task.constraints.most_seconds} s per "
            f"step; the quickest takes {scan.quickest:.3g} s, so allow that or give more GPUs."
        )
    else:
        sentence = f"{name}: {_short_of_memory(scan)}"
    return ConfigError([Problem("search", "gpus", task.gpus, sentence)])


def _short_of_memory(scan: Scan) -> str:
    task = scan.task
    assert scan.leanest is not None, "something was evaluated"
    need, mode, candidate, others = scan.leanest
    layout = make_layout(scan, mode, candidate, others)
    sizes = sizes_text(layout.modules[layout.language])
    text = (
        f"no layout fits on {task.gpus} x {task.hardware.name}; the leanest ({layout.mode}, "
        f"{layout.language} {sizes}) needs {gib_text(need)} on its fullest rank, and "
        f"{gib_text(task.memory_limit)} may be planned"
    )
    ways = list(_ways_out(task))
    return f"{text}; {' or '.join(ways)} would do." if ways else f"{text}; {_hopeless()}."


def _hopeless() -> str:
    return f"even {MOST_GPUS:,} GPUs would not do, so shorten the sequence or choose other hardware"


def _ways_out(task: SearchTask) -> Iterator[str]:
    if any("recompute" in sizes for sizes in task.constraints.sizes.values()):
        sizes = {
            name: {key: values for key, values in chosen.items() if key != "recompute"}
            for name, chosen in task.constraints.sizes.items()
        }
        if any_fits(replace(task, constraints=replace(task.constraints, sizes=sizes))):
            yield "full recomputation"
    gpus = task.gpus * 2
    while gpus <= MOST_GPUS:
        if any_fits(replace(task, gpus=gpus)):
            yield counted(gpus, "GPU")
            return
        gpus *= 2


def any_fits(task: SearchTask) -> bool:
    """Return whether a layout of a task is valid and fits, of those that take least memory."""
    lean = replace(task, objective="memory", constraints=_leanest(task.constraints))
    try:
        language, encoders, _ = enumerate_modules(lean)
    except ConfigError:
        return False
    tables = make_tables(lean, language, encoders)
    scan = Scan(lean, tables, keep=1)
    for block in blocks(lean, tables):
        scan.see(block)
        if scan.fitting:
            return True
    return False


def _leanest(constraints: Constraints) -> Constraints:
    """Return constraints that leave out what only adds memory."""
    lean = {"micro_batch_size": (1,), "optimizer_instances": (1,), "virtual_pipeline": (1,)}
    every = dict(constraints.sizes.get(EVERY_MODULE, {}))
    named = {key for chosen in constraints.sizes.values() for key in chosen}
    every |= {key: values for key, values in lean.items() if key not in named}
    assert set(every) <= set(DIMENSIONS)
    return replace(constraints, sizes={**constraints.sizes, EVERY_MODULE: every}, most_seconds=None)
