"""The planner's input fields: label, and as tooltip the description of the config field."""

from collections.abc import Iterable, Mapping
from typing import Any

from mimokit.axes import CONFIG_FIELDS, SPELLINGS, Axis, Choice
from mimokit.config import DataConfig, ModuleArchitecture, ModuleParallelismConfig
from mimokit.config.base import ConfigModel
from mimokit.config.field_docs import field_docs
from mimokit.config.parallelism import LEFT_OUT
from mimokit.config.presets import preset_names
from mimokit_widgets.planner.networks import published_networks
from mimokit_widgets.planner.paths import SIZE_INPUTS, short_name
from mimokit_widgets.planner.training import training_inputs


def _labels(*settings: Axis | Choice) -> dict[str, str]:
    return {str(SPELLINGS[setting].config): SPELLINGS[setting].label for setting in settings}


NETWORK_INPUTS: Mapping[str, str] = {
    "num_layers": "layers",
    "hidden_size": "hidden size",
    "num_attention_heads": "heads",
    "ffn_hidden_size": "ffn size",
    "seq_length": "longest sequence",
    "vocab_size": "vocabulary",
    "image_size": "image size",
    "patch_size": "patch size",
    "num_channels": "channels",
    "merge_size": "merge size",
    "num_registers": "registers",
    "mel_bins": "mel bins",
}
FLAGS: Mapping[str, str] = {
    "frozen": "frozen",
    "class_token": "class token",
    "tied_embeddings": "tied embeddings",
}
EXECUTION_INPUTS: Mapping[str, str] = _labels(
    Axis.VIRTUAL_PIPELINE, Axis.EXPERT_TENSOR, Choice.RECOMPUTE, Choice.OPTIMIZER_INSTANCES
)
EXECUTION_FLAGS: Mapping[str, str] = {
    **_labels(Choice.SEQUENCE_PARALLEL, Choice.DISTRIBUTED_OPTIMIZER, Choice.FULLY_SHARDED),
    "overlap_grad_reduce": "overlapped reduction",
}
"""How a module is executed on its ranks."""

ENCODER_INPUTS = (
    "image_size",
    "patch_size",
    "num_channels",
    "merge_size",
    "num_registers",
    "mel_bins",
    "class_token",
)
"""Fields of networks that only encoders have."""

DATA_INPUTS: Mapping[str, str] = {
    "base_batch_size": "micro-batch size",
    "num_microbatches": "micro-batches",
    "seq_length": "sequence length",
    "image_seq_length": "image tokens",
    "vocab_size": "vocabulary",
    "image_special_token_id": "image token id",
}


def inputs() -> dict[str, Any]:
    """Return the inputs of every section, for the browser.

    Returns:
        `sizes`, `execution`, `execution_flags`, `network`, `flags` and `data`: lists of
        {key, label, hint, empty}, where `empty` is what an empty input stands for; `encoders`: keys
        that only encoders have; `training`: as `training_inputs` has them.
    """
    labels = {field: short_name(field) for field in SIZE_INPUTS}
    return {
        "sizes": list(_inputs(ModuleParallelismConfig, labels)),
        "network": list(_inputs(ModuleArchitecture, NETWORK_INPUTS)),
        "flags": list(_inputs(ModuleArchitecture, FLAGS)),
        "execution": list(_inputs(ModuleParallelismConfig, EXECUTION_INPUTS)),
        "execution_flags": list(_inputs(ModuleParallelismConfig, EXECUTION_FLAGS)),
        "data": list(_inputs(DataConfig, DATA_INPUTS)),
        "training": training_inputs(),
        "encoders": list(ENCODER_INPUTS),
        "presets": list(preset_names()),
        "published": published_networks(),
    }


def _inputs(section: type[ConfigModel], labels: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    words = {field: SPELLINGS[axis].words for axis, field in CONFIG_FIELDS.items()}
    for key, label in labels.items():
        field = section.model_fields[key]
        description = field_docs(section)[key]
        hint = f"{words[key]}: {description}" if key in words else description
        default = "" if field.is_required() or field.default is None else str(field.default)
        empty = _EMPTY.get(key, default)
        options = _OPTIONS.get(key, ())
        yield {"key": key, "label": label, "hint": hint, "empty": empty, "options": options}


_OPTIONS = {"recompute_granularity": ("selective", "full")}
_EMPTY = {
    "ffn_hidden_size": "4 × hidden",
    "vocab_size": "",
    "data_parallel": "auto",
    **{field: str(LEFT_OUT[field]) for field in EXECUTION_INPUTS},
}
