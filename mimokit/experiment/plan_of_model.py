"""A plan for a model that a Hugging Face config describes: the best layout on the named GPUs."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.modules import Model, MultimodalModel
from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config.text_file import MOST_CHARACTERS, read_json
from mimokit.interop import config_of_layout
from mimokit.layout_search import SearchTask, search
from mimokit.layout_search.candidates import Candidates
from mimokit.layout_search.cost_tables import enumerate_modules
from mimokit.layout_search.infeasible import any_fits
from mimokit.prediction import Workload
from mimokit.units import listed

SEQ_LENGTH = 4096
SAMPLES_PER_GPU = 8
"""What is planned unless it is said: tokens of a sample, samples of a step."""


def config_of_model(
    source: str, gpus: int, gpu: str | None, seq_length: int | None, global_batch: int | None
) -> ExperimentConfig:
    """Return the config of the fastest layout of a model that fits.

    Args:
        source: a config.json of Hugging Face, or a directory with one.
        gpus: how many there are; the layout may take fewer.
        gpu: name of one, or a hardware file; None: that of `PredictionConfig`.

    Raises:
        ConfigError: the model cannot be read or is quantized, or no layout fits; the sentence says
            what would do.
    """
    workload = workload_of_model(gpus, seq_length, global_batch)
    result = search(model_to_train(source), gpus=gpus, gpu=gpu, workload=workload)
    supposed = None if gpu is None else {"gpu": gpu}
    model, layout = result.task.model, result.best.layout
    return config_of_layout(layout, workload, model=model, supposed=supposed)


def workload_of_model(
    gpus: int, seq_length: int | None = None, global_batch: int | None = None
) -> Workload:
    """Return what a step computes of a model of which nothing else is said."""
    return Workload(
        SEQ_LENGTH if seq_length is None else seq_length,
        SAMPLES_PER_GPU * gpus if global_batch is None else global_batch,
    )


def fewer_gpus(taken: int, task: SearchTask) -> str:
    """Return what to say of a layout that leaves GPUs free; "" of any other."""
    gpus = task.gpus
    if taken == gpus:
        return ""
    nearest = _nearest_whole_counts(task)
    if not nearest:
        return f"No layout of all {gpus:,} GPUs is faster: it takes {taken:,}."
    counts = listed([f"{count:,}" for count in nearest])
    none = f"No layout takes all {gpus:,} GPUs: it takes {taken:,}."
    return f"{none} The nearest numbers of GPUs that one takes all of: {counts}."


def _nearest_whole_counts(task: SearchTask) -> list[int]:
    """Return the next smaller and the next larger number of GPUs that a layout takes all of.

    Empty where a layout that fits takes all of the task. At most twice as many are looked for.
    """
    if _takes_all(task, task.gpus):
        return []
    counts = sorted(_counts(replace(task, gpus=2 * task.gpus)))
    below = [count for count in reversed(counts) if count < task.gpus]
    above = [count for count in counts if count > task.gpus]
    nearest = (next((n for n in side if _takes_all(task, n)), None) for side in (below, above))
    return [count for count in nearest if count is not None]


def _takes_all(task: SearchTask, gpus: int) -> bool:
    constraints = replace(task.constraints, least_gpus=gpus)
    return any_fits(replace(task, gpus=gpus, constraints=constraints))


def _counts(task: SearchTask) -> set[int]:
    """Return how many ranks language models have, without and with ranks of other modules added."""
    language, others, _ = enumerate_modules(task)
    shared = separate = _different(language)
    for other in others:
        separate = {count + more for count in separate for more in _different(other)}
    return {count for count in shared | separate if count <= task.gpus}


def _different(module: Candidates) -> set[int]:
    return {int(ranks) for ranks in np.unique(module.sizes.ranks)}


def model_to_train(source: str | Mapping[str, Any]) -> Model:
    """Return the model of a Hugging Face config, of its file, or of a directory with one.

    Raises:
        ConfigError: it cannot be read, or its weights are quantized.
    """
    content: Any = source
    if not isinstance(source, Mapping):
        file = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
        content = None
        with suppress(OSError, ValueError):  # `from_hf` says what is wrong with it
            content = read_json(file, MOST_CHARACTERS)
    content = content if isinstance(content, Mapping) else {}
    section = content.get("quantization_config")
    method = section.get("quant_method", "unknown") if isinstance(section, Mapping) else None
    if method in (None, "fp8"):  # DeepSeek-V3 was trained in fp8
        has_path = not isinstance(source, Mapping) or source.get("_name_or_path")
        model = from_hf(source, None if has_path else str(content.get("model_type")))
        return model.computed if isinstance(model, MultimodalModel) else model
    of = "Model" if isinstance(source, Mapping) else f"Model '{source}'"
    sentence = (
        f"{of}: its weights are quantized ({method}), which is not trained; give the config.json "
        "of the model before quantization."
    )
    raise ConfigError([Problem("model", "quantization_config", method, sentence)])
