"""Layouts in files of any kind that mimokit reads, and texts of any kind that it writes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from mimokit.config import ConfigError, ExperimentConfig, Problem, load_experiment_config
from mimokit.config.inheritance import PRESET_PREFIX
from mimokit.plan.architecture import Model
from mimokit.plan.architecture.from_config import model_of_config
from mimokit.plan.exchange import (
    Imported,
    from_bridge,
    from_megatron_arguments,
    layout_of_config,
    to_bridge,
    to_megatron_arguments,
    to_slurm,
    to_torchrun,
    to_yaml,
    workload_of_config,
)
from mimokit.plan.prediction import Layout, Workload

Format = Literal["yaml", "bridge", "megatron", "torchrun", "slurm"]


@dataclass(frozen=True)
class LayoutFile:
    """What a file says about a layout.

    Attributes:
        found: the layout, and what the file says beside it.
        model: what is laid out, or None where neither the file nor anybody else says.
        experiment: the file itself, where it is an experiment.
    """

    found: Imported
    model: Model | None
    experiment: ExperimentConfig | None = None


def read_layout_file(
    source: str, *, gpus: int | None = None, model: Model | None = None
) -> LayoutFile:
    """Read an experiment (.yaml or preset:NAME), Bridge Python (.py) or Megatron-LM arguments.

    Args:
        source: the file, or `preset:NAME`.
        gpus: how many there are, for Megatron-LM arguments that do not say.
        model: what is laid out, where the file does not say.

    Raises:
        ConfigError: it cannot be read.
    """
    if source.startswith(PRESET_PREFIX) or Path(source).suffix in (".yaml", ".yml"):
        config = load_experiment_config(source, world_size=gpus)
        config.model.finalize(gpus)
        found = Imported(layout_of_config(config), workload_of_config(config))
        return LayoutFile(found, model or model_of_config(config.model, config.name), config)
    text = _text(Path(source))
    if Path(source).suffix == ".py":
        return LayoutFile(from_bridge(text), model)
    found = from_megatron_arguments(text, gpus)
    return LayoutFile(found, model or found.model)


def written(
    layout: Layout,
    workload: Workload | None,
    form: Format,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
    script: str = "train.py",
    hosts: tuple[str, ...] = (),
    gpus_per_node: int = 8,
) -> str:
    """Return a layout in one of the forms that it can leave in.

    Raises:
        ConfigError: the form cannot hold the layout, or the samples of a step are not known.
    """
    if form == "slurm":
        return to_slurm(layout, script, gpus_per_node=gpus_per_node)
    if form == "torchrun":
        named = hosts or ("localhost",)
        return to_torchrun(layout, script, hosts=named, gpus_per_node=gpus_per_node)
    if workload is None:
        sentence = (
            "Export: nothing says the samples of a step; give --seq-length and --global-batch."
        )
        raise ConfigError([Problem("export", "workload", None, sentence)])
    if form == "bridge":
        return to_bridge(layout, workload)
    if form == "megatron":
        return " ".join(to_megatron_arguments(layout, workload)) + "\n"
    return to_yaml(layout, workload, model=model, experiment=experiment)


def with_samples(found: Imported, seq_length: int | None, global_batch: int | None) -> Imported:
    """Return the same with the samples of a step, where they are given."""
    if seq_length is None or global_batch is None:
        return found
    return replace(found, workload=Workload(seq_length, global_batch))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        sentence = (
            f"Layout file '{path}': it cannot be read ({why}); give an experiment (.yaml), "
            "Megatron-Bridge Python (.py) or a text with Megatron-LM arguments."
        )
        raise ConfigError([Problem("file", "path", str(path), sentence)]) from None
