"""Whole runs that must compute what one process computes, beside the claims and `tests/crossed.py`.

Each cuts modules in several ways at once, or in more parts than a claim does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pytest

from mimokit.config import (
    DeploymentMode,
    ExperimentConfig,
    ModalityPresence,
    ProjectorArchitecture,
    RopeScaling,
    StrategyConfig,
)
from mimokit.config.runtime import BALANCED, FRAME_PARALLEL
from mimokit.config_files import config_from_mapping
from tests.invariance import STEPS
from tests.layouts import SAMPLES_PER_MICROBATCH, digits_config
from tests.layouts_apart import (
    Sizes,
    apart_config,
    apart_multimodal_config,
    decoded_config,
    with_adapter,
    with_edge,
    with_image_decoder,
)
from tests.layouts_experts import BALANCED as EVEN
from tests.layouts_experts import SHARED as WITH_SHARED
from tests.layouts_experts import expert_decoder_config, experts_config, with_experts
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.layouts_networks import network_config
from tests.layouts_pipelines import shared_pipeline
from tests.layouts_weights import weights_config, weights_mapping
from tests.llava import llava_config
from tests.mimo import mimo_config
from tests.qwen_vl import qwen_config

Make = Callable[[], ExperimentConfig]


@dataclass(frozen=True)
class WholeRun:
    """A run that is compared with one process after each of its steps.

    Attributes:
        proves: what it is in the list for; a test takes all runs of one such text.
        name: what distinguishes it from the others of its test.
        make: returns the finalized config.
        steps: how many are compared.
    """

    proves: str
    name: str
    make: Make
    steps: int = STEPS


def whole_runs(proves: str) -> pytest.MarkDecorator:
    """Parametrize a test with `run`, for every run of the list that proves something."""
    chosen = [run for run in WHOLE_RUNS if run.proves == proves]
    assert chosen, f"no whole run proves: {proves}"
    return pytest.mark.parametrize("run", chosen, ids=[run.name for run in chosen])


UNCUT = (1, 1, 1)
RECOMPUTED = {"recompute_granularity": "full", "overlap_grad_reduce": True}
SLICED = {"sequence_parallel": True}
SHARDED_STATES = {"use_distributed_optimizer": True}
OVERLAPPED = {"overlap_grad_reduce": True}
IN_FULL = {"use_megatron_fsdp": True}
TWO_INSTANCES = {"num_distributed_optimizer_instances": 2}
INSTANCES = {**SHARDED_STATES, **TWO_INSTANCES}
LLAMA_LIKE = {
    "num_query_groups": 2, "normalization": "RMSNorm", "gated_linear_unit": True,
    "add_bias_linear": False,
}  # fmt: skip
YARN = RopeScaling(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale_all_dim=0.5
)
LONG = {
    "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 16,
    "short_factor": (1.0,) * 4, "long_factor": (1.0, 1.5, 2.0, 4.0),
}  # fmt: skip
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.2}
DROPOUT_OF_ADAPTERS = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
LATENT_ATTENTION = {
    "multi_latent_attention": True, "kv_lora_rank": 12, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6,
}  # fmt: skip
WINDOWS = {"window_size": 6, "full_attention_layers": 2}
"""Most samples have more tokens; every other layer attends to all of them."""
INTERPOLATED = {"position_embedding_type": "interpolated", "max_position_embeddings": 9}
TURNING = {"position_embedding_type": "rope", "rotary_base": 100.0, "rope_scaling": YARN}
ONE_ROW_OF_ANY_SIZE = {"pooling_head": True, "merge_size": 1}
BIASED = {"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.05}
OF_ADAPTERS = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32}
OF_ENCODERS = {
    "num_moe_experts": 4, "moe_ffn_hidden_size": 24, "add_bias_linear": False, **EVEN
}  # fmt: skip
OF_EACH_SAMPLE = {**EVEN, "moe_router_load_balancing_type": "seq_aux_loss"}
SHARED = {"patch_type": [FRAME_PARALLEL]}
ORDERED = {"sample_order": BALANCED}
EQUAL = {"clip": (1, 2), "dino": (1, 2), "audio": (1, 2), LANGUAGE: (1, 2)}
# (tensor, data): shared by both stages of the language model, by half of them, by none.
AROUND = {"clip": (4, 2), "audio": (1, 8), "qwen": (2, 4)}
SOME = {"qwen": ModalityPresence(samples=[True, False, True, True, False, False, False, False])}
"""Whole replicas are without images."""
STRIPS = [8, 8, 1, 2, 0, 0, 1, 5]
"""Scans of a sample; one of four replicas has none."""


def _changed(config: ExperimentConfig, module: str, **fields: Any) -> ExperimentConfig:
    """Return the config with other fields of a network."""
    networks = config.model.module_architectures
    config.model.module_architectures = {
        **networks,
        module: networks[module].model_copy(update=fields),
    }
    return config


def _networks_with(
    config: ExperimentConfig, modules: Iterable[str], fields: Mapping[str, Any]
) -> ExperimentConfig:
    """Return the config with other fields of some networks."""
    for name in modules:
        _changed(config, name, **fields)
    return config


def _frozen(config: ExperimentConfig, **frozen: Any) -> ExperimentConfig:
    for module, what in frozen.items():
        _changed(config, module, frozen=what)
    return config


def with_sizes(config: ExperimentConfig, modules: Iterable[str], **fields: Any) -> ExperimentConfig:
    """Return the config with other fields of the parallelism of some modules."""
    for name in modules:
        sizes = config.model.module_parallelisms
        sizes[name] = sizes[name].model_copy(update=fields)
    return config


def with_strategy(config: ExperimentConfig, **strategy: Any) -> ExperimentConfig:
    """Return the config with replicas that exchange by a strategy."""
    config.strategy = StrategyConfig(**strategy)
    return config


def in_precision(config: ExperimentConfig, precision: str) -> ExperimentConfig:
    """Return a layout in another precision."""
    config.runtime.precision = precision
    return config


def cut_along_sequences(config: ExperimentConfig, **sizes: Any) -> ExperimentConfig:
    """Return a config of which all modules have sequence parallelism, and other sizes as given."""
    model = config.model
    model.module_parallelisms = {
        name: module.model_copy(update={"sequence_parallel": True, **sizes})
        for name, module in model.module_parallelisms.items()
    }
    return config


def on_contexts(config: ExperimentConfig, **contexts: int) -> ExperimentConfig:
    """Return a config with context parallelism, the ranks of which its replicas gave."""
    model, replicas = config.model, config.model.get_parallelism(LANGUAGE).data_parallel
    for name, ranks in contexts.items():
        module = model.module_parallelisms[name]
        assert module.data_parallel is not None
        module.context_parallel, module.data_parallel = ranks, module.data_parallel // ranks
    left = config.model.get_parallelism(LANGUAGE).data_parallel
    config.data.base_batch_size *= replicas // left
    return config


def _longer(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config of strips with 44 tokens, which 2 and 4 divide, in place of 42."""
    config.data.seq_length = 44
    return _changed(config, LANGUAGE, seq_length=44)


def in_rows(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config whose language model computes samples in a row."""
    config.data.pack_sequences_in_batch = True
    return config


def recomputed(config: ExperimentConfig, **granularity: str) -> ExperimentConfig:
    """Return a config whose networks drop numbers, and whose modules recompute."""
    for module in _dropping(config, **granularity).model.module_parallelisms.values():
        module.sequence_parallel = module.tensor_parallel == 2
    return config


def _dropping(config: ExperimentConfig, **granularity: str) -> ExperimentConfig:
    for name, module in config.model.module_parallelisms.items():
        _changed(config, name, **DROPOUT)
        module.recompute_granularity = granularity.get(name)
    return config


def with_inner_layers(
    config: ExperimentConfig, images: str, *layers: int, **norm: Any
) -> ExperimentConfig:
    """Return a config whose language model adds outputs of inner layers of an encoder of images.

    Args:
        norm: fields of their projectors.
    """
    networks = config.model.module_architectures
    networks[images].num_layers = max(2, networks[images].num_layers)
    networks[LANGUAGE].num_layers = max(4, networks[LANGUAGE].num_layers)
    said = networks[images].projector or ProjectorArchitecture()
    networks[images].projector = said.model_copy(update={"deepstack_layers": list(layers), **norm})
    return config.finalize()


def ends_as_layers(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config whose language model deals its layers out with its ends, two a chunk."""
    sizes = config.model.module_parallelisms[LANGUAGE]
    sizes.account_for_embedding_in_pipeline_split = True
    sizes.account_for_loss_in_pipeline_split = True
    parts = sizes.pipeline_parallel * (sizes.virtual_pipeline_model_parallel_size or 1)
    ends = 2 + (config.model.get_architecture(LANGUAGE).mtp_num_layers or 0)
    return _changed(config, LANGUAGE, num_layers=2 * parts - ends)


def predicting(config: ExperimentConfig, layers: int = 1) -> ExperimentConfig:
    """Return a config whose language model predicts as many tokens further on."""
    return _changed(config, LANGUAGE, mtp_num_layers=layers)


def _qwen(sizes: Mapping[str, Any], mode: DeploymentMode, **options: Any) -> ExperimentConfig:
    """Return images of any size on shared ranks, which whole replicas lack."""
    return multimodal_config(sizes, mode, **_OF_ANY_SIZE, **options)


_OF_ANY_SIZE: dict[str, Any] = {"num_microbatches": 2, "three_axes": True, "presence": SOME}


def learned_positions_in_slices() -> ExperimentConfig:
    """Return a GPT-2 with tied, padded embeddings, sequence parallel around a SigLIP."""
    return cut_along_sequences(network_config("gpt2", "siglip", (2, 1, 1), (2, 1, 1)))


def learned_positions_on_contexts() -> ExperimentConfig:
    """Return a GPT-2 of two tensor and two context-parallel ranks with a SigLIP inside."""
    config = _longer(network_config("gpt2", "siglip", (2, 1, 2), (2, 1, 2)))
    return on_contexts(cut_along_sequences(config), images=2, language_module=2)


def three_axes_in_rows() -> ExperimentConfig:
    """Return samples in a row, with yarn on three axes, on context and tensor ranks."""
    config = _qwen({"qwen": (1, 4), LANGUAGE: (2, 2)}, "colocated")
    config = cut_along_sequences(_changed(config, LANGUAGE, **LLAMA_LIKE, rope_scaling=YARN))
    return in_rows(on_contexts(config, language_module=2))


def stages_on_contexts() -> ExperimentConfig:
    """Return encoders and two stages of a language model, on context-parallel ranks.

    The patches of an image and their class token are 5 positions on two ranks.
    """
    sizes = {"audio": (1, 1, 2), "clip": (1, 1, 2), LANGUAGE: (1, 2, 2)}
    config = apart_multimodal_config(sizes, 2, presence=PRESENCE)
    return on_contexts(config, audio=2, clip=2, language_module=2)


def latent_config() -> ExperimentConfig:
    """Return two tensor-parallel ranks, on which all heads of a token share a rotary key."""
    return _changed(digits_config((2, 1), (2, 1)), LANGUAGE, q_lora_rank=10, **LATENT_ATTENTION)


def _latent_on_contexts() -> ExperimentConfig:
    """Return samples in a row on two tensor and two context-parallel ranks, which drop numbers."""
    config = cut_along_sequences(_longer(digits_config((2, 2), (2, 2))))
    latent = {**LATENT_ATTENTION, "normalization": "RMSNorm", "add_bias_linear": False, **DROPOUT}
    config = _changed(config, LANGUAGE, **latent, rope_scaling=YARN)
    return in_rows(on_contexts(config, images=2, language_module=2))


def _latent_with_experts() -> ExperimentConfig:
    """Return two recomputed stages like DeepSeek-V3's, with biases of experts and dropout."""
    latent = {**LATENT_ATTENTION, "q_lora_rank": 10, "num_query_groups": None, **DROPOUT}
    sizes = (1, 1, 2), (2, 2, 1)
    config = experts_config(*sizes, True, 2, num_layers=4, **BIASED, **latent)
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = "selective"
    return config


def _windows_on_contexts() -> ExperimentConfig:
    """Return samples in a row, with yarn, on two tensor and two context-parallel ranks."""
    config = cut_along_sequences(_longer(network_config("qwen3", "clip", (2, 1, 2), (2, 1, 2))))
    config = _changed(config, LANGUAGE, rope_scaling=YARN, **WINDOWS)
    return in_rows(on_contexts(config, images=2, language_module=2))


def _windows_of_encoders() -> ExperimentConfig:
    """Return two stages of tensor-parallel ranks, whose images have any size, next to sound."""
    sizes = {"qwen": (2, 2, 1), "audio": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, 2, three_axes=True, presence=PRESENCE)
    _changed(config, "qwen", window_size=4, full_attention_layers=[2])
    return _changed(config, "audio", window_size=4, full_attention_layers=[1])


def _windows_of_encoders_on_contexts() -> ExperimentConfig:
    """Return squares beside class tokens, and sound, which drop numbers, on parts of sequences."""
    sizes = {"dino": (2, 2), "audio": (1, 4), LANGUAGE: (2, 2)}
    config = multimodal_config(sizes, "colocated", num_microbatches=2, presence=PRESENCE)
    config = on_contexts(config, dino=2, audio=2)
    _changed(config, "dino", window_size=9, attention_dropout=0.2)
    _changed(config, "audio", window_size=5, attention_dropout=0.2)
    return with_sizes(config, ("dino",), sequence_parallel=True)


def inner_layers_on_stages() -> ExperimentConfig:
    """Return stages of tensor-parallel ranks with slices of sequences, all recomputed."""
    config = cut_along_sequences(apart_config((2, 2, 1), (2, 2, 1), 2))
    again = recomputed(config, images="full", language_module="full")
    return with_inner_layers(again, "images", 1, 2, deepstack_normalization="LayerNorm")


def _inner_layers_in_rows() -> ExperimentConfig:
    """Return an encoder like Qwen3-VL's, which interpolates; the axes of words alternate."""
    config = _changed(three_axes_in_rows(), "qwen", **INTERPOLATED)
    config = _changed(config, LANGUAGE, mrope_section=[4, 2, 2], mrope_interleaved=True)
    return with_inner_layers(config, "qwen", 1, 2)


def tied_on_stages(stages: int) -> ExperimentConfig:
    """Return a language model of some stages, whose embeddings are tied, behind one rank."""
    return _changed(apart_config(UNCUT, (1, stages, 1), 2), LANGUAGE, tied_embeddings=True)


def tied_on_four_ranks() -> ExperimentConfig:
    """Return two tensor-parallel ranks before two stages with tied embeddings."""
    return _changed(apart_config((2, 1, 1), (1, 2, 1)), LANGUAGE, tied_embeddings=True)


def tied_alone() -> ExperimentConfig:
    """Return a language model alone of two stages with tied embeddings."""
    language = apart_multimodal_config({LANGUAGE: (1, 2, 1)})
    return _changed(language, LANGUAGE, tied_embeddings=True)


def encoder_in_chunks(**fields: Any) -> ExperimentConfig:
    """Return two replicas of an encoder, one without images, of two stages of two chunks each.

    Args:
        fields: of its parallelism, and patch_type.
    """
    sizes = {"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}
    shared = {"patch_type": fields.pop("patch_type", [])}
    config = apart_multimodal_config(sizes, 3, three_axes=True, presence=SOME, **shared)
    chunks = {"virtual_pipeline_model_parallel_size": 2, **fields}
    return with_sizes(_changed(config, "qwen", num_layers=4), ("qwen",), **chunks).finalize()


def _weights_later() -> ExperimentConfig:
    """Return two stages behind two, with tied embeddings, slices of sequences and recomputation."""
    config = cut_along_sequences(apart_config((2, 2, 1), (2, 2, 1), 4))
    config = _changed(config, LANGUAGE, tied_embeddings=True)
    with_sizes(config, (LANGUAGE,), recompute_granularity="full")
    with_sizes(config, ("images",), overlap_grad_reduce=True, recompute_granularity="selective")
    config.runtime.pipeline_order = "zb-h1"
    return config.finalize()


def apart_in_chunks(replicas: int = 1) -> ExperimentConfig:
    """Return a language model of 2 stages of 2 chunks behind an encoder of 2 stages."""
    config = apart_config((1, 2, 1), (2 // replicas, 2, replicas), 4)
    config = _changed(config, LANGUAGE, num_layers=4, tied_embeddings=True)
    return with_sizes(config, (LANGUAGE,), virtual_pipeline_model_parallel_size=2).finalize()


def image_decoder_of_absent_images(sizes: Sizes) -> ExperimentConfig:
    """Return an image decoder of images that some samples and micro-batches lack."""
    modules = {"clip": UNCUT, "audio": UNCUT, LANGUAGE: (1, 2, 1)}
    return with_image_decoder(_without_some_images(modules), sizes, "clip")


def _adapter_of_absent_items(sizes: Sizes) -> ExperimentConfig:
    """Return an adapter behind an encoder that some samples and micro-batches lack."""
    modules = {"clip": (1, 1, 2), "audio": UNCUT, LANGUAGE: (1, 2, 1)}
    return with_adapter(_without_some_images(modules), sizes, "clip")


def _without_some_images(modules: Mapping[str, Sizes]) -> ExperimentConfig:
    presence = {"clip": ModalityPresence(microbatches=[True, False], samples=[True, False, False])}
    return apart_multimodal_config(modules, 4, presence=presence)


def _image_decoder_on_contexts() -> ExperimentConfig:
    """Return one of two contexts of two tensor-parallel ranks, behind two replicas."""
    config = apart_config(UNCUT, (1, 1, 2), 2)
    config = with_image_decoder(config, (2, 1, 2), reconstruction_loss_weight=3.0)
    return on_contexts(cut_along_sequences(config), painter=2)


def decoder_of_any_size(sizes: Sizes, encoder: str) -> ExperimentConfig:
    """Return one of items that differ in size and that some samples and micro-batches lack."""
    presence = {encoder: ModalityPresence(microbatches=[True, False], samples=[True, True, False])}
    modules = {encoder: UNCUT, LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(modules, 2, presence=presence)
    return with_image_decoder(config, sizes, encoder)


def _decoder_of_images(painter: Sizes) -> ExperimentConfig:
    return with_image_decoder(apart_config(UNCUT, UNCUT, 2), painter)


def _decoder_in_windows() -> ExperimentConfig:
    sizes = {"images": UNCUT, LANGUAGE: (1, 1, 2), "writer": (2, 1, 1)}
    fields = {"rope_scaling": RopeScaling(**LONG), "rotary_base": 1000}
    config = cut_along_sequences(decoded_config(sizes, 2))
    return _changed(config, "writer", window_size=3, **fields)


def _padded_decoder_in_slices() -> ExperimentConfig:
    """Return a decoder on tensor and context ranks that drop numbers, with a table of 42 rows."""
    sizes = {"images": UNCUT, LANGUAGE: (1, 1, 2), "writer": (2, 1, 2)}
    config = on_contexts(_dropping(cut_along_sequences(decoded_config(sizes, 2))), writer=2)
    return _changed(config, "writer", position_embedding_type="learned_absolute")


def _decoder_of_replicas(**fields: Any) -> ExperimentConfig:
    """Return two replicas of each of three modules, with other fields of their parallelism."""
    behind = dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 2))
    return with_sizes(decoded_config(behind, 2), behind, **fields)


def _adapted(
    images: Sizes = UNCUT, adapter: Sizes = UNCUT, language: Sizes = UNCUT, **fields: object
) -> ExperimentConfig:
    """Return an adapter between encoder and language model; see `with_adapter`."""
    return with_adapter(apart_config(images, language, 3), adapter, **fields)


def _adapter_of_recordings() -> ExperimentConfig:
    """Return four replicas of an adapter of items of different lengths, which some samples lack."""
    presence = {"audio": ModalityPresence(microbatches=[True, True, False], samples=[True, False])}
    sizes = {"audio": UNCUT, LANGUAGE: (1, 1, 2)}
    config = apart_multimodal_config(sizes, 3, presence=presence)
    config = with_adapter(config, (1, 1, 4), "audio", **DROPOUT_OF_ADAPTERS)
    return with_sizes(config, ("adapter",), **INSTANCES, **RECOMPUTED)


def _adapter_with_experts() -> ExperimentConfig:
    """Return an adapter whose two replicas share four experts."""
    config = _adapted(adapter=(1, 1, 2), **OF_ADAPTERS)
    return with_sizes(config, ("adapter",), expert_parallel=2, recompute_granularity="selective")


def direct_rows(
    images: Sizes, adapter: Sizes, language: Sizes, **fields: object
) -> ExperimentConfig:
    """Return images that feed an adapter and the language model; see `with_adapter`."""
    return with_edge(_adapted(images, adapter, language, **fields))


def _adapters_in_every_way() -> ExperimentConfig:
    """Return images that reach the language model by two adapters in a row, by each, and directly.

    The second takes the rows of images twice, once as the first makes them.
    """
    config = with_adapter(direct_rows(UNCUT, UNCUT, (1, 2, 1)), (1, 2, 1), "adapter", "last")
    return with_edge(with_edge(config, "images", "last"), "adapter")


def _direct_rows_in_chunks() -> ExperimentConfig:
    """Return images and what they feed in two chunks on each of two sets of ranks."""
    config = direct_rows((1, 2, 1), (1, 2, 1), (1, 2, 1), num_layers=4)
    config = _networks_with(config, ("images", LANGUAGE), {"num_layers": 4})
    chunks = {"virtual_pipeline_model_parallel_size": 2}
    return with_sizes(config, ("images", "adapter", LANGUAGE), **chunks)


def _adapter_on_shared_ranks(
    config: ExperimentConfig,
    mode: DeploymentMode,
    sizes: Mapping[str, Sizes],
    of_all: Mapping[str, Any] = MappingProxyType({}),
    passes: int | None = None,
) -> ExperimentConfig:
    """Return a layout of 44 tokens on shared ranks.

    Args:
        sizes: module -> (tensor, pipeline, data parallel).
        of_all: fields of the parallelism of all modules.
        passes: encoder_microbatches of the runtime.
    """
    networks, fields = config.model.module_architectures, dict[str, dict[str, Any]]()
    config.data.seq_length = networks[LANGUAGE].seq_length = 44
    for name, (tensor, stages, replicas) in sizes.items():
        own = {"tensor_parallel": tensor, "pipeline_parallel": stages, "data_parallel": replicas}
        fields[name] = {**own, **of_all}
        networks[name].num_layers = max(stages, networks[name].num_layers)
    config.data.base_batch_size = SAMPLES_PER_MICROBATCH // sizes[LANGUAGE][2]
    config = config.with_layout(mode, **fields)
    config.runtime.encoder_microbatches = passes
    return config


def adapted_on_shared_ranks(*sizes: Sizes) -> ExperimentConfig:
    """Return an adapter in colocated mode.

    Args:
        sizes: (tensor, pipeline, data parallel) of encoder, adapter and language model.
    """
    of = dict(zip(("images", "adapter", LANGUAGE), sizes, strict=True))
    return _adapter_on_shared_ranks(_adapted(), "colocated", of)


def adapter_of_replicas_without_items() -> ExperimentConfig:
    """Return four replicas of an adapter, some of which have no items, of an encoder's one."""
    sizes = {"clip": (4, 1, 1), "audio": (1, 1, 4), "adapter": (1, 1, 4), LANGUAGE: (2, 1, 2)}
    return _adapter_on_shared_ranks(_adapter_of_absent_items(UNCUT), "colocated", sizes, passes=2)


def _adapter_on_all_ranks() -> ExperimentConfig:
    """Return an adapter that drops numbers, on the ranks of all modules, which share states."""
    same = dict.fromkeys(("images", "adapter", LANGUAGE), (2, 2, 2))
    states = {**SLICED, **INSTANCES, **RECOMPUTED}
    config = _adapted(**DROPOUT_OF_ADAPTERS)
    return _adapter_on_shared_ranks(config, "homogeneous", same, states)


def _experts_on_all_ranks() -> ExperimentConfig:
    """Return an adapter and a language model with experts on contexts, in full shards."""
    config = _changed(_adapted(**OF_ADAPTERS), LANGUAGE, add_bias_linear=False, **OF_ADAPTERS)
    shared = {"context_parallel": 2, "expert_parallel": 2, "recompute_granularity": "selective"}
    same = dict.fromkeys(("images", "adapter", LANGUAGE), (1, 1, 2))
    return _adapter_on_shared_ranks(config, "homogeneous", same, {**shared, **IN_FULL})


def _two_adapters_on_shared_ranks() -> ExperimentConfig:
    """Return an adapter of two stages behind one of four tensor ranks with rotary positions."""
    rotary = {"position_embedding_type": "rope", **DROPOUT_OF_ADAPTERS}
    config = _adapted(adapter=(1, 1, 2), **rotary)
    config = with_adapter(config, (2, 2, 1), "adapter", "second", hidden_size=32)
    sizes = {"images": (1, 1, 4), "adapter": (4, 1, 1), "second": (1, 2, 2), LANGUAGE: (2, 2, 1)}
    return _adapter_on_shared_ranks(config, "colocated", sizes, passes=2)


def experts_on_contexts() -> ExperimentConfig:
    """Return experts that count the tokens of samples of which a rank has a part."""
    config = experts_config((1, 1, 4), (1, 1, 4), **WITH_SHARED, **EVEN)
    return on_contexts(_longer(config), images=2, language_module=2)


def _experts_with_bias_on_contexts() -> ExperimentConfig:
    """Return biases of experts that a rank moves by the tokens of all contexts and replicas."""
    config = _longer(experts_config((1, 1, 4), (1, 1, 4), **BIASED, **EVEN))
    config = on_contexts(config, images=2, language_module=2)
    return with_sizes(config, (LANGUAGE,), recompute_granularity="full")


def _stages_of_contexts(**options: Any) -> ExperimentConfig:
    """Return two stages of four layers on two contexts each, around sound that samples lack."""
    options |= {"presence": PRESENCE, "layers": 4, "context_parallel": 2}
    return shared_pipeline("colocated", (1, 2, 1), {"audio": (1, 4)}, 2, **options)


def experts_on_shared_stages() -> ExperimentConfig:
    """Return experts in chunks of two stages, on two contexts each, that read samples in a row."""
    config = with_experts(_stages_of_contexts(chunks=2), expert_parallel=2)
    return in_rows(with_sizes(config, (LANGUAGE,), recompute_granularity="selective"))


def _balanced_rows_on_stages() -> ExperimentConfig:
    """Return stages of two contexts each, whose experts balance rows of unequal samples."""
    return in_rows(with_experts(_stages_of_contexts(), {**BIASED, **EVEN}, expert_parallel=2))


def _balanced_rows_of_replicas() -> ExperimentConfig:
    """Return replicas of two tensor ranks, whose experts gather and balance their samples."""
    sizes = {"audio": (1, 4), LANGUAGE: (2, 2)}
    config = multimodal_config(sizes, "colocated", num_microbatches=2, presence=SOME)
    cut = {"expert_parallel": 2, "expert_tensor_parallel": 2, "sequence_parallel": True}
    gathered = {**cut, "moe_token_dispatcher_type": "allgather"}
    return in_rows(with_experts(config, OF_EACH_SAMPLE, **gathered))


def balanced_decoder_on_stages() -> ExperimentConfig:
    """Return rows of stages before stages of tensor ranks, whose experts balance them."""
    return in_rows(expert_decoder_config((1, 2, 1), (2, 2, 1), **BIASED, **EVEN))


def _balanced_decoder_on_contexts() -> ExperimentConfig:
    """Return experts on two contexts that balance samples which come with their padding."""
    config = expert_decoder_config((2, 1, 1), (1, 1, 4), **OF_EACH_SAMPLE)
    return on_contexts(_longer(config), writer=2)


def experts_of_encoders_on_stages() -> ExperimentConfig:
    """Return an encoder of two stages, with experts of which replicas without images have half."""
    config = apart_multimodal_config({"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}, **_OF_ANY_SIZE)
    return with_sizes(_changed(config, "qwen", **OF_ENCODERS), ("qwen",), expert_parallel=2)


def _experts_of_shared_images() -> ExperimentConfig:
    config = _dropping(experts_of_encoders_on_stages(), qwen="full")
    config.runtime.patch_type = [FRAME_PARALLEL]
    return config


def _experts_of_encoders_in_parts() -> ExperimentConfig:
    """Return experts of tensor-parallel ranks, and of sound on contexts, which gathers tokens."""
    sizes = {"qwen": (2, 2), "audio": (1, 4), LANGUAGE: (2, 2)}
    config = multimodal_config(sizes, "colocated", num_microbatches=2, presence=PRESENCE)
    config = _networks_with(on_contexts(config, audio=2), ("qwen", "audio"), OF_ENCODERS)
    with_sizes(config, ("qwen", "audio"), expert_parallel=2)
    with_sizes(config, ("audio",), moe_token_dispatcher_type="allgather")
    return with_sizes(config, ("qwen",), expert_tensor_parallel=2, **SLICED)


def _experts_of_encoders_inside() -> ExperimentConfig:
    """Return an encoder on the ranks of a language model, whose replicas have whole experts."""
    config = _qwen({"qwen": (1, 4), LANGUAGE: (1, 4)}, "homogeneous")
    return _changed(config, "qwen", **OF_ENCODERS, **BIASED)


def frames_by_fan_in() -> ExperimentConfig:
    """Return four replicas of an encoder that share their images, before two."""
    return _qwen({"qwen": (1, 4), LANGUAGE: (2, 2)}, "colocated", **SHARED)


def samples_in_another_order() -> ExperimentConfig:
    """Return replicas that read other samples, so that all have equally much to do."""
    return _qwen({"qwen": (1, 4), LANGUAGE: (1, 4)}, "homogeneous", **ORDERED)


def _strips() -> ExperimentConfig:
    config = digits_config((1, 4), (1, 4), **SHARED)
    config.data.modality_frames = {"images": STRIPS}
    return config


def any_size_on_stages() -> ExperimentConfig:
    """Return an encoder of two stages, of which two replicas each share their images."""
    sizes = {"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}
    return apart_multimodal_config(sizes, **_OF_ANY_SIZE, **SHARED)


def _class_tokens_on_stages() -> ExperimentConfig:
    """Return the same of images of one size, each with a class token in the output."""
    sizes = {"clip": (1, 2, 2), "audio": UNCUT, LANGUAGE: (1, 1, 2)}
    config = apart_multimodal_config(sizes, 2, presence=PRESENCE, **SHARED)
    return _changed(config, "clip", keep_class_token=True)


def _turning_on_contexts() -> ExperimentConfig:
    """Return rotary positions of sound and words, on contexts."""
    shares = {"words": (2, 2), "audio": (2, 2), LANGUAGE: (2, 2)}
    config = multimodal_config(shares, "colocated", num_microbatches=2)
    config = with_sizes(on_contexts(config, words=2, audio=2), ("audio",), **SLICED)
    return _networks_with(config, ("words", "audio"), TURNING)


def _pooled_any_size_on_contexts() -> ExperimentConfig:
    """Return pooled images of any size on parts of sequences, in full shards, recomputed."""
    config = _qwen({"qwen": (2, 2), LANGUAGE: (2, 2)}, "colocated")
    config = on_contexts(_changed(config, "qwen", **ONE_ROW_OF_ANY_SIZE), qwen=2)
    return with_sizes(recomputed(config, qwen="full"), ("qwen",), **IN_FULL)


def pooled_weights(mode: str, images: dict[str, int], words: dict[str, int]) -> ExperimentConfig:
    """Return a SigLIP tower that starts from weights, its pooling head as well."""
    content = weights_mapping("qwen2", "siglip_tower", mode, images, words)
    content["model"]["module_architectures"]["images"]["pooling_head"] = True
    content["data"]["image_seq_length"] = 1
    return config_from_mapping(content)


def _instance_without_inputs() -> ExperimentConfig:
    one_sided = ModalityPresence(samples=[index < 2 for index in range(8)])
    sizes = {"qwen": (1, 1, 2), LANGUAGE: (1, 1, 2)}
    config = apart_multimodal_config(sizes, 2, presence={"qwen": one_sided})
    return with_sizes(config, ("qwen",), **OVERLAPPED, **INSTANCES)


def _colocated_in_full_shards() -> ExperimentConfig:
    shares = {"clip": (1, 4), "audio": (2, 2), "words": (1, 4), LANGUAGE: (2, 2)}
    config = multimodal_config(shares, "colocated", num_microbatches=2, presence=PRESENCE)
    with_sizes(config, ("audio",), **SLICED)
    return _dropping(with_sizes(config, shares, **IN_FULL, **OVERLAPPED))


def _around(mode: DeploymentMode, language: Sizes, count: int, **options: Any) -> ExperimentConfig:
    """Return three encoders around two stages of a language model with tied embeddings."""
    several = {"presence": PRESENCE, "tied": True, "three_axes": True}
    return shared_pipeline(mode, language, AROUND, count, **several, **options)


def _gpipe_on_contexts() -> ExperimentConfig:
    cut = {"context_parallel": 2, "pipeline_order": "gpipe"}
    config = _around("colocated", (2, 2, 1), 3, **cut)
    return with_sizes(config, (LANGUAGE,), recompute_granularity="selective")


def _zb_h1_in_passes() -> ExperimentConfig:
    options = {"encoder_microbatches": 2, "pipeline_order": "zb-h1"}
    return cut_along_sequences(_around("colocated", (2, 2, 2), 3, **options))


def _sound_in_zb_h1(language: Sizes, audio: tuple[int, int], count: int) -> ExperimentConfig:
    encoders = {"audio": audio}
    return shared_pipeline("homogeneous", language, encoders, count, pipeline_order="zb-h1")


def _stretched_stages() -> ExperimentConfig:
    sizes = {"qwen": (2, 2, 1), LANGUAGE: (2, 2, 1)}
    config = apart_multimodal_config(sizes, 2, three_axes=True, presence=SOME)
    stretched = RopeScaling(rope_type="llama3", original_max_position_embeddings=16)
    return cut_along_sequences(_changed(config, LANGUAGE, rope_scaling=stretched))


def _without_key_biases() -> ExperimentConfig:
    keyless = {"num_query_groups": 2, "add_key_bias": False}
    return _networks_with(apart_config((4, 1, 1), (4, 1, 1), 2), ("images", LANGUAGE), keyless)


def _next_to_another_decoder() -> ExperimentConfig:
    sizes = {"images": UNCUT, LANGUAGE: (1, 2, 1), "writer": UNCUT, "other": (1, 2, 1)}
    return decoded_config(sizes, 4)


def _staged_experts() -> ExperimentConfig:
    biased = {**BIASED, **WITH_SHARED}
    return experts_config((1, 1, 2), (2, 2, 1), True, 2, num_layers=4, **biased)


def _chunks_that_share_states() -> ExperimentConfig:
    overlapped = {**OVERLAPPED, **SHARDED_STATES}
    return with_sizes(apart_in_chunks(2), ("images", LANGUAGE), **overlapped)


def _frames_by_fan_out() -> ExperimentConfig:
    clips = {"clip": (1, 4), "dino": (2, 2), LANGUAGE: (1, 4)}
    return multimodal_config(clips, "colocated", presence=PRESENCE, **SHARED, **ORDERED)


def _frames_apart_in_another_order() -> ExperimentConfig:
    apart = {"qwen": (1, 1, 4), LANGUAGE: (1, 2, 2)}
    return apart_multimodal_config(apart, **_OF_ANY_SIZE, **SHARED, **ORDERED)


RUNS: Mapping[str, Mapping[str, Make]] = {
    "a frozen part of an encoder": {
        "encoder": lambda: _frozen(
            network_config("geglu", "clip", (1, 1, 2), (2, 1, 1)), images=["encoder"]
        ),
        "projector": lambda: _frozen(
            network_config("geglu", "clip", (1, 2, 1), (2, 1, 1), apart=True), images=["projector"]
        ),
    },
    "pipelines on shared ranks": {
        "colocated TP2CP2PP2, sequence parallel, gpipe": _gpipe_on_contexts
    },
    "chunks and orders": {
        "homogeneous, interleaved, ends as layers": lambda: ends_as_layers(
            _around("homogeneous", (2, 2, 2), 4, layers=4, chunks=2)
        ),
        "colocated, zb-h1, passes of 2": _zb_h1_in_passes,
        "heterogeneous, zb-h1": _weights_later,
    },
    "a language model alone": {
        "four stages": lambda: apart_multimodal_config({LANGUAGE: (1, 4, 1)}, 4)
    },
    "sequence parallelism": {"stages": _stretched_stages},
    "context parallelism": {"a decoder that pads, in slices": _padded_decoder_in_slices},
    "samples in a row": {"learned positions": lambda: in_rows(learned_positions_on_contexts())},
    "inner layers": {"three axes in rows on contexts": _inner_layers_in_rows},
    "latent attention": {"samples in a row on contexts": _latent_on_contexts},
    "keys without a bias": {"in groups that ranks share": _without_key_biases},
    "windows": {
        "encoders on stages": _windows_of_encoders,
        "encoders on contexts": _windows_of_encoders_on_contexts,
        "dropout on contexts": lambda: _dropping(_windows_on_contexts()),
        "a decoder": _decoder_in_windows,
    },
    "multi-token prediction": {
        "a last stage without other layers": lambda: predicting(
            ends_as_layers(predicting(apart_config(UNCUT, (1, 4, 1), 2)))
        ),
        "windows, contexts and rows, recomputed": lambda: predicting(
            with_sizes(_windows_on_contexts(), (LANGUAGE,), **RECOMPUTED), 2
        ),
        "like DeepSeek-V3": lambda: predicting(_latent_with_experts()),
        "experts that balance rows of contexts": lambda: predicting(_balanced_rows_on_stages(), 2),
    },
    "a decoder": {"next to another": _next_to_another_decoder},
    "an image decoder": {
        "on contexts": _image_decoder_on_contexts,
        "of absent images of any size": lambda: decoder_of_any_size((2, 1, 2), "qwen"),
        "frozen, with dropout": lambda: _dropping(
            _frozen(_decoder_of_images((1, 1, 4)), painter=True),
            painter="full",
            language_module="full",
        ),
    },
    "an adapter": {
        "with experts, recomputed": _adapter_with_experts,
        "of replicas that shard states, with dropout": _adapter_of_recordings,
    },
    "an adapter next to frozen modules": {
        "images": lambda: _frozen(_adapted(), images=True),
        "adapter": lambda: _frozen(_adapted(), adapter=True),
        "images and adapter": lambda: _frozen(_adapted(), images=True, adapter=True),
    },
    "several receivers": {
        "of absent items": lambda: with_edge(_adapter_of_absent_items((2, 1, 1)), "clip"),
        "in every way": _adapters_in_every_way,
        "in chunks, with inner layers": lambda: with_inner_layers(
            _direct_rows_in_chunks(), "images", 1
        ),
    },
    "an adapter on shared ranks": {
        "homogeneous TP2PP2DP2, with dropout": _adapter_on_all_ranks,
        "homogeneous CP2DP2, with experts": _experts_on_all_ranks,
        "colocated, in front of another in stages": _two_adapters_on_shared_ranks,
    },
    "experts": {
        "EP4, one expert each": lambda: experts_config(
            (1, 1, 4), (1, 1, 4), expert_parallel=4, moe_router_topk=1, num_moe_experts=4
        ),
        "a bias in EP2 of TP2 on two stages": _staged_experts,
        "a bias on contexts, recomputed": _experts_with_bias_on_contexts,
        "rows with a loss of each sample": _balanced_rows_of_replicas,
        "of encoders whose images replicas share, dropping": _experts_of_shared_images,
        "of encoders on tensor and context ranks": _experts_of_encoders_in_parts,
        "of an encoder inside": _experts_of_encoders_inside,
        "of a decoder that balances rows of stages": balanced_decoder_on_stages,
        "of a decoder that balances samples on contexts": _balanced_decoder_on_contexts,
    },
    "pooling heads": {
        "any size, recomputed on contexts": _pooled_any_size_on_contexts,
        "any size, shared on stages, dropping": lambda: _dropping(
            _changed(any_size_on_stages(), "qwen", **ONE_ROW_OF_ANY_SIZE)
        ),
    },
    "positions of encoders": {"rotary, contexts": _turning_on_contexts},
    "frames that replicas share": {
        "strips of known lengths": _strips,
        "separate ranks, another order": _frames_apart_in_another_order,
        "fan-out, images of one size": _frames_by_fan_out,
        "stages with a class token that is kept": _class_tokens_on_stages,
    },
    "dropout of parts of samples": {
        "samples in a row": lambda: _dropping(three_axes_in_rows(), language_module="full"),
        "contexts": lambda: _dropping(stages_on_contexts(), audio="selective"),
    },
    "bf16": {
        "experts of a decoder, in rows": lambda: in_precision(balanced_decoder_on_stages(), "bf16"),
        "shards of states": lambda: in_precision(
            _decoder_of_replicas(**OVERLAPPED, **INSTANCES), "bf16"
        ),
    },
    "fp16": {
        "homogeneous, zb-h1": lambda: in_precision(_sound_in_zb_h1((1, 2, 1), (1, 1), 2), "fp16")
    },
    "fp8": {
        "slices, zb-h1": lambda: in_precision(
            cut_along_sequences(_sound_in_zb_h1((2, 2, 1), (2, 1), 3)), "fp8"
        ),
        "experts on contexts": lambda: in_precision(experts_on_contexts(), "fp8"),
        "recomputed, overlapped": lambda: in_precision(_decoder_of_replicas(**RECOMPUTED), "fp8"),
        "layers in full shards": lambda: in_precision(_decoder_of_replicas(**IN_FULL), "fp8"),
    },
    "overlapped reduction": {
        "chunks, shards of states": _chunks_that_share_states,
        "an instance without inputs": _instance_without_inputs,
    },
    "layers in full shards": {
        "colocated, without items and with dropout": _colocated_in_full_shards
    },
}
"""What is proved -> name -> what makes the config; each takes as many steps as is usual."""


def _networks() -> Iterator[WholeRun]:
    for language, tower, images, words, apart in [
        ("gpt2", "siglip", (1, 2, 1), (2, 2, 1), True),
        ("llama", "stacked", (2, 1, 1), (1, 2, 1), True),
        ("qwen2", "linear", (2, 1, 1), (1, 1, 2), False),
        ("llama", "pooled", (2, 2, 1), (1, 2, 1), True),
    ]:
        make = partial(network_config, language, tower, images, words, apart=apart)
        yield WholeRun("networks", f"{language} {tower} {_written((images, words))}", make)


def _written(layout: tuple[Sizes, ...]) -> str:
    """Return sizes as TP, PP and DP of each module."""
    return "-".join("TP{}PP{}DP{}".format(*sizes) for sizes in layout)


def _padded() -> ExperimentConfig:
    """Return a layout whose embedding is padded to 24 rows, that of one process to 18."""
    return _changed(digits_config((2, 1), (2, 1)), LANGUAGE, make_vocab_size_divisible_by=6)


def _two_replicas(**fields: Any) -> ExperimentConfig:
    return with_sizes(digits_config((1, 2), (1, 2)), ("images", LANGUAGE), **fields)


OUTER = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
SGD = {"inner_optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}
RMSPROP = {"inner_optimizer": {"name": "rmsprop", "weight_decay": 0.01}}
ADAGRAD = {"inner_optimizer": {"name": "adagrad", "lr": 0.01}}
MASKS = {"p_sparta": 0.3, "delay": 1, "fault_rate": 0.3}
DILOCO = {"name": "diloco", "H": 2, "outer_optimizer": OUTER}


def _replicas() -> Iterator[WholeRun]:
    whole, fan_in = partial(digits_config, (2, 1), (2, 1)), partial(digits_config, (1, 2), (2, 1))
    stages = partial(apart_config, UNCUT, (1, 2, 1), num_microbatches=2)
    states = partial(_two_replicas, **SHARDED_STATES)
    fedavg = {"name": "fedavg", "H": 2}
    for name, layout, replicas, strategy in (
        ("diloco H outer_optimizer", whole, 2, DILOCO),
        ("fedavg H island_size inner_optimizer", fan_in, 3, {**fedavg, "island_size": 2, **SGD}),
        ("fedavg H inner_optimizer", _padded, 2, {**fedavg, **RMSPROP}),
        (
            "diloco H sync_offset inner_optimizer", stages, 2,
            {"name": "diloco", "H": 2, "sync_offset": 1, **ADAGRAD},
        ),
        ("sparta p_sparta delay fault_rate", tied_on_four_ranks, 2, {"name": "sparta", **MASKS}),
        ("diloco, shared states", states, 2, DILOCO),
        ("fedavg, full shards", partial(_two_replicas, **IN_FULL), 2, fedavg),
    ):  # fmt: skip
        yield WholeRun("replicas", name, partial(_exchanging, layout, replicas, strategy), 4)
    in_bf16 = partial(_exchanging, lambda: in_precision(states(), "bf16"), 2, DILOCO)
    yield WholeRun("bf16", "replicas that share states", in_bf16)


def _exchanging(layout: Make, replicas: int, strategy: Mapping[str, Any]) -> ExperimentConfig:
    return with_strategy(layout(), replicas=replicas, **strategy)


ONE = {"data_parallel": 1}
BEHIND = {"pipeline_parallel": 2, "rank_offset": 1, **ONE}


def _weights() -> Iterator[WholeRun]:
    behind = {**ONE, "tensor_parallel": 2, "pipeline_parallel": 2}
    make = partial(pooled_weights, "heterogeneous", behind, {**ONE, "rank_offset": 4})
    yield WholeRun("modules that start from weights", "a pooling head", make)
    for language, mode, images, words in (
        ("qwen2", "colocated", {"data_parallel": 4}, {"tensor_parallel": 4}),
        ("qwen3_moe", "heterogeneous", ONE, {**BEHIND, "data_parallel": 2, "expert_parallel": 2}),
    ):
        make = partial(weights_config, language, "clip_tower", mode, images, words)
        yield WholeRun("modules that start from weights", mode, make)
    two, half = {"tensor_parallel": 2, "data_parallel": 2}, {"tensor_parallel": 2, **ONE}
    four, stages = {"tensor_parallel": 4, **ONE}, {"pipeline_parallel": 2, **ONE}
    for name, variant, mode, images, words in (
        ("colocated", "clip", "colocated", {"data_parallel": 4}, two),
        ("eight ranks", "clip", "heterogeneous", two, {**half, **stages, "rank_offset": 4}),
        ("class token", "clip_full", "heterogeneous", stages, {**stages, "rank_offset": 2}),
        ("siglip", "siglip", "homogeneous", four, four),
    ):
        make = partial(llava_config, variant, mode, images, words)
        yield WholeRun("a whole LLaVA", name, make)
    for name, kind, mode, images, words in (
        ("colocated", "qwen3_vl", "colocated", {"data_parallel": 4}, two),
        ("stages", "qwen3_vl", "heterogeneous", stages, {**half, **stages, "rank_offset": 2}),
        ("windows", "qwen2_5_vl", "heterogeneous", half, {**stages, "rank_offset": 2}),
        ("Qwen2-VL", "qwen2_vl", "heterogeneous", two, {**half, "rank_offset": 4}),
    ):
        make = partial(qwen_config, kind, mode, images, words)
        yield WholeRun("a whole Qwen-VL", name, make)
    chunks = {**stages, "virtual_pipeline_model_parallel_size": 2}
    for name, words, tied in (
        ("shards and stages", {**two, "pipeline_parallel": 2}, False), ("tied", chunks, True)
    ):  # fmt: skip
        yield WholeRun("a whole MiMo", name, partial(mimo_config, words, tied))


WHOLE_RUNS = (
    *(WholeRun(proves, name, make) for proves, runs in RUNS.items() for name, make in runs.items()),
    *_networks(),
    *_replicas(),
    *_weights(),
)
