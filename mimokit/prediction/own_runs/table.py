"""Own runs from a CSV: a row per run of a language model, with its layout, seconds and memory."""

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mimokit.architecture import LanguageModel, Model, from_hf, load_model, model_names
from mimokit.axes import SIZE_FIELDS, Axis
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.recipe import RecipeConfig
from mimokit.config.sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.config.text_file import MOST_OF_RESULTS, read_text_file, reason_of
from mimokit.prediction.hardware import Hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.prediction import predict_task
from mimokit.prediction.result import Prediction
from mimokit.prediction.step_time import Software
from mimokit.prediction.task import PredictionTask, system_of
from mimokit.prediction.validity import check_layout, check_links, check_precision
from mimokit.prediction.workload import Workload
from mimokit.units import GIB, shown


@dataclass(frozen=True)
class OwnRun:
    """A run that constants are adjusted to.

    Attributes:
        label: where it is from, such as "runs.csv, line 3".
        seconds: of a step.
        memory_gib: of the fullest rank; None: not measured.
    """

    label: str
    task: PredictionTask
    seconds: float
    memory_gib: float | None = None

    def predicted(self, software: Software) -> float:
        """Return the seconds that a training stack predicts."""
        return self.prediction(software).seconds

    def prediction(self, software: Software) -> Prediction:
        """Return what a training stack predicts."""
        system = replace(self.task.system, software=software)
        return predict_task(replace(self.task, system=system))

    @property
    def layout_key(self) -> object:
        """What runs of one layout share: all of its sizes, and what a step computes."""
        work, layout = self.task.workload, self.task.layout
        samples = (work.seq_length, work.global_batch_size, work.precision, str(work.recipe))
        order = (work.encoder_microbatches, work.pipeline_order, work.frozen)
        sizes = (layout.mode, layout.encoder_microbatches, *layout.modules.items())
        return (self.task.model.name, *sizes, *samples, *order)


NEEDED = ("model", "seq_length", "global_batch_size", "dp", "seconds")
AXES = (
    Axis.TENSOR,
    Axis.PIPELINE,
    Axis.VIRTUAL_PIPELINE,
    Axis.CONTEXT,
    Axis.EXPERT,
    Axis.DATA,
)
SIZES: Mapping[str, str] = {axis.label.lower(): SIZE_FIELDS[axis] for axis in AXES}
"""Column -> field of `ParallelSizes`; all but dp are 1 where they are left out."""
FLAGS = ("dispatch_overlap", "fused_experts", "attention_8bit", "drops_tokens")
MOST_DIGITS = 18
"""Of a whole number."""
MOST_TIMES = 50.0
"""Measured over predicted seconds, or the reverse, beyond which the unit of a column is wrong."""


def read_runs(
    path: str | os.PathLike[str], hardware: Hardware, software: Software
) -> tuple[OwnRun, ...]:
    """Return the runs of a CSV.

    Columns: model (a shipped one, or a Hugging Face directory), seq_length, global_batch_size, dp,
    seconds; and if they are not 1: tp, pp, vpp, cp, ep, micro_batch; and precision (bf16),
    recompute (none), fsdp (false), memory_gib, gpu and software, which are those of the
    calibration, and the fields of `runtime.recipe`.

    Raises:
        ConfigError: the file cannot be read, a column is missing, a row is wrong, or its layout
            cannot be built. The sentence has the line.
    """
    file = Path(path)
    try:
        text = read_text_file(file, MOST_OF_RESULTS).removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(f"'{file}'", f"it cannot be read ({reason_of(error)})") from None
    try:
        reader = csv.DictReader(text.splitlines())
        columns, rows = tuple(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise _refused(f"'{file}'", f"it is no table ({error})") from None
    missing = [name for name in NEEDED if name not in columns]
    if missing:
        what = f"column '{missing[0]}' is missing; needed are {', '.join(NEEDED)}"
        raise _refused(f"'{file}'", what)
    runs = [
        _run(row, f"'{file}', line {number}", hardware, software)
        for number, row in enumerate(rows, start=2)
    ]
    return tuple(runs)


def _run(row: Mapping[str, str], where: str, hardware: Hardware, software: Software) -> OwnRun:
    for column, here in (("gpu", hardware.name), ("software", software.name)):
        said = (row.get(column) or "").strip()
        if said and said != here:
            raise _refused(where, f"{column} is '{shown(said)}', and the others ran with '{here}'")
    model = _model(row, where)
    sizes = ParallelSizes(
        **{field: _whole(row, column, where) for column, field in SIZES.items()},
        micro_batch=_whole(row, "micro_batch", where),
        recompute=_one_of(row, "recompute", RECOMPUTE_NAMES, where),
        fully_sharded=_flag(row, "fsdp", where),
    )
    workload = Workload(
        _whole(row, "seq_length", where),
        _whole(row, "global_batch_size", where),
        (row.get("precision") or "bf16").strip(),
        recipe=_recipe(row, where),
    )
    layout = Layout("homogeneous", {model.name: sizes})
    try:
        check_precision(hardware, workload)
        check_links(hardware, layout.gpus)
        check_layout(model, layout, workload)
        system = system_of(hardware, software, workload, model)
    except ConfigError as error:
        raise _refused(where, error.problems[0].sentence) from None
    memory = (row.get("memory_gib") or "").strip()
    run = OwnRun(
        where,
        PredictionTask(model, layout, workload, system),
        _number(row, "seconds", where),
        _number(row, "memory_gib", where) if memory else None,
    )
    _check_unit(run, software)
    return run


def _check_unit(run: OwnRun, software: Software) -> None:
    prediction = run.prediction(software)
    predicted = prediction.seconds
    times = run.seconds / predicted
    if not 1 / MOST_TIMES < times < MOST_TIMES:
        unit = "milliseconds" if times > 1 else "minutes"
        what = (
            f"seconds is {run.seconds:g}, {times:.3g} times the {predicted:.3g} s predicted; it "
            f"looks like {unit}"
        )
        raise _refused(run.label, what)
    peak = prediction.peak_memory / GIB
    more = (run.memory_gib or peak) / peak
    if not 1 / MOST_TIMES < more < MOST_TIMES:
        unit = "MiB or bytes" if more > 1 else "TiB"
        what = (
            f"memory_gib is {run.memory_gib:g}, {more:.3g} times the {peak:.3g} GiB predicted; it "
            f"looks like {unit}"
        )
        raise _refused(run.label, what)


def _model(row: Mapping[str, str], where: str) -> Model:
    name = (row["model"] or "").strip()
    try:
        model = load_model(name) if name in model_names() or os.sep not in name else from_hf(name)
    except ConfigError as error:
        raise _refused(where, error.problems[0].sentence) from None
    if not isinstance(model, LanguageModel):
        raise _refused(where, f"'{name}' has encoders; give the results folders of its runs")
    return model


def _recipe(row: Mapping[str, str], where: str) -> RecipeConfig | None:
    said: dict[str, Any] = {
        name: row[name].strip()
        for name in ("graphs", "dispatcher")
        if (row.get(name) or "").strip()
    }
    said |= {name: _flag(row, name, where) for name in FLAGS if (row.get(name) or "").strip()}
    if (row.get("recompute_modules") or "").strip():
        said["recompute_modules"] = row["recompute_modules"].split("+")
    try:
        return RecipeConfig(**said) if said else None
    except ConfigError as error:
        raise _refused(where, error.problems[0].sentence) from None


def _whole(row: Mapping[str, str], column: str, where: str) -> int:
    text = (row.get(column) or "").strip() or ("" if column in NEEDED else "1")
    number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    if not number or int(text) < 1:
        raise _refused(where, f"{column} is '{text}'; it must be a whole number of at least 1")
    return int(text)


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    text = (row.get(column) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise _refused(where, f"{column} is '{text}'; it must be a number above 0")
    return value


def _flag(row: Mapping[str, str], column: str, where: str) -> bool:
    text = (row.get(column) or "").strip().lower() or "false"
    if text not in ("true", "false"):
        raise _refused(where, f"{column} is '{text}'; it must be true or false")
    return text == "true"


def _one_of(row: Mapping[str, str], column: str, names: tuple[str, ...], where: str) -> int:
    text = (row.get(column) or "").strip() or names[0]
    if text not in names:
        raise _refused(where, f"{column} is '{text}'; it is one of {', '.join(names)}")
    return names.index(text)


def _refused(where: str, why: str) -> ConfigError:
    end = "" if why.endswith((".", "?")) else "."
    return ConfigError([Problem("calibration", "runs", where, f"Own runs {where}: {why}{end}")])
