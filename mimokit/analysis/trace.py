"""The trace of a run as a file that Chrome and Perfetto open, and as a table."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from mimokit.config.text_file import read_json
from mimokit.planning.types import LayoutPlan
from mimokit.result_files import RunFile, whole_file
from mimokit.samples import Sample, TraceSample
from mimokit.sentence_error import SentenceError
from mimokit.step_kinds import Phase, StepKind
from mimokit.units import shown

TRACE_COLUMNS = ("rank", "iteration", "name", "module", "microbatch", "start", "stop")
"""Columns of a trace table. Times are seconds on the clock of rank 0 since the start of the trace;
module and microbatch are missing if a step has none."""
MOST_SECONDS = 1e9
"""Of a time in a trace: 30 years."""
MOST_CHARACTERS = 2**30
"""Of a trace; one of a thousand steps on 64 ranks has a tenth of it."""
_MICROSECONDS = 1e6
INSIDE = 1
"""Thread of what takes place inside the steps of a rank."""
CATEGORIES = {str(kind): "compute" if kind.computes else str(kind.color) for kind in StepKind}
"""Step name -> category of its Chrome trace events."""


class TraceFileError(SentenceError, ValueError):
    """A trace that cannot be read; the message is one sentence."""


def _traces(samples: Iterable[Sample]) -> Iterator[TraceSample]:
    return (sample for sample in samples if isinstance(sample, TraceSample))


def write_trace(file: str | Path, samples: Iterable[Sample], plan: LayoutPlan) -> None:
    """Write the trace of a run as Chrome trace events, one process per rank.

    Args:
        samples: read several times, so that a long run needs not be held.
    """
    begin, errors, offsets = math.inf, dict[str, float](), dict[str, float]()
    for sample in _traces(samples):
        begin = min([begin, *(event[3] for event in sample.events)])
        errors[str(sample.rank)] = sample.clock_error
        offsets[str(sample.rank)] = sample.clock_offset
    clock = {"clock": "rank 0", "clock_offset_seconds": offsets, "clock_error_seconds": errors}
    with whole_file(Path(file)) as opened:
        opened.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(clock)}, ')
        opened.write('"traceEvents": [' + ", ".join(map(json.dumps, _names(plan))))
        for sample in _traces(samples):
            opened.writelines(f", {json.dumps(event)}" for event in _events(sample, begin))
        opened.write("]}\n")


def _names(plan: LayoutPlan) -> Iterator[dict[str, Any]]:
    for rank in range(plan.world_size):
        replica, place = (None, rank) if plan.replicas is None else plan.replicas.place(rank)
        modules = [name for name, ranks in plan.modules.items() if place in ranks.ranks]
        who = f"rank {rank}" if replica is None else f"rank {rank} of replica {replica}"
        yield _metadata("process_name", rank, {"name": f"{who}: {', '.join(modules)}"})
        yield _metadata("process_sort_index", rank, {"sort_index": rank})
        yield _metadata("thread_name", rank, {"name": "schedule"})
        yield {**_metadata("thread_name", rank, {"name": "inside its steps"}), "tid": INSIDE}


def _metadata(name: str, rank: int, values: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": rank, "tid": 0, "args": values}


def _events(sample: TraceSample, begin: float) -> Iterator[dict[str, Any]]:
    for thread, events in ((0, sample.events), (INSIDE, sample.inside)):
        for name, module, microbatch, start, stop in events:
            arguments = {"step": name, "iteration": sample.iteration}
            of = {"module": module, "microbatch": microbatch}
            yield {
                "ph": "X",
                "name": name if module is None else f"{name} {module}",
                "cat": CATEGORIES.get(name, Phase.COMMUNICATION),
                "pid": sample.rank,
                "tid": thread,
                "ts": (start - begin) * _MICROSECONDS,
                "dur": (stop - start) * _MICROSECONDS,
                "args": arguments | {key: value for key, value in of.items() if value is not None},
            }


def read_trace(path: str | Path, *, inside: bool = False) -> pd.DataFrame:
    """Read the trace of a run: its folder, or the file itself.

    Args:
        inside: return what took place inside the steps instead of the steps.

    Returns:
        A table with TRACE_COLUMNS; `attrs["clock_error"]` is the largest error of a rank's clock,
        in seconds.

    Raises:
        TraceFileError: there is no trace, or mimokit did not write it.
    """
    file = Path(path) / RunFile.TRACE if os.path.isdir(path) else Path(path)
    if not os.path.isfile(file):
        raise TraceFileError(f"There is no trace at {file}; train(..., trace=True) writes one.")
    try:
        content = read_json(file, MOST_CHARACTERS)
        thread = INSIDE if inside else 0
        complete = (event for event in content["traceEvents"] if event["ph"] == "X")
        rows = [_row(event) for event in complete if event.get("tid", 0) == thread]
        errors = [_number(error) for error in _values(content["otherData"])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceFileError(
            f"The file {file} is not a trace of mimokit ({type(error).__name__}: {error})."
        ) from None
    table = pd.DataFrame(rows, columns=list(TRACE_COLUMNS))
    table["microbatch"] = table["microbatch"].astype("Int64")
    table = table.sort_values(["start", "rank"], kind="stable", ignore_index=True)
    table.attrs["clock_error"] = max(errors, default=0.0)
    return table


def _row(event: Mapping[str, Any]) -> tuple[Any, ...]:
    arguments = event["args"]
    module, microbatch = arguments.get("module"), arguments.get("microbatch")
    numbers, step = (event["pid"], arguments["iteration"]), arguments["step"]
    counts = (*numbers, 0 if microbatch is None else microbatch)
    whole = all(isinstance(number, int) for number in counts)
    if not (whole and isinstance(step, str) and isinstance(module, str | None)):
        named = (*numbers, step, module, microbatch)
        raise TypeError(f"rank, iteration, step, module or microbatch is wrong: {shown(named)}")
    start = _number(event["ts"]) / _MICROSECONDS
    stop = start + _number(event["dur"]) / _MICROSECONDS
    return (*numbers, step, module, microbatch, start, stop)


def _values(other: Mapping[str, Any]) -> Iterable[Any]:
    values: Iterable[Any] = other["clock_error_seconds"].values()
    return values


def _number(value: Any) -> float:
    if not isinstance(value, int | float) or not abs(value) < MOST_SECONDS * _MICROSECONDS:
        raise TypeError(f"{shown(value)} is no time")
    return float(value)
