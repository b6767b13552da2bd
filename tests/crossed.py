"""Models with as many features as go together, in each mode with each way to run them.

A layout of them proves pairs of what networks have and of how they are run.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, get_args

from mimokit.config import (
    DeploymentMode,
    ExperimentConfig,
    ModuleOptimizerConfig,
    ProjectorArchitecture,
    StrategyConfig,
)
from tests.claims.layouts import TOKENS, placed
from tests.layouts_apart import (
    apart_config,
    apart_multimodal_config,
    decoded_config,
    with_adapter,
    with_edge,
    with_image_decoder,
)
from tests.layouts_experts import BALANCED, MIXTURE
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.whole_runs import LATENT_ATTENTION, YARN, WholeRun

ONE = (1, 1, 1)
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
EXPERTS = {
    **{name: value for name, value in MIXTURE.items() if "moe" in name}, **BALANCED,
    "moe_shared_expert_intermediate_size": 16, "add_bias_linear": False,
    "moe_router_enable_expert_bias": True,
}  # fmt: skip


def _with(config: ExperimentConfig, **fields: Mapping[str, Any]) -> ExperimentConfig:
    """Return the config with two layers of each module, and other fields of networks."""
    networks = config.model.module_architectures
    for name, network in networks.items():
        stated = network.model_dump(exclude_unset=True)
        networks[name] = type(network)(**{**stated, "num_layers": 2, **fields.get(name, {})})
    return config.finalize()


def _latent_attention() -> ExperimentConfig:
    config = multimodal_config(
        dict.fromkeys(("clip", "qwen", "words", LANGUAGE), (1, 1)), "homogeneous",
        num_microbatches=2, patch_type=["vit_frame_parallel"], sample_order="balanced",
    )  # fmt: skip
    clip = {"keep_class_token": True, "optimizer": ModuleOptimizerConfig(lr=3e-3), **DROPOUT}
    qwen = {
        "position_embedding_type": "interpolated", "max_position_embeddings": 9, "window_size": 4,
        "projector": ProjectorArchitecture(deepstack_layers=[1]),
    }  # fmt: skip
    further = {"mtp_num_layers": 1, "rope_scaling": YARN}
    return _with(
        config,
        clip=clip,
        qwen=qwen,
        **{LANGUAGE: {**EXPERTS, **LATENT_ATTENTION, **DROPOUT, **further}},
    )


def _windows() -> ExperimentConfig:
    config = multimodal_config(
        dict.fromkeys(("dino", "qwen", "audio", LANGUAGE), (1, 1)), "homogeneous",
        num_microbatches=2, presence=PRESENCE, three_axes=True, tied=True,
    )  # fmt: skip
    config.data.pack_sequences_in_batch, config.runtime.sample_order = True, "balanced"
    audio = {
        "position_embedding_type": "rope", "rope_scaling": YARN, "add_key_bias": False,
        "frozen": ["projector"],
    }  # fmt: skip
    language = {
        "window_size": 6, "full_attention_layers": 2, "rope_scaling": YARN, "num_query_groups": 2,
        "add_key_bias": False, "qk_layernorm": True, "make_vocab_size_divisible_by": 6,
    }  # fmt: skip
    pooled = {"merge_size": 1, "pooling_head": True}
    return _with(config, dino=pooled, audio=audio, **{LANGUAGE: language})


def _adapter() -> ExperimentConfig:
    """Return a builder's encoder and an adapter, which alone train before a language model."""
    config = with_adapter(apart_config(ONE, ONE, 2), ONE)
    config.data.seq_length = config.model.get_architecture(LANGUAGE).seq_length = TOKENS
    own = {"builder": "tests.experiment.own_encoder:PatchEncoder"}
    learned = {"position_embedding_type": "learned_absolute", "frozen": True}
    return _with(config, images=own, **{LANGUAGE: learned})


def _graph() -> ExperimentConfig:
    """Return sound that feeds the language model directly and by an adapter."""
    modules = dict.fromkeys(("audio", LANGUAGE), ONE)
    config = with_adapter(apart_multimodal_config(modules, 2), ONE, "audio")
    return _with(with_edge(config, "audio"))


def _decoders() -> ExperimentConfig:
    config = decoded_config(dict.fromkeys(("images", LANGUAGE, "writer"), ONE), 2)
    return _with(with_image_decoder(config, ONE))


MODELS: Mapping[str, Callable[[], ExperimentConfig]] = {
    "latent": _latent_attention,
    "windows": _windows,
    "adapter": _adapter,
    "graph": _graph,
    "decoders": _decoders,
}
WAYS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "layers again": (
        {
            "dp": 2, "recompute_granularity": "full", "use_distributed_optimizer": True,
            "overlap_grad_reduce": True,
        },
        {},
    ),
    "full shards": (
        {"dp": 2, "use_megatron_fsdp": True, "recompute_granularity": "selective"}, {}
    ),
    "instances": (
        {"dp": 2, "use_distributed_optimizer": True, "num_distributed_optimizer_instances": 2}, {}
    ),
    "chunks": ({"pp": 2, "vpp": 2}, {"encoder_microbatches": 2}),
    "gpipe": ({"pp": 2}, {"pipeline_order": "gpipe"}),
    "zb-h1": ({"pp": 2}, {"pipeline_order": "zb-h1"}),
    "bf16": ({"dp": 2}, {"precision": "bf16"}),
    "fp16": ({"dp": 2}, {"precision": "fp16"}),
    "fp8": ({"dp": 2}, {"precision": "fp8"}),
    "strategy": ({}, {"name": "diloco", "replicas": 2, "H": 2}),
}  # fmt: skip
"""Sizes of modules, and fields of the run or of its strategy."""


def crossed_config(model: str, mode: DeploymentMode, way: str) -> ExperimentConfig:
    """Return a model in a mode, run in a way."""
    config, (sizes, run) = MODELS[model](), WAYS[way]
    networks = config.model.module_architectures
    own = dict.fromkeys(networks, sizes)
    for name, network in networks.items():
        if "vpp" in sizes:
            network.num_layers = 4
        if network.builder is not None and "pp" in sizes:  # which builds a whole module
            network.builder = None if mode == "homogeneous" else network.builder
            own[name] = {"dp": 2}
        if mode == "homogeneous" and name != LANGUAGE:
            own[name] = {field: value for field, value in sizes.items() if field != "vpp"}
        if network.num_moe_experts and "precision" in run:
            config.runtime.sample_order = "as_drawn"  # another sends tokens to other experts
    for field, value in run.items() if "name" not in run else ():
        if field != "encoder_microbatches" or mode == "colocated":
            setattr(config.runtime, field, value)
    if "name" in run:
        config.strategy = StrategyConfig(**run)
    return placed(config, mode, own)


def _crossed() -> Iterator[WholeRun]:
    for model, way, mode in itertools.product(MODELS, WAYS, get_args(DeploymentMode)):
        apart = model in ("graph", "decoders")
        if (apart and mode != "heterogeneous") or (model, way) == ("decoders", "strategy"):
            continue  # which is refused
        make = partial(crossed_config, model, mode, way)
        yield WholeRun("crossed", f"{model}, {way}, {mode}", make, 4 if way == "strategy" else 2)


CROSSED = tuple(_crossed())
