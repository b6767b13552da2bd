"""A plan for a model that a Hugging Face config describes: the best layout on the named GPUs."""

import json
from contextlib import suppress
from pathlib import Path

from mimokit.config import ConfigError, ExperimentConfig, Problem
from mimokit.interop import config_of_layout
from mimokit.layout_search import search
from mimokit.prediction import Workload

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
    _check_unquantized(source)
    workload = Workload(
        SEQ_LENGTH if seq_length is None else seq_length,
        SAMPLES_PER_GPU * gpus if global_batch is None else global_batch,
    )
    found = search(source, gpus=gpus, gpu=gpu, workload=workload)
    supposed = None if gpu is None else {"gpu": gpu}
    model, layout = found.task.model, found.best.layout
    return config_of_layout(layout, workload, model=model, supposed=supposed)


def _check_unquantized(source: str) -> None:
    file = Path(source) / "config.json" if Path(source).is_dir() else Path(source)
    content: object = None
    with suppress(OSError, ValueError):  # `from_hf` says what is wrong with it
        content = json.loads(file.read_text(encoding="utf-8"))
    section = content.get("quantization_config") if isinstance(content, dict) else None
    method = section.get("quant_method", "unknown") if isinstance(section, dict) else None
    if method in (None, "fp8"):  # DeepSeek-V3 was trained in fp8
        return
    sentence = (
        f"Model '{source}': its weights are quantized ({method}), which is not trained; give the "
        "config.json of the model before quantization."
    )
    raise ConfigError([Problem("model", "quantization_config", method, sentence)])
