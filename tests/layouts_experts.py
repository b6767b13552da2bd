"""Small configs for tests: digits read by a mixture of experts."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from mimokit.config import ExperimentConfig, ModuleArchitecture
from tests.layouts import digits_config
from tests.layouts_apart import Sizes, apart_config, decoded_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config

MIXTURE: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "seq_length": 42,
    "vocab_size": 16, "num_query_groups": 4, "ffn_hidden_size": 48, "gated_linear_unit": True,
    "normalization": "RMSNorm", "add_bias_linear": False, "init_std": 0.05, "num_moe_experts": 4,
    "moe_router_topk": 2, "moe_ffn_hidden_size": 24,
}  # fmt: skip
SHARED: dict[str, Any] = {
    "first_k_dense_replace": 1, "moe_shared_expert_intermediate_size": 16,
    "moe_shared_expert_gate": True,
}  # fmt: skip
BALANCED: dict[str, Any] = {
    "moe_aux_loss_coeff": 0.2, "moe_z_loss_coeff": 0.02, "moe_expert_capacity_factor": 1.0,
}  # fmt: skip


def experts_config(
    encoder: Sizes,
    language: Sizes,
    apart: bool = False,
    count: int = 1,
    expert_parallel: int = 2,
    expert_tensor_parallel: int | None = None,
    dispatcher: str | None = None,
    **network: Any,
) -> ExperimentConfig:
    """Return a finalized config; a language model cut by tensors has its sequence in slices.

    Args:
        encoder: (tensor, pipeline, data parallel).
        language: likewise.
        apart: on separate ranks.
        count: of micro-batches.
        network: fields of the language model that are not those of `MIXTURE`.
    """
    if apart:
        config = apart_config(encoder, language, count)
    else:
        config = digits_config(encoder[::2], language[::2], count)
    sizes = {
        "expert_parallel": expert_parallel,
        "expert_tensor_parallel": expert_tensor_parallel,
        "moe_token_dispatcher_type": dispatcher,
        "sequence_parallel": language[0] > 1 or None,
    }
    return _with_experts(config, LANGUAGE, sizes, {**MIXTURE, **network})


def expert_decoder_config(
    language: Sizes = (1, 1, 1), writer: Sizes = (1, 1, 2), **fields: Any
) -> ExperimentConfig:
    """Return a decoder with experts on two ranks, behind a language model without any.

    Args:
        language: (tensor, pipeline, data parallel).
        writer: likewise, of the decoder.
        fields: of its network that are not those of `MIXTURE`.
    """
    sizes = {"images": (1, 1, 1), LANGUAGE: language, "writer": writer}
    chosen = {"expert_parallel": 2, "sequence_parallel": writer[0] > 1 or None}
    network = {**MIXTURE, "modal_type": "text", **fields}
    return _with_experts(decoded_config(sizes, 2), "writer", chosen, network)


def frozen_experts_config() -> ExperimentConfig:
    """Return frozen experts, of which each replica has half; the second reads no images."""
    sizes = {"dino": (1, 2), LANGUAGE: (1, 2)}
    config = multimodal_config(sizes, "homogeneous", presence=PRESENCE, frozen=[LANGUAGE])
    return with_experts(config, expert_parallel=2)


def with_experts(
    config: ExperimentConfig, fields: Mapping[str, Any] = MappingProxyType({}), **sizes: Any
) -> ExperimentConfig:
    """Return a config whose language model has experts, and these fields and sizes in addition."""
    network = config.model.get_architecture(LANGUAGE)
    experts = {name: MIXTURE[name] for name in MIXTURE if "moe" in name}
    stated = {
        **network.model_dump(exclude_unset=True),
        **experts,
        "add_bias_linear": False,
        **fields,
    }
    return _with_experts(config, LANGUAGE, sizes, stated)


def _with_experts(
    config: ExperimentConfig, module: str, chosen: dict[str, Any], network: dict[str, Any]
) -> ExperimentConfig:
    model = config.model
    sizes = model.module_parallelisms
    others = list(sizes) if model.deployment_mode == "homogeneous" else [module]
    model.module_parallelisms = {
        **sizes,
        **{name: sizes[name].model_copy(update=chosen) for name in others},
    }
    model.module_architectures = {
        **model.module_architectures,
        module: ModuleArchitecture(**network),
    }
    config.finalize()
    return config
