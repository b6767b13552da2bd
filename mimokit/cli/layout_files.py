"""Layouts in files of any kind that mimokit reads, and texts of any kind that it writes."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from mimokit import interop
from mimokit.architecture import Model
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ConfigError, ExperimentConfig, PredictionConfig, Problem
from mimokit.config.text_file import read_text_file, reason_of
from mimokit.config_files import load_experiment_config
from mimokit.config_files.inheritance import PRESET_PREFIX
from mimokit.prediction import Layout, Workload
from mimokit.prediction.model_source import load_source
from mimokit.prediction.task import section_of

Format = Literal["yaml", "bridge", "megatron", "torchrun", "slurm"]


@dataclass(frozen=True)
class LayoutFile:
    """What a file says about a layout.

    Attributes:
        model: what is laid out, or None where neither the file nor anybody else says.
        experiment: the file itself, if it is an experiment and no other model was given.
    """

    found: interop.Imported
    model: Model | None
    experiment: ExperimentConfig | None = None
    supposed: PredictionConfig = field(default_factory=PredictionConfig)


def is_experiment(source: str) -> bool:
    """Tell whether a source is `preset:NAME` or is called as YAML files are."""
    return source.startswith(PRESET_PREFIX) or Path(source).suffix in (".yaml", ".yml")


def read_layout_file(
    source: str, *, gpus: int | None = None, model: Model | None = None
) -> LayoutFile:
    """Read an experiment (.yaml or preset:NAME) or Megatron-LM arguments."""
    if is_experiment(source):
        config = load_experiment_config(source, world_size=gpus)
        config.finalize(gpus)
        layout, workload = interop.layout_of_config(config), interop.workload_of_config(config)
        imported = interop.Imported(layout, workload)
        supposed = config.prediction or PredictionConfig()
        if model is not None:
            return LayoutFile(imported, model, supposed=supposed)
        planned_model = model_of_config(config.model, config.name)
        return LayoutFile(imported, planned_model, config, supposed)
    if Path(source).suffix == ".py":
        raise _unreadable(source, "Python is not read")
    imported = interop.from_megatron_arguments(_text(source), gpus)
    return LayoutFile(imported, model or imported.model)


def _text(path: str) -> str:
    try:
        return read_text_file(Path(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, reason_of(error)) from None


def _unreadable(path: str, why: str) -> ConfigError:
    sentence = (
        f"Layout file '{path}': it cannot be read ({why}); give an experiment (.yaml) or a text "
        "with Megatron-LM arguments."
    )
    return ConfigError([Problem("file", "path", path, sentence)])


@dataclass(frozen=True)
class Searched:
    """What a search is asked about.

    Attributes:
        prediction: GPU, software and price; a file of the search's result repeats them.
    """

    source: Model | ExperimentConfig
    workload: Workload | None
    prediction: PredictionConfig

    @property
    def experiment(self) -> ExperimentConfig | None:
        """The experiment, None if the source is a model."""
        return self.source if isinstance(self.source, ExperimentConfig) else None


def searched(
    source: str,
    seq_length: int | None = None,
    global_batch_size: int | None = None,
    gpu: str | None = None,
    price: float | None = None,
) -> Searched:
    """Read what to search for; what is given comes before what a file says.

    Args:
        source: an experiment (.yaml, or preset:NAME), a shipped model's name, or a Hugging Face
            directory.
    """
    loaded = load_source(source)
    known = section_of(loaded)
    prediction = PredictionConfig(
        gpu=gpu or known.chosen_gpu,
        price_per_gpu_hour=known.price_per_gpu_hour if price is None else price,
        software=known.software,
    )
    workload = interop.workload_of_config(loaded) if isinstance(loaded, ExperimentConfig) else None
    return Searched(loaded, step_with(workload, seq_length, global_batch_size), prediction)


def text_in_form(
    layout: Layout,
    workload: Workload | None,
    form: Format,
    *,
    model: Model | None = None,
    experiment: ExperimentConfig | None = None,
    supposed: PredictionConfig | None = None,
    script: str = "train.py",
    hosts: tuple[str, ...] = (),
    gpus_per_node: int = 8,
) -> str:
    """Return a layout in one of the forms that it can leave in."""
    if form == "slurm":
        return interop.to_slurm(layout, script, gpus_per_node=gpus_per_node)
    if form == "torchrun":
        named = hosts or ("localhost",)
        return interop.to_torchrun(layout, script, hosts=named, gpus_per_node=gpus_per_node)
    if workload is None:
        sentence = (
            "Export: nothing says the samples of a step; give --seq-length and --global-batch."
        )
        raise ConfigError([Problem("export", "workload", None, sentence)])
    if form == "bridge":
        return interop.to_bridge(layout, workload)
    if form == "megatron":
        return " ".join(interop.to_megatron_arguments(layout, workload)) + "\n"
    if model is None and experiment is None:
        sentence = "Export: the file does not say what model it lays out; give --model."
        raise ConfigError([Problem("export", "model", None, sentence)])
    known = None if supposed is None else supposed.model_dump(exclude={"inputs"})
    return interop.to_yaml(layout, workload, model=model, experiment=experiment, supposed=known)


def with_samples(
    imported: interop.Imported, seq_length: int | None, global_batch_size: int | None
) -> interop.Imported:
    """Return the same with the samples of a step, where they are given.

    What else a file says of a step stays.
    """
    workload = step_with(imported.workload, seq_length, global_batch_size)
    language = imported.layout.modules[imported.layout.language]
    each = language.data * language.micro_batch
    if workload is not None and workload.global_batch_size % each:
        sentence = (
            f"Step: its {workload.global_batch_size} samples fill no whole number of micro-batches "
            f"of {each} (data parallel {language.data} x micro-batch {language.micro_batch}); give "
            f"a --global-batch that is a multiple of {each}."
        )
        raise ConfigError(
            [Problem("step", "global_batch_size", workload.global_batch_size, sentence)]
        )
    return replace(imported, workload=workload)


_OPTIONS = {"seq_length": "--seq-length", "global_batch_size": "--global-batch"}
"""Field of `Workload` -> the option that gives it."""


def step_with(
    known: Workload | None, seq_length: int | None, global_batch_size: int | None
) -> Workload | None:
    """Return what a step computes, with the numbers that are given in place of the known ones."""
    if seq_length is None and global_batch_size is None:
        return known
    options = {"seq_length": seq_length, "global_batch_size": global_batch_size}
    changes = {name: value for name, value in options.items() if value is not None}
    if known is not None:
        return replace(known, **changes)  # type: ignore[arg-type]
    if len(changes) < len(options):
        there = _OPTIONS[next(iter(changes))]
        other = next(name for name in options if name not in changes)
        sentence = (
            f"Step: {there} is given, but nothing says the other number; give {_OPTIONS[other]}."
        )
        raise ConfigError([Problem("step", other, None, sentence)])
    return Workload(changes["seq_length"], changes["global_batch_size"])
