"""A plan for a model that a Hugging Face config describes: the best layout on the named GPUs."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.modules import Model, MultimodalModel
from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.config.text_file import MOST_CHARACTERS, read_json
from mimokit.interop import config_of_layout
from mimokit.layout_search import SearchTask, search
from mimokit.layout_search.whole_counts import nearest_whole_counts
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
    nearest = nearest_whole_counts(task)
    if not nearest:
        return f"No layout of all {gpus:,} GPUs is faster: it takes {taken:,}."
    counts = listed([f"{count:,}" for count in nearest])
    none = f"No layout takes all {gpus:,} GPUs: it takes {taken:,}."
    return f"{none} The nearest numbers of GPUs that one takes all of: {counts}."


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
