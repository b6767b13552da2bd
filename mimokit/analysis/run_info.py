"""What is known about a run as a whole: one row of the table of runs."""

import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from mimokit.analysis.run_folders import RunFolderError, as_text, read_object
from mimokit.axes import CONFIG_FIELDS, RANK_AXES, short_sizes
from mimokit.config import ConfigError, ExperimentConfig
from mimokit.config_files import load_experiment_config
from mimokit.planning import plan_layout
from mimokit.planning.report import PlannedLayout
from mimokit.planning.types import LayoutPlan
from mimokit.prediction.hardware import hardware_names, load_hardware
from mimokit.result_files import RunFile
from mimokit.samples import module_column
from mimokit.units import counted, span_text

RUN_COLUMNS = (
    "run", "experiment", "status", "mode", "world_size", "layout", "seed", "iterations",
    "warmup_iterations", "started", "finished", "seconds", "samples_per_step", "tokens_per_step",
    "peak_flops_per_sec", "revision", "versions", "hosts", "cores", "load", "memory_bytes",
    "accelerators", "error", "error_rank", "error_step", "health", "directory",
)  # fmt: skip
"""Columns of the table of runs. `health` is what was wrong with what ranks held, empty if nothing
was. For every module there follow its ranks, its parallel sizes and its parameters, such as
`images_ranks` and `images_tensor_parallel`."""

RUNNING, ENDED = "running", "ended"
"""Status of a run that goes on, and of one whose process was killed before it could say more."""
SAME_START = 1.0
"""Seconds within which two readings of the start of one process agree."""
REFUSED = "refused"
"""Status of a run whose config was rejected before it began; it has an error.json alone."""


def run_row(name: str, folder: Path, iterations: int, sentences: list[str]) -> dict[str, Any]:
    """Return one row of the table of runs; what is not known is absent.

    Args:
        sentences: sentences about files that cannot be read are appended.
    """
    info = _json(folder / RunFile.INFO, sentences)
    error = _json(folder / RunFile.ERROR, sentences)
    if not info and not error:
        sentences.append(
            f"The folder {folder} has neither {RunFile.INFO} nor {RunFile.ERROR}; what is known "
            "about the run comes from its other files."
        )
    row: dict[str, Any] = {
        "run": name,
        "experiment": as_text(folder.resolve().name),
        "status": _status(info, error),
        **_text(info, name="experiment", deployment_mode="mode", started="started"),
        **_text(info, finished="finished"),
        "iterations": iterations,
        "versions": _pairs(info.get("versions")),
        "hosts": _words(info.get("hosts")),
        "directory": as_text(str(folder)),
        **_numbers(info, "world_size", "seconds", "samples_per_step", "tokens_per_step"),
        **_numbers(info, "seed", "warmup_iterations", "peak_flops_per_sec"),
        **_hardware(info),
        **_error(error),
        "health": _wrong(_json(folder / RunFile.HEALTH, sentences)),
    }
    modules = info.get("modules")
    if not isinstance(modules, dict) or row.get("warmup_iterations") is None:
        row.update(_of_config(folder, row, sentences))
    if isinstance(modules, dict):
        row.update(_layout(modules))
    if row.get("mode") and row.get("layout"):
        row["layout"] = f"{row['mode']}: {row['layout']}"
    return {column: value for column, value in row.items() if value is not None}


def config_of(folder: Path) -> ExperimentConfig:
    """Return the finalized config of a run; raises ConfigError if it cannot be read."""
    return load_experiment_config(folder / RunFile.CONFIG)


def plan_of(folder: Path) -> PlannedLayout:
    """Return the plan of a run's layout; raises what `config_of` does."""
    return PlannedLayout.of(plan_layout(config_of(folder)))


def memory_limit(row: Mapping[str, Any]) -> float | None:
    """Return the bytes that a rank may use, of a row of the table of runs; see `Runs`."""
    device = row.get("accelerators")
    if isinstance(device, str):
        known = [name for name in hardware_names() if name in device.lower()]
        return load_hardware(max(known, key=len)).memory_bytes if known else None
    whole, ranks, hosts = row.get("memory_bytes"), row.get("world_size"), row.get("hosts")
    if pd.isna(whole) or pd.isna(ranks) or (isinstance(hosts, str) and "," in hosts):
        return None
    return float(whole) / float(ranks)


def warmup_of(row: Mapping[str, Any]) -> int:
    """Return the warm-up iterations of a row of the table of runs, 0 if they are not known."""
    value = row.get("warmup_iterations", 0)
    return int(value) if value == value and value is not None else 0


def _json(file: Path, sentences: list[str]) -> Mapping[str, Any]:
    try:
        return read_object(file)
    except RunFolderError as error:
        sentences.append(str(error))
        return {}


def _status(info: Mapping[str, Any], error: Mapping[str, Any]) -> str:
    if "status" in info:
        status = str(info["status"])
        return ENDED if status == RUNNING and _has_ended(info.get("writer")) else status
    if error:
        return REFUSED if error.get("type") == ConfigError.__name__ else "failed"
    return "completed" if "finished" in info else "unknown"


def _has_ended(writer: object) -> bool:
    """Whether the processes of a run were on this host and are gone."""
    if not isinstance(writer, dict) or writer.get("host") != socket.gethostname():
        return False
    processes = writer.get("processes")
    return isinstance(processes, list) and not any(map(_lives, processes))


def _lives(process: Any) -> bool:
    try:
        pid, began = process
        there = psutil.Process(pid)
        same = abs(there.create_time() - began) < SAME_START
        return bool(same and there.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except (psutil.Error, TypeError, ValueError, OverflowError):  # it is not known
        return True


def _numbers(info: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: info[name] for name in names if isinstance(info.get(name), int | float)}


def _text(info: Mapping[str, Any], **columns: str) -> dict[str, str]:
    return {column: info[key] for key, column in columns.items() if isinstance(info.get(key), str)}


def _pairs(values: object) -> str | None:
    if not isinstance(values, dict):
        return None
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _words(values: object) -> str | None:
    return ", ".join(map(str, values)) if isinstance(values, list) and values else None


def _hardware(info: Mapping[str, Any]) -> dict[str, Any]:
    known, git = info.get("hardware"), info.get("git")
    facts = _numbers(known, "cores", "load", "memory_bytes") if isinstance(known, dict) else {}
    if isinstance(known, dict) and isinstance(known.get("accelerators"), list):
        counts = Counter(map(str, known["accelerators"]))
        facts["accelerators"] = _words([f"{count} × {name}" for name, count in counts.items()])
    if isinstance(git, dict) and git.get("revision"):
        facts["revision"] = f"{git['revision']}{' (changed)' if git.get('dirty') else ''}"
    return facts


def _error(error: Mapping[str, Any]) -> dict[str, Any]:
    if not error:
        return {}
    sentences = error.get("sentences")
    text = " ".join(map(str, sentences)) if isinstance(sentences, list) and sentences else None
    message = text or f"{error.get('type', 'Error')}: {error.get('message', 'no message')}"
    places = {"error_rank": error.get("rank"), "error_step": error.get("step")}
    return {"error": message, **{k: v for k, v in places.items() if isinstance(v, int)}}


def busy_machine(row: Mapping[str, Any]) -> str:
    """Return the sentence about a run that began on a machine with other work; "" for any other.

    Its own ranks may have filled a core each just before, so only what is beyond them counts.
    """
    known = [row.get(name) for name in ("load", "cores", "world_size")]
    load, cores, ranks = (float("nan") if each is None else float(each) for each in known)
    if not load > cores + ranks:  # of what is not known, nothing
        return ""
    return (
        f"The machine of run {row['run']} was busy: {load:.0f} processes wanted one of its "
        f"{counted(int(cores), 'core')} when it began, so its times say little."
    )


def health_sentences(run: str, folder: Path) -> list[str]:
    """Return the sentence about a run whose ranks are not healthy; of any other run nothing."""
    wrong = _wrong(_json(folder / RunFile.HEALTH, []))
    return [unhealthy(run, wrong)] if wrong else []


def unhealthy(run: str, wrong: str) -> str:
    """Return the sentence about a run whose ranks held what they must not."""
    return f"The ranks of run {run} are not healthy: {wrong}"


def _wrong(health: Mapping[str, Any]) -> str | None:
    wrong = health.get("wrong")
    return " ".join(map(str, wrong)) if isinstance(wrong, list) else None


def _of_config(folder: Path, row: Mapping[str, Any], sentences: list[str]) -> dict[str, Any]:
    if not (folder / RunFile.CONFIG).is_file():
        sentences.append(f"The folder {folder} has no {RunFile.CONFIG}; its layout is not known.")
        return {}
    try:
        config = config_of(folder)
        layout = plan_layout(config)
    except ValueError as error:
        sentence = str(error).splitlines()[0]
        sentences.append(f"The layout of {folder / RunFile.CONFIG} is not known ({sentence})")
        return {}
    facts = {
        "mode": layout.deployment_mode,
        "world_size": layout.world_size,
        "seed": config.runtime.seed,
        "warmup_iterations": config.runtime.warmup_iterations,
        "samples_per_step": layout.batch.global_batch_size,
        "tokens_per_step": layout.batch.global_batch_size * config.data.seq_length,
        **_layout(planned_modules(layout)),
    }
    return {name: value for name, value in facts.items() if row.get(name) is None}


def planned_modules(layout: LayoutPlan) -> dict[str, dict[str, Any]]:
    """Return module -> its ranks and parallel sizes, as experiment_info.json has them."""
    fields = [CONFIG_FIELDS[axis] for axis in RANK_AXES]
    return {
        name: {"ranks": list(ranks.ranks), **{field: getattr(ranks, field) for field in fields}}
        for name, ranks in layout.modules.items()
    }


def _layout(modules: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    texts = []
    for name, known in modules.items():
        if not isinstance(known, dict):
            continue
        ranks = known.get("ranks")
        if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks):
            columns[module_column(name, "ranks")] = span_text(sorted(ranks))
        sizes = {axis: known.get(CONFIG_FIELDS[axis]) for axis in RANK_AXES}
        for axis, size in sizes.items():
            if isinstance(size, int):
                columns[module_column(name, CONFIG_FIELDS[axis])] = size
        if isinstance(known.get("parameters"), int | float):
            columns[module_column(name, "parameters")] = known["parameters"]
        texts.append(f"{name} {_sizes_text(sizes)}")
    return {"layout": " · ".join(texts), **columns}


def _sizes_text(sizes: Mapping[Any, Any]) -> str:
    known = {axis: size for axis, size in sizes.items() if isinstance(size, int)}
    return short_sizes(known) or ("1 rank" if known else "?")


def module_columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the columns of rows beyond `RUN_COLUMNS`, in order of occurrence."""
    return list(dict.fromkeys(name for row in rows for name in row if name not in RUN_COLUMNS))
