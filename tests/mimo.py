"""Tiny MiMos: Qwen2's model with layers behind it that predict further tokens.

`transformers` has no such class. Names and arithmetic are those of `modeling_mimo.py`, which is in
the repositories of the published weights (XiaomiMiMo/MiMo-7B-Base).
"""

from typing import Any

from mimokit.config import ExperimentConfig
from mimokit.config_files import config_from_mapping
from tests.hugging_face_weights import GROUPED, checkpoint
from tests.layouts_weights import STD

LANGUAGE = "language_module"
FURTHER, WEIGHT = 2, 0.3
"""Layers that predict further tokens, and the weight of the mean of their losses."""


def mimo_model(tied: bool = False) -> Any:
    """Return a model whose layers two stages can share, and three if its ends count as layers."""
    from torch import nn
    from transformers import Qwen2Config, Qwen2ForCausalLM

    class Config(Qwen2Config):
        model_type = "mimo"

    sizes = {**GROUPED, "num_hidden_layers": 8, "num_key_value_heads": 2}
    stated = {"tie_word_embeddings": tied, "num_nextn_predict_layers": FURTHER}
    model = Qwen2ForCausalLM(config := Config(**{**sizes, **stated}))
    model.model.mtp_layers = nn.ModuleList(_layer(config) for _ in range(FURTHER))
    return model


def _layer(config: Any) -> Any:
    from torch import nn
    from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2RMSNorm

    layer = Qwen2DecoderLayer(config, 0)
    for name in ("token", "hidden", "final"):
        norm = Qwen2RMSNorm(config.hidden_size, config.rms_norm_eps)
        layer.register_module(f"{name}_layernorm", norm)
    layer.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
    return layer


def mimo_config(words: dict[str, int], tied: bool = False, **network: Any) -> ExperimentConfig:
    """Return a config of a language model alone that starts from a MiMo.

    Args:
        words: its parallel sizes.
        network: what its section states besides.
    """
    weights = str(checkpoint("mimo_tied" if tied else "mimo", STD))
    stated = {"weights": weights, "seq_length": 24, "mtp_loss_scaling_factor": WEIGHT}
    return config_from_mapping({
        "model": {
            "deployment_mode": "homogeneous",
            "module_parallelisms": {LANGUAGE: words},
            "module_architectures": {LANGUAGE: {**stated, **network}},
        },
        "data": {"base_batch_size": 4 // words.get("data_parallel", 1)},
        "runtime": {"num_iterations": 1},
    })  # fmt: skip


def model_of(config: ExperimentConfig) -> Any:
    """Return the model from whose weights a config of `mimo_config` starts."""
    from pathlib import Path

    from safetensors.torch import load_file

    network = config.model.get_architecture(LANGUAGE)
    model = mimo_model(network.tied_embeddings)
    tensors = load_file(Path(str(network.weights)) / "model.safetensors")
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    return model.float()


def logits_of(model: Any, batch: Any) -> Any:
    """Return the logits of a batch: [samples, tokens, vocabulary]."""
    return model(input_ids=batch["input_ids"]).logits


def further_loss_of(model: Any, batch: Any) -> Any:
    """Return the sum over tokens of the weighted losses of further tokens."""
    import torch
    from torch.nn.functional import cross_entropy

    inner, ids = model.model, batch["input_ids"]
    labels, counts = batch["labels"], batch["loss_mask"]
    hidden = inner(input_ids=ids).last_hidden_state
    places = torch.arange(ids.shape[1])[None]
    turned = inner.rotary_emb(hidden, places)
    future = torch.full((ids.shape[1],) * 2, float("-inf")).triu(1)[None, None]
    total = 0.0
    for layer in inner.mtp_layers:
        ids, labels, counts = map(_one_later, (ids, labels, counts))
        words = layer.token_layernorm(inner.embed_tokens(ids))
        joined = layer.input_proj(torch.cat((layer.hidden_layernorm(hidden), words), -1))
        hidden = layer.final_layernorm(layer(joined, future, position_embeddings=turned))
        logits = model.lm_head(hidden)
        losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        total = total + (losses * counts.flatten()).sum()
    return WEIGHT / FURTHER * total


def _one_later(values: Any) -> Any:
    """Return what belongs to the next token of each; the last one has 0."""
    import torch

    return torch.nn.functional.pad(values[:, 1:], (0, 1))
