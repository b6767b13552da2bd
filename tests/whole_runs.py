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
    make: Callable[[], ExperimentConfig]
    steps: int = STEPS


def whole_runs(proves: str) -> pytest.MarkDecorator:
    """Parametrize a test with `run`, for every run of the list that proves something."""
    chosen = [run for run in WHOLE_RUNS if run.proves == proves]
    assert chosen, f"no whole run proves: {proves}"
    return pytest.mark.parametrize("run", chosen, ids=[run.name for run in chosen])


RECOMPUTED = {"recompute_granularity": "full", "overlap_grad_reduce": True}


def _written(layout: tuple[tuple[int, ...], ...]) -> str:
    """Return sizes as TP, PP and DP of each module."""
    return "-".join(
        "".join(
            f"{axis}{size}"
            for axis, size in zip(("TP", "PP", "DP")[:: 4 - len(sizes)], sizes, strict=True)
        )
        for sizes in layout
    )


def _networks() -> Iterator[WholeRun]:
    for language, tower, images, words, apart in [
        ("gpt2", "siglip", (1, 2, 1), (2, 2, 1), True),
        ("llama", "stacked", (2, 1, 1), (1, 2, 1), True),
        ("qwen2", "linear", (2, 1, 1), (1, 1, 2), False),
        ("llama", "pooled", (2, 2, 1), (1, 2, 1), True),
    ]:
        make = partial(network_config, language, tower, images, words, apart=apart)
        yield WholeRun("networks", f"{language} {tower} {_written((images, words))}", make)
    for part, images, words, apart in [
        ("encoder", (1, 1, 2), (2, 1, 1), False),
        ("projector", (1, 2, 1), (2, 1, 1), True),
    ]:
        make = partial(network_config, "geglu", "clip", images, words, apart=apart)
        yield WholeRun("a frozen part of an encoder", part, partial(_frozen, make, images=[part]))


def _changed(config: ExperimentConfig, module: str, **fields: Any) -> ExperimentConfig:
    """Return the config with other fields of a network."""
    networks = config.model.module_architectures
    config.model.module_architectures = {
        **networks,
        module: networks[module].model_copy(update=fields),
    }
    return config


def _frozen(make: Callable[[], ExperimentConfig], **frozen: Any) -> ExperimentConfig:
    config = make()
    for module, what in frozen.items():
        _changed(config, module, frozen=what)
    return config


def cut_along_sequences(make: Callable[[], ExperimentConfig], **sizes: Any) -> ExperimentConfig:
    """Return a config of which all modules have sequence parallelism, and other sizes as given."""
    config = make()
    model = config.model
    model.module_parallelisms = {
        name: module.model_copy(update={"sequence_parallel": True, **sizes})
        for name, module in model.module_parallelisms.items()
    }
    return config


LLAMA_LIKE = {
    "num_query_groups": 2,
    "normalization": "RMSNorm",
    "gated_linear_unit": True,
    "add_bias_linear": False,
}


def _grouped(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    return _changed(make(), LANGUAGE, **LLAMA_LIKE)


def learned_positions_in_slices() -> ExperimentConfig:
    """Return a GPT-2 with tied, padded embeddings, sequence parallel around a SigLIP."""
    return cut_along_sequences(partial(network_config, "gpt2", "siglip", (2, 1, 1), (2, 1, 1)))


def _slices_of_sequences() -> Iterator[WholeRun]:
    proves = "sequence parallelism"
    apart = {"qwen": (2, 2, 1), LANGUAGE: (2, 2, 1)}
    config = apart_multimodal_config(apart, 2, three_axes=True, presence=SOME)
    stretched = RopeScaling(rope_type="llama3", original_max_position_embeddings=16)
    make = partial(_changed, config, LANGUAGE, rope_scaling=stretched)
    yield WholeRun(proves, "stages", partial(cut_along_sequences, make))


def on_contexts(make: Callable[[], ExperimentConfig], **contexts: int) -> ExperimentConfig:
    """Return a config with context parallelism, the ranks of which its replicas gave."""
    config = make()
    model, replicas = config.model, config.model.get_parallelism(LANGUAGE).data_parallel
    for name, ranks in contexts.items():
        module = model.module_parallelisms[name]
        assert module.data_parallel is not None
        module.context_parallel, module.data_parallel = ranks, module.data_parallel // ranks
    left = config.model.get_parallelism(LANGUAGE).data_parallel
    config.data.base_batch_size *= replicas // left
    return config


def learned_positions_on_contexts() -> ExperimentConfig:
    """Return a GPT-2 of two tensor and two context-parallel ranks with a SigLIP inside."""
    make = partial(network_config, "gpt2", "siglip", (2, 1, 2), (2, 1, 2))
    config = cut_along_sequences(partial(_longer, make))
    return on_contexts(lambda: config, images=2, language_module=2)


def _longer(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    """Return a config of strips with 44 tokens, which 2 and 4 divide, in place of 42."""
    config = _changed(make(), LANGUAGE, seq_length=44)
    config.data.seq_length = 44
    return config


def _contexts() -> Iterator[WholeRun]:
    proves = "context parallelism"
    yield WholeRun(proves, "a decoder that pads, in slices", _padded_decoder_in_slices)


def _padded_decoder_in_slices() -> ExperimentConfig:
    """Return the same on two tensor-parallel ranks each, which drop numbers, with a table of 42."""
    sizes = {"images": (1, 1, 1), LANGUAGE: (1, 1, 2), "writer": (2, 1, 2)}
    make = partial(cut_along_sequences, partial(decoded_config, sizes, 2))
    config = on_contexts(partial(_dropping, make), writer=2)
    return _changed(config, "writer", position_embedding_type="learned_absolute")


def in_rows(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    """Return a config whose language model computes samples in a row."""
    config = make()
    config.data.pack_sequences_in_batch = True
    return config


YARN = RopeScaling(
    rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale_all_dim=0.5
)


LONG = {
    "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 16,
    "short_factor": (1.0,) * 4, "long_factor": (1.0, 1.5, 2.0, 4.0),
}  # fmt: skip


def three_axes_in_rows() -> ExperimentConfig:
    """Return samples in a row, with yarn on three axes, on context and tensor ranks."""
    sizes = {"qwen": (1, 4), LANGUAGE: (2, 2)}
    make = partial(
        multimodal_config, sizes, "colocated", num_microbatches=2, presence=SOME, three_axes=True
    )
    config = cut_along_sequences(partial(_grouped, make))
    config = _changed(config, LANGUAGE, rope_scaling=YARN)
    return in_rows(partial(on_contexts, lambda: config, language_module=2))


def stages_on_contexts() -> ExperimentConfig:
    """Return encoders and two stages of a language model, on context-parallel ranks.

    The patches of an image and their class token are 5 positions on two ranks.
    """
    sizes = {"audio": (1, 1, 2), "clip": (1, 1, 2), LANGUAGE: (1, 2, 2)}
    make = partial(apart_multimodal_config, sizes, 2, presence=PRESENCE)
    return on_contexts(make, audio=2, clip=2, language_module=2)


def _samples_in_rows() -> Iterator[WholeRun]:
    proves = "samples in a row"
    yield WholeRun(proves, "learned positions", partial(in_rows, learned_positions_on_contexts))


DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.2}
LATENT_ATTENTION = {
    "multi_latent_attention": True, "kv_lora_rank": 12, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4,
    "v_head_dim": 6,
}  # fmt: skip


def latent_config() -> ExperimentConfig:
    """Return two tensor-parallel ranks, on which all heads of a token share a rotary key."""
    config = digits_config((2, 1), (2, 1))
    return _changed(config, LANGUAGE, q_lora_rank=10, **LATENT_ATTENTION)


def _latent_on_contexts() -> ExperimentConfig:
    """Return samples in a row on two tensor and two context-parallel ranks, which drop numbers."""
    config = cut_along_sequences(partial(_longer, partial(digits_config, (2, 2), (2, 2))))
    latent = {**LATENT_ATTENTION, "normalization": "RMSNorm", "add_bias_linear": False, **DROPOUT}
    latent["rope_scaling"] = YARN
    make = partial(_changed, config, LANGUAGE, **latent)
    return in_rows(partial(on_contexts, make, images=2, language_module=2))


def _latent_with_experts() -> ExperimentConfig:
    """Return two recomputed stages like DeepSeek-V3's, with biases of experts and dropout."""
    latent = {**LATENT_ATTENTION, "q_lora_rank": 10, "num_query_groups": None, **DROPOUT}
    sizes = (1, 1, 2), (2, 2, 1)
    config = experts_config(*sizes, True, 2, num_layers=4, **BIASED, **latent)
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = "selective"
    return config


def _attention() -> Iterator[WholeRun]:
    yield WholeRun("latent attention", "samples in a row on contexts", _latent_on_contexts)
    keyless = {"num_query_groups": 2, "add_key_bias": False}
    four = partial(apart_config, (4, 1, 1), (4, 1, 1), 2)
    make = partial(_changed, _changed(four(), "images", **keyless), LANGUAGE, **keyless)
    yield WholeRun("keys without a bias", "in groups that ranks share", make)
    for name, make in (
        ("encoders on stages", windows_of_encoders),
        ("encoders on contexts", windows_of_encoders_on_contexts),
        ("dropout on contexts", partial(_dropping, windows_on_contexts)),
        ("a decoder", _windows_of_a_decoder),
    ):
        yield WholeRun("windows", name, make)


WINDOWS = {"window_size": 6, "full_attention_layers": 2}
"""Most samples have more tokens; every other layer attends to all of them."""


def windows_on_contexts() -> ExperimentConfig:
    """Return samples in a row, with yarn, on two tensor and two context-parallel ranks."""
    make = partial(network_config, "qwen3", "clip", (2, 1, 2), (2, 1, 2))
    config = cut_along_sequences(partial(_longer, make))
    changed = partial(_changed, config, LANGUAGE, rope_scaling=YARN, **WINDOWS)
    config = on_contexts(changed, images=2, language_module=2)
    return in_rows(lambda: config)


def _windows_of_a_decoder() -> ExperimentConfig:
    sizes = {"images": (1, 1, 1), LANGUAGE: (1, 1, 2), "writer": (2, 1, 1)}
    config = cut_along_sequences(partial(decoded_config, sizes, 2))
    fields = {"rope_scaling": RopeScaling(**LONG), "rotary_base": 1000}
    return _changed(config, "writer", window_size=3, **fields)


def windows_of_encoders() -> ExperimentConfig:
    """Return two stages of tensor-parallel ranks, whose images have any size, next to sound."""
    sizes = {"qwen": (2, 2, 1), "audio": (1, 2, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(sizes, 2, three_axes=True, presence=PRESENCE)
    _changed(config, "qwen", window_size=4, full_attention_layers=[2])
    return _changed(config, "audio", window_size=4, full_attention_layers=[1])


def windows_of_encoders_on_contexts() -> ExperimentConfig:
    """Return squares beside class tokens, and sound, which drop numbers, on parts of sequences."""
    sizes = {"dino": (2, 2), "audio": (1, 4), LANGUAGE: (2, 2)}
    make = partial(multimodal_config, sizes, "colocated", num_microbatches=2, presence=PRESENCE)
    config = on_contexts(make, dino=2, audio=2)
    _changed(config, "dino", window_size=9, attention_dropout=0.2)
    _changed(config, "audio", window_size=5, attention_dropout=0.2)
    return with_sizes(config, ("dino",), sequence_parallel=True)


def with_inner_layers(
    make: Callable[[], ExperimentConfig], images: str, *layers: int, **norm: Any
) -> ExperimentConfig:
    """Return a config whose language model adds outputs of inner layers of an encoder of images.

    Args:
        norm: fields of their projectors.
    """
    config = make()
    networks = config.model.module_architectures
    networks[images].num_layers = max(2, networks[images].num_layers)
    networks[LANGUAGE].num_layers = max(4, networks[LANGUAGE].num_layers)
    said = networks[images].projector or ProjectorArchitecture()
    networks[images].projector = said.model_copy(update={"deepstack_layers": list(layers), **norm})
    return config.finalize()


def inner_layers_on_stages() -> ExperimentConfig:
    """Return stages of tensor-parallel ranks with slices of sequences, all recomputed."""
    make = partial(apart_config, (2, 2, 1), (2, 2, 1), 2)
    again = partial(recomputed, cut_along_sequences(make), images="full", **{LANGUAGE: "full"})
    return with_inner_layers(again, "images", 1, 2, deepstack_normalization="LayerNorm")


INTERPOLATED = {"position_embedding_type": "interpolated", "max_position_embeddings": 9}


def _like_qwen3(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    """Return a config whose encoder interpolates its positions; the axes of words alternate."""
    config = _changed(make(), "qwen", **INTERPOLATED)
    if config.model.get_architecture(LANGUAGE).mrope_section is None:
        return config
    return _changed(config, LANGUAGE, mrope_section=[4, 2, 2], mrope_interleaved=True)


def _inner_layers() -> Iterator[WholeRun]:
    proves = "inner layers"
    rows = partial(with_inner_layers, partial(_like_qwen3, three_axes_in_rows), "qwen", 1, 2)
    yield WholeRun(proves, "three axes in rows on contexts", rows)


def ends_as_layers(make: Callable[[], ExperimentConfig]) -> ExperimentConfig:
    """Return a config whose language model deals its layers out with its ends, two a chunk."""
    config = make()
    sizes = config.model.module_parallelisms[LANGUAGE]
    sizes.account_for_embedding_in_pipeline_split = True
    sizes.account_for_loss_in_pipeline_split = True
    parts = sizes.pipeline_parallel * (sizes.virtual_pipeline_model_parallel_size or 1)
    ends = 2 + (config.model.get_architecture(LANGUAGE).mtp_num_layers or 0)
    return _changed(config, LANGUAGE, num_layers=2 * parts - ends)


EQUAL = {"clip": (1, 2), "dino": (1, 2), "audio": (1, 2), LANGUAGE: (1, 2)}
# Fan-in, fan-out and equal sizes into the same language model.
MIXED = {"clip": (1, 4), "dino": (4, 1), "audio": (2, 2), LANGUAGE: (2, 2)}


def tied_on_stages(stages: int) -> ExperimentConfig:
    """Return a language model of some stages, whose embeddings are tied, behind one rank."""
    return _changed(apart_config((1, 1, 1), (1, stages, 1), 2), LANGUAGE, tied_embeddings=True)


# (tensor, data): shared by both stages of the language model, by half of them, by none.
AROUND = {"clip": (4, 2), "audio": (1, 8), "qwen": (2, 4)}


def _pipelines_on_shared_ranks() -> Iterator[WholeRun]:
    proves = "pipelines on shared ranks"
    several = {"presence": PRESENCE, "tied": True, "three_axes": True}
    cut = {"context_parallel": 2, "pipeline_order": "gpipe"}
    make = partial(shared_pipeline, "colocated", (2, 2, 1), AROUND, 3, **several, **cut)
    again = _With(make, (LANGUAGE,), {"recompute_granularity": "selective"})
    yield WholeRun(proves, "colocated TP2CP2PP2, sequence parallel, gpipe", again)
    proves, chunked = "chunks and orders", {**several, "layers": 4, "chunks": 2}
    make = partial(shared_pipeline, "homogeneous", (2, 2, 2), AROUND, 4, **chunked)
    yield WholeRun(
        proves, "homogeneous, interleaved, ends as layers", partial(ends_as_layers, make)
    )
    options = {**several, "encoder_microbatches": 2, "pipeline_order": "zb-h1"}
    make = partial(shared_pipeline, "colocated", (2, 2, 2), AROUND, 3, **options)
    yield WholeRun(proves, "colocated, zb-h1, passes of 2", partial(cut_along_sequences, make))
    yield WholeRun(proves, "heterogeneous, zb-h1", _weights_later)


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
    config = cut_along_sequences(partial(apart_config, (2, 2, 1), (2, 2, 1), 4))
    config = _changed(config, LANGUAGE, tied_embeddings=True)
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = "full"
    images = config.model.module_parallelisms["images"]
    images.overlap_grad_reduce, images.recompute_granularity = True, "selective"
    config.runtime.pipeline_order = "zb-h1"
    return config.finalize()


def apart_in_chunks(replicas: int = 1) -> ExperimentConfig:
    """Return a language model of 2 stages of 2 chunks behind an encoder of 2 stages."""
    tensor = 2 // replicas
    config = apart_config((1, 2, 1), (tensor, 2, replicas), 4)
    config = _changed(config, LANGUAGE, num_layers=4)
    config = _changed(config, LANGUAGE, tied_embeddings=True)
    language = config.model.module_parallelisms[LANGUAGE]
    language.virtual_pipeline_model_parallel_size = 2
    return config.finalize()


def _encoders_on_separate_ranks() -> Iterator[WholeRun]:
    make = partial(apart_multimodal_config, {LANGUAGE: (1, 4, 1)}, 4)
    yield WholeRun("a language model alone", "four stages", make)


SOME = {"qwen": ModalityPresence(samples=[True, False, True, True, False, False, False, False])}
"""Whole replicas are without images."""


def _decoders() -> Iterator[WholeRun]:
    alone = dict.fromkeys(("images", LANGUAGE, "writer"), (1, 1, 1))
    sizes = {**alone, LANGUAGE: (1, 2, 1), "other": (1, 2, 1)}
    yield WholeRun("a decoder", "next to another", partial(decoded_config, sizes, 4))


def _reconstructed(
    images: tuple[int, int, int],
    language: tuple[int, int, int],
    painter: tuple[int, int, int],
    **fields: object,
) -> ExperimentConfig:
    """Return a decoder that makes the images again; see `with_image_decoder`."""
    return with_image_decoder(apart_config(images, language, 2), painter, **fields)


def image_decoder_of_absent_images(sizes: tuple[int, int, int]) -> ExperimentConfig:
    """Return an image decoder of images that some samples and micro-batches lack."""
    modules = {"clip": (1, 1, 1), "audio": (1, 1, 1), LANGUAGE: (1, 2, 1)}
    presence = {"clip": ModalityPresence(microbatches=[True, False], samples=[True, False, False])}
    config = apart_multimodal_config(modules, 4, presence=presence)
    return with_image_decoder(config, sizes, "clip")


def image_decoder_on_contexts() -> ExperimentConfig:
    """Return one of two contexts of two tensor-parallel ranks, behind two replicas."""
    make = partial(_reconstructed, (1, 1, 1), (1, 1, 2), (2, 1, 2), reconstruction_loss_weight=3.0)
    return on_contexts(partial(cut_along_sequences, make), painter=2)


def decoder_of_any_size(sizes: tuple[int, int, int], encoder: str) -> ExperimentConfig:
    """Return one of items that differ in size and that some samples and micro-batches lack."""
    presence = {encoder: ModalityPresence(microbatches=[True, False], samples=[True, True, False])}
    modules = {encoder: (1, 1, 1), LANGUAGE: (1, 2, 1)}
    config = apart_multimodal_config(modules, 2, presence=presence)
    return with_image_decoder(config, sizes, encoder)


def _image_decoders() -> Iterator[WholeRun]:
    proves = "an image decoder"
    yield WholeRun(proves, "on contexts", image_decoder_on_contexts)
    any_size = partial(decoder_of_any_size, (2, 1, 2), "qwen")
    yield WholeRun(proves, "of absent images of any size", any_size)
    frozen = partial(
        _frozen, partial(_reconstructed, (1, 1, 1), (1, 1, 1), (1, 1, 4)), painter=True
    )
    dropping = partial(_dropping, frozen, painter="full", language_module="full")
    yield WholeRun(proves, "frozen, with dropout", dropping)


def _adapted(
    images: tuple[int, int, int],
    adapter: tuple[int, int, int],
    language: tuple[int, int, int],
    **fields: object,
) -> ExperimentConfig:
    """Return an adapter between encoder and language model; see `with_adapter`."""
    return with_adapter(apart_config(images, language, 3), adapter, **fields)


def _adapter_of_recordings(
    audio: tuple[int, int, int],
    adapter: tuple[int, int, int],
    language: tuple[int, int, int],
    **fields: object,
) -> ExperimentConfig:
    """Return an adapter of items of different lengths, which some samples lack."""
    presence = {"audio": ModalityPresence(microbatches=[True, True, False], samples=[True, False])}
    config = apart_multimodal_config({"audio": audio, LANGUAGE: language}, 3, presence=presence)
    return with_adapter(config, adapter, "audio", **fields)


def _two_adapters(**fields: object) -> ExperimentConfig:
    """Return an adapter of two stages behind one of two replicas with rotary positions.

    Args:
        fields: of the network of the first.
    """
    rotary = {"position_embedding_type": "rope", **fields}
    config = _adapted((1, 1, 1), (1, 1, 2), (1, 1, 1), **rotary)
    return with_adapter(config, (2, 2, 1), "adapter", "second", hidden_size=32)


def _adapter_of_absent_items(sizes: tuple[int, int, int]) -> ExperimentConfig:
    """Return an adapter behind an encoder that some samples and micro-batches lack."""
    modules = {"clip": (1, 1, 2), "audio": (1, 1, 1), LANGUAGE: (1, 2, 1)}
    presence = {"clip": ModalityPresence(microbatches=[True, False], samples=[True, False, False])}
    return with_adapter(apart_multimodal_config(modules, 4, presence=presence), sizes, "clip")


def _adapter_with_experts() -> ExperimentConfig:
    """Return an adapter whose two replicas share four experts."""
    experts = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32}
    make = partial(_adapted, (1, 1, 1), (1, 1, 2), (1, 1, 1), **experts)
    return with_sizes(make(), ("adapter",), expert_parallel=2, recompute_granularity="selective")


def direct_rows(
    images: tuple[int, int, int],
    adapter: tuple[int, int, int],
    language: tuple[int, int, int],
    **fields: object,
) -> ExperimentConfig:
    """Return images that feed an adapter and the language model; see `with_adapter`."""
    return with_edge(_adapted(images, adapter, language, **fields))


def _adapters_in_every_way() -> ExperimentConfig:
    """Return images that reach the language model by two adapters in a row, by each, and directly.

    The second takes the rows of images twice, once as the first makes them.
    """
    config = with_adapter(
        direct_rows((1, 1, 1), (1, 1, 1), (1, 2, 1)), (1, 2, 1), "adapter", "last"
    )
    return with_edge(with_edge(config, "images", "last"), "adapter")


def _direct_rows_in_chunks() -> ExperimentConfig:
    """Return images and what they feed in two chunks on each of two sets of ranks."""
    config = direct_rows((1, 2, 1), (1, 2, 1), (1, 2, 1), num_layers=4)
    networks = config.model.module_architectures
    for name in ("images", LANGUAGE):
        networks[name] = networks[name].model_copy(update={"num_layers": 4})
    chunks = {"virtual_pipeline_model_parallel_size": 2}
    return with_sizes(config, ("images", "adapter", LANGUAGE), **chunks)


def _several_receivers() -> Iterator[WholeRun]:
    absent = partial(_adapter_of_absent_items, (2, 1, 1))
    yield WholeRun("several receivers", "of absent items", lambda: with_edge(absent(), "clip"))
    yield WholeRun("several receivers", "in every way", _adapters_in_every_way)
    chunks = partial(with_inner_layers, _direct_rows_in_chunks, "images", 1)
    yield WholeRun("several receivers", "in chunks, with inner layers", chunks)


def _adapters() -> Iterator[WholeRun]:
    dropping = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    recordings = partial(_adapter_of_recordings, (1, 1, 1), (1, 1, 4), (1, 1, 2), **dropping)
    states = {**SHARDED_STATES, **TWO_INSTANCES, **RECOMPUTED}
    for name, make in (
        ("with experts, recomputed", _adapter_with_experts),
        ("of replicas that shard states, with dropout", _With(recordings, ("adapter",), states)),
    ):
        yield WholeRun("an adapter", name, make)
    alone = partial(_adapted, (1, 1, 1), (1, 1, 1), (1, 1, 1))
    for frozen in (("images",), ("adapter",), ("images", "adapter")):
        make = partial(_frozen, alone, **dict.fromkeys(frozen, True))
        yield WholeRun("an adapter next to frozen modules", " and ".join(frozen), make)


def adapter_on_shared_ranks(
    make: Callable[[], ExperimentConfig],
    mode: DeploymentMode,
    sizes: Mapping[str, tuple[int, int, int]],
    of_all: Mapping[str, Any] = MappingProxyType({}),
    passes: int | None = None,
    **of_adapter: Any,
) -> ExperimentConfig:
    """Return a layout of 44 tokens on shared ranks.

    Args:
        sizes: module -> (tensor, pipeline, data parallel).
        of_all: fields of the parallelism of all modules.
        passes: encoder_microbatches of the runtime.
        of_adapter: fields of the parallelism of the adapter.
    """
    config = make()
    networks, fields = config.model.module_architectures, dict[str, dict[str, Any]]()
    config.data.seq_length = networks[LANGUAGE].seq_length = 44
    for name, (tensor, stages, replicas) in sizes.items():
        own = {"tensor_parallel": tensor, "pipeline_parallel": stages, "data_parallel": replicas}
        fields[name] = {**own, **of_all, **(of_adapter if name == "adapter" else {})}
        networks[name].num_layers = max(stages, networks[name].num_layers)
    config.data.base_batch_size = SAMPLES_PER_MICROBATCH // sizes[LANGUAGE][2]
    config = config.with_layout(mode, **fields)
    config.runtime.encoder_microbatches = passes
    return config


def adapted_on_shared_ranks(*sizes: tuple[int, int, int]) -> ExperimentConfig:
    """Return an adapter in colocated mode.

    Args:
        sizes: (tensor, pipeline, data parallel) of encoder, adapter and language model.
    """
    one = partial(_adapted, (1, 1, 1), (1, 1, 1), (1, 1, 1))
    of = dict(zip(("images", "adapter", LANGUAGE), sizes, strict=True))
    return adapter_on_shared_ranks(one, "colocated", of)


def adapter_of_replicas_without_items() -> ExperimentConfig:
    """Return four replicas of an adapter, some of which have no items, of an encoder's one."""
    make = partial(_adapter_of_absent_items, (1, 1, 1))
    sizes = {"clip": (4, 1, 1), "audio": (1, 1, 4), "adapter": (1, 1, 4), LANGUAGE: (2, 1, 2)}
    return adapter_on_shared_ranks(make, "colocated", sizes, passes=2)


def _mixed_behind(make: Callable[[], ExperimentConfig], **experts: int) -> ExperimentConfig:
    """Return a config whose language model has experts, too."""
    return _changed(make(), LANGUAGE, add_bias_linear=False, **experts)


def _adapters_on_shared_ranks() -> Iterator[WholeRun]:
    proves, one = "an adapter on shared ranks", (1, 1, 1)
    dropping = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
    experts = {"num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 32}
    dropped = partial(_adapted, one, one, one, **dropping)
    states = {"sequence_parallel": True, **SHARDED_STATES, **TWO_INSTANCES, **RECOMPUTED}
    same = dict.fromkeys(("images", "adapter", LANGUAGE), (2, 2, 2))
    make = partial(adapter_on_shared_ranks, dropped, "homogeneous", same, states)
    yield WholeRun(proves, "homogeneous TP2PP2DP2, with dropout", make)
    mixed = partial(_adapted, one, one, one, **experts)
    both = partial(_mixed_behind, mixed, **experts)
    shared = {"context_parallel": 2, "expert_parallel": 2, "recompute_granularity": "selective"}
    same = dict.fromkeys(("images", "adapter", LANGUAGE), (1, 1, 2))
    make = partial(adapter_on_shared_ranks, both, "homogeneous", same, {**shared, **IN_FULL})
    yield WholeRun(proves, "homogeneous CP2DP2, with experts", make)
    chain = partial(_two_adapters, **dropping)
    sizes = {"images": (1, 1, 4), "adapter": (4, 1, 1), "second": (1, 2, 2), LANGUAGE: (2, 2, 1)}
    make = partial(adapter_on_shared_ranks, chain, "colocated", sizes, passes=2)
    yield WholeRun(proves, "colocated, in front of another in stages", make)


def experts_on_contexts() -> ExperimentConfig:
    """Return experts that count the tokens of samples of which a rank has a part."""
    make = partial(experts_config, (1, 1, 4), (1, 1, 4), **WITH_SHARED, **EVEN)
    return on_contexts(partial(_longer, make), images=2, language_module=2)


BIASED = {"moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.05}


def experts_with_bias_on_contexts() -> ExperimentConfig:
    """Return biases of experts that a rank moves by the tokens of all contexts and replicas."""
    make = partial(experts_config, (1, 1, 4), (1, 1, 4), **BIASED, **EVEN)
    config = on_contexts(partial(_longer, make), images=2, language_module=2)
    config.model.module_parallelisms[LANGUAGE].recompute_granularity = "full"
    return config


def experts_on_shared_stages(each: int = 2) -> ExperimentConfig:
    """Return experts in chunks of two stages, on two contexts each, that read samples in a row.

    Args:
        each: how many of the four experts a token takes.
    """
    options = {"presence": PRESENCE, "layers": 4, "chunks": 2, "context_parallel": 2}
    config = shared_pipeline("colocated", (1, 2, 1), {"audio": (1, 4)}, 2, **options)
    config = with_experts(config, expert_parallel=2)
    return in_rows(_With(lambda: config, (LANGUAGE,), {"recompute_granularity": "selective"}))


def balanced_rows_on_stages() -> ExperimentConfig:
    """Return stages of two contexts each, whose experts balance rows of unequal samples."""
    options = {"presence": PRESENCE, "layers": 4, "context_parallel": 2}
    config = shared_pipeline("colocated", (1, 2, 1), {"audio": (1, 4)}, 2, **options)
    return in_rows(partial(with_experts, config, {**BIASED, **EVEN}, expert_parallel=2))


def balanced_rows_of_replicas() -> ExperimentConfig:
    """Return replicas of two tensor ranks, whose experts gather and balance their samples."""
    sizes = {"audio": (1, 4), LANGUAGE: (2, 2)}
    config = multimodal_config(sizes, "colocated", num_microbatches=2, presence=SOME)
    options = {**EVEN, "moe_router_load_balancing_type": "seq_aux_loss"}
    cut = {"expert_parallel": 2, "expert_tensor_parallel": 2, "sequence_parallel": True}
    gathered = {**cut, "moe_token_dispatcher_type": "allgather"}
    return in_rows(partial(with_experts, config, options, **gathered))


def balanced_decoder_on_stages() -> ExperimentConfig:
    """Return rows of stages before stages of tensor ranks, whose experts balance them."""
    return in_rows(partial(expert_decoder_config, (1, 2, 1), (2, 2, 1), **BIASED, **EVEN))


def _balanced_decoder_on_contexts() -> ExperimentConfig:
    """Return experts on two contexts that balance samples which come with their padding."""
    fields = {**EVEN, "moe_router_load_balancing_type": "seq_aux_loss"}
    make = partial(expert_decoder_config, (2, 1, 1), (1, 1, 4), **fields)
    return on_contexts(partial(_longer, make), writer=2)


OF_ENCODERS = {
    "num_moe_experts": 4, "moe_ffn_hidden_size": 24, "add_bias_linear": False, **EVEN
}  # fmt: skip


def experts_of_encoders_on_stages() -> ExperimentConfig:
    """Return an encoder of two stages, with experts of which replicas without images have half."""
    sizes = {"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}
    make = _Networks(partial(apart_multimodal_config, sizes, **_QWEN), ("qwen",), OF_ENCODERS)
    return with_sizes(make(), ("qwen",), expert_parallel=2)


def _experts_of_shared_images() -> ExperimentConfig:
    config = _dropping(experts_of_encoders_on_stages, qwen="full")
    config.runtime.patch_type = [FRAME_PARALLEL]
    return config


def _experts_of_encoders_in_parts() -> ExperimentConfig:
    """Return experts of tensor-parallel ranks, and of sound on contexts, which gathers tokens."""
    sizes = {"qwen": (2, 2), "audio": (1, 4), LANGUAGE: (2, 2)}
    make = partial(multimodal_config, sizes, "colocated", num_microbatches=2, presence=PRESENCE)
    make = _Networks(partial(on_contexts, make, audio=2), ("qwen", "audio"), OF_ENCODERS)
    config = with_sizes(make(), ("qwen", "audio"), expert_parallel=2)
    with_sizes(config, ("audio",), moe_token_dispatcher_type="allgather")
    return with_sizes(config, ("qwen",), expert_tensor_parallel=2, **SLICED)


def _experts_of_encoders_inside() -> ExperimentConfig:
    """Return an encoder on the ranks of a language model, whose replicas have whole experts."""
    make = partial(_qwen, {"qwen": (1, 4), LANGUAGE: (1, 4)}, "homogeneous")
    return _Networks(make, ("qwen",), {**OF_ENCODERS, **BIASED})()


def _experts() -> Iterator[WholeRun]:
    one_each = {"moe_router_topk": 1, "num_moe_experts": 4}
    biased = {**BIASED, **WITH_SHARED}
    four, staged = ((1, 1, 4), (1, 1, 4)), ((1, 1, 2), (2, 2, 1))
    for name, make in (
        ("EP4, one expert each", partial(experts_config, *four, expert_parallel=4, **one_each)),
        (
            "a bias in EP2 of TP2 on two stages",
            partial(experts_config, *staged, True, 2, num_layers=4, **biased),
        ),
        ("a bias on contexts, recomputed", experts_with_bias_on_contexts),
        ("rows with a loss of each sample", balanced_rows_of_replicas),
        ("of encoders whose images replicas share, dropping", _experts_of_shared_images),
        ("of encoders on tensor and context ranks", _experts_of_encoders_in_parts),
        ("of an encoder inside", _experts_of_encoders_inside),
        ("of a decoder that balances rows of stages", balanced_decoder_on_stages),
        ("of a decoder that balances samples on contexts", _balanced_decoder_on_contexts),
    ):
        yield WholeRun("experts", name, make)


SHARED = {"patch_type": [FRAME_PARALLEL]}
ORDERED = {"sample_order": BALANCED}


def frames_by_fan_in() -> ExperimentConfig:
    """Return four replicas of an encoder that share their images, before two."""
    return _qwen({"qwen": (1, 4), LANGUAGE: (2, 2)}, "colocated", **SHARED)


def samples_in_another_order() -> ExperimentConfig:
    """Return replicas that read other samples, so that all have equally much to do."""
    return _qwen({"qwen": (1, 4), LANGUAGE: (1, 4)}, "homogeneous", **ORDERED)


_QWEN: dict[str, Any] = {"num_microbatches": 2, "three_axes": True, "presence": SOME}
_qwen = partial(multimodal_config, **_QWEN)


def _strips() -> ExperimentConfig:
    """Return strips of 0 to 8 scans; one replica has none."""
    config = digits_config((1, 4), (1, 4), **SHARED)
    config.data.modality_frames = {"images": [8, 8, 1, 2, 0, 0, 1, 5]}
    return config


def any_size_on_stages() -> ExperimentConfig:
    """Return an encoder of two stages, of which two replicas each share their images."""
    sizes = {"qwen": (1, 2, 2), LANGUAGE: (1, 1, 2)}
    return apart_multimodal_config(sizes, **_QWEN, **SHARED)


def class_tokens_on_stages() -> ExperimentConfig:
    """Return the same of images of one size, each with a class token in the output."""
    sizes = {"clip": (1, 2, 2), "audio": (1, 1, 1), LANGUAGE: (1, 1, 2)}
    config = apart_multimodal_config(sizes, 2, presence=PRESENCE, **SHARED)
    return _changed(config, "clip", keep_class_token=True)


SLICED = {"sequence_parallel": True}
TURNING = {
    "position_embedding_type": "rope", "rotary_base": 100.0, "rope_scaling": YARN
}  # fmt: skip


def _positions_of_encoders() -> Iterator[WholeRun]:
    """Yield rotary positions of sound and words, on contexts."""
    shares = {"words": (2, 2), "audio": (2, 2), LANGUAGE: (2, 2)}
    shared = partial(multimodal_config, shares, "colocated", num_microbatches=2)
    cut = _With(partial(on_contexts, shared, words=2, audio=2), ("audio",), SLICED)
    encoders = _Networks(cut, ("words", "audio"), TURNING)
    yield WholeRun("positions of encoders", "rotary, contexts", encoders)


@dataclass(frozen=True)
class _Networks:
    """A layout of which some modules have other fields of their networks."""

    make: Callable[[], ExperimentConfig]
    modules: tuple[str, ...]
    fields: Mapping[str, Any]

    def __call__(self) -> ExperimentConfig:
        config = self.make()
        for name in self.modules:
            _changed(config, name, **self.fields)
        return config


def _pooling_heads() -> Iterator[WholeRun]:
    for name, make in (
        ("any size, recomputed on contexts", pooled_any_size_on_contexts),
        ("any size, shared on stages, dropping", partial(_dropping, _pooled_any_size_on_stages)),
    ):
        yield WholeRun("pooling heads", name, make)


ONE_ROW_OF_ANY_SIZE = {"pooling_head": True, "merge_size": 1}


def pooled_any_size_on_contexts() -> ExperimentConfig:
    """Return pooled images of any size on parts of sequences, in full shards, recomputed."""
    make = partial(_qwen, {"qwen": (2, 2), LANGUAGE: (2, 2)}, "colocated")
    config = on_contexts(partial(_changed, make(), "qwen", **ONE_ROW_OF_ANY_SIZE), qwen=2)
    return with_sizes(recomputed(config, qwen="full"), ("qwen",), **IN_FULL)


def _pooled_any_size_on_stages() -> ExperimentConfig:
    return _changed(any_size_on_stages(), "qwen", **ONE_ROW_OF_ANY_SIZE)


def _frames() -> Iterator[WholeRun]:
    apart = {"qwen": (1, 1, 4), LANGUAGE: (1, 2, 2)}
    clips = {"clip": (1, 4), "dino": (2, 2), LANGUAGE: (1, 4)}
    both = {**SHARED, **ORDERED}
    fan_out = partial(multimodal_config, clips, "colocated", presence=PRESENCE, **both)
    for name, make in (
        ("strips of known lengths", _strips),
        ("separate ranks, another order", partial(apart_multimodal_config, apart, **_QWEN, **both)),
        ("fan-out, images of one size", fan_out),
        ("stages with a class token that is kept", class_tokens_on_stages),
    ):
        yield WholeRun("frames that replicas share", name, make)


OUTER = {"name": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
SGD = {"inner_optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9}}
RMSPROP = {"inner_optimizer": {"name": "rmsprop", "weight_decay": 0.01}}
ADAGRAD = {"inner_optimizer": {"name": "adagrad", "lr": 0.01}}
MASKS = {"p_sparta": 0.3, "delay": 1, "fault_rate": 0.3}


def with_strategy(config: ExperimentConfig, **strategy: Any) -> ExperimentConfig:
    """Return the config with replicas that exchange by a strategy."""
    config.strategy = StrategyConfig(**strategy)
    return config


def padded() -> ExperimentConfig:
    """Return a layout whose embedding is padded to 24 rows, that of one process to 18."""
    return _changed(digits_config((2, 1), (2, 1)), LANGUAGE, make_vocab_size_divisible_by=6)


def tied_on_four_ranks() -> ExperimentConfig:
    """Return two tensor-parallel ranks before two stages with tied embeddings."""
    return _changed(apart_config((2, 1, 1), (1, 2, 1)), LANGUAGE, tied_embeddings=True)


def tied_alone() -> ExperimentConfig:
    """Return a language model alone of two stages with tied embeddings."""
    language = apart_multimodal_config({LANGUAGE: (1, 2, 1)})
    return _changed(language, LANGUAGE, tied_embeddings=True)


def _replicas() -> Iterator[WholeRun]:
    whole = partial(digits_config, (2, 1), (2, 1))
    fan_in = partial(digits_config, (1, 2), (2, 1))
    stages = partial(apart_config, (1, 1, 1), (1, 2, 1), num_microbatches=2)
    tied = tied_on_four_ranks
    for name, layout, replicas, strategy in (
        ("diloco", whole, 2, {"H": 2, "outer_optimizer": OUTER}),
        ("fedavg", fan_in, 3, {"H": 2, "island_size": 2, **SGD}),
        ("fedavg", padded, 2, {"H": 2, **RMSPROP}),
        ("diloco", stages, 2, {"H": 2, "sync_offset": 1, **ADAGRAD}),
        ("sparta", tied, 2, MASKS),
    ):
        make = _ReplicasOf(layout, {"name": name, "replicas": replicas, **strategy})
        steps = 2 * int(strategy.get("H", 2))
        yield WholeRun("replicas", " ".join([name, *map(str, strategy)]), make, steps)
    two = partial(digits_config, (1, 2), (1, 2))
    states, layers = (_With(two, ("images", LANGUAGE), how) for how in (SHARDED_STATES, IN_FULL))
    for name, layout, strategy in (
        ("diloco, shared states", states, {"name": "diloco", "H": 2, "outer_optimizer": OUTER}),
        ("fedavg, full shards", layers, {"name": "fedavg", "H": 2}),
    ):
        yield WholeRun("replicas", name, _ReplicasOf(layout, {"replicas": 2, **strategy}), 4)
    in_bf16 = partial(in_precision, states, "bf16")
    diloco = {"name": "diloco", "replicas": 2, "H": 2, "outer_optimizer": OUTER}
    yield WholeRun("bf16", "replicas that share states", _ReplicasOf(in_bf16, diloco))


@dataclass(frozen=True)
class _ReplicasOf:
    layout: Callable[[], ExperimentConfig]
    strategy: Mapping[str, Any]

    def __call__(self) -> ExperimentConfig:
        return with_strategy(self.layout(), **self.strategy)


def recomputed(config: ExperimentConfig, **granularity: str) -> ExperimentConfig:
    """Return a config whose networks drop numbers, and whose modules recompute."""
    for name, module in config.model.module_parallelisms.items():
        _changed(config, name, **DROPOUT)
        module.recompute_granularity = granularity.get(name)
        module.sequence_parallel = module.tensor_parallel == 2
    return config


def _dropping(make: Callable[[], ExperimentConfig], **granularity: str) -> ExperimentConfig:
    config = make()
    for name in config.model.module_parallelisms:
        _changed(config, name, **DROPOUT)
        config.model.module_parallelisms[name].recompute_granularity = granularity.get(name)
    return config


def dropping_in_rows() -> ExperimentConfig:
    """Return samples in a row on context and tensor-parallel ranks, which drop numbers."""
    return _dropping(three_axes_in_rows, language_module="full")


def _dropout() -> Iterator[WholeRun]:
    for name, make in (
        ("samples in a row", dropping_in_rows),
        ("contexts", partial(_dropping, stages_on_contexts, audio="selective")),
    ):
        yield WholeRun("dropout of parts of samples", name, make)


ONE = {"data_parallel": 1}
BEHIND = {"pipeline_parallel": 2, "rank_offset": 1, **ONE}


def pooled_weights(mode: str, images: dict[str, int], words: dict[str, int]) -> ExperimentConfig:
    """Return a SigLIP tower that starts from weights, its pooling head as well."""
    content = weights_mapping("qwen2", "siglip_tower", mode, images, words)
    content["model"]["module_architectures"]["images"]["pooling_head"] = True
    content["data"]["image_seq_length"] = 1
    return config_from_mapping(content)


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


def in_precision(make: Callable[[], ExperimentConfig], precision: str) -> ExperimentConfig:
    """Return a layout in another precision."""
    config = make()
    config.runtime.precision = precision
    return config


def _precisions() -> Iterator[WholeRun]:
    """Yield runs of pipelines, experts and replicas; `tests/crossed.py` has one of each feature."""
    rows = partial(in_precision, balanced_decoder_on_stages, "bf16")
    yield WholeRun("bf16", "experts of a decoder, in rows", rows)
    stages = partial(
        shared_pipeline, "homogeneous", (1, 2, 1), {"audio": (1, 1)}, 2, pipeline_order="zb-h1"
    )
    yield WholeRun("fp16", "homogeneous, zb-h1", partial(in_precision, stages, "fp16"))
    split = partial(
        shared_pipeline, "homogeneous", (2, 2, 1), {"audio": (2, 1)}, 3, pipeline_order="zb-h1"
    )
    behind = {"images": (1, 1, 2), LANGUAGE: (1, 1, 2), "writer": (1, 1, 2)}
    decoded, modules = partial(decoded_config, behind, 2), ("images", LANGUAGE, "writer")
    for name, make in (
        ("slices, zb-h1", partial(cut_along_sequences, split)),
        ("experts on contexts", experts_on_contexts),
        ("recomputed, overlapped", _With(decoded, modules, RECOMPUTED)),
        ("layers in full shards", _With(decoded, modules, IN_FULL)),
    ):
        yield WholeRun("fp8", name, partial(in_precision, make, "fp8"))


def with_sizes(config: ExperimentConfig, modules: Iterable[str], **fields: Any) -> ExperimentConfig:
    """Return the config with other fields of the parallelism of some modules."""
    for name in modules:
        sizes = config.model.module_parallelisms
        sizes[name] = sizes[name].model_copy(update=fields)
    return config


@dataclass(frozen=True)
class _With:
    """A layout of which some modules have other fields of their parallelism."""

    make: Callable[[], ExperimentConfig]
    modules: tuple[str, ...]
    fields: Mapping[str, Any]

    def __call__(self) -> ExperimentConfig:
        return with_sizes(self.make(), self.modules, **self.fields)


SHARDED_STATES = {"use_distributed_optimizer": True}
OVERLAPPED = {"overlap_grad_reduce": True}
IN_FULL = {"use_megatron_fsdp": True}
TWO_INSTANCES = {"num_distributed_optimizer_instances": 2}


def _optimizers() -> Iterator[WholeRun]:
    """Yield runs whose modules share the states of their optimizers, all or some."""
    several = {**SHARDED_STATES, **TWO_INSTANCES}
    chunked = partial(apart_in_chunks, 2)
    chunks = _With(chunked, ("images", LANGUAGE), {**OVERLAPPED, **SHARDED_STATES})
    yield WholeRun("overlapped reduction", "chunks, shards of states", chunks)
    one_sided = ModalityPresence(samples=[index < 2 for index in range(8)])
    apart = {"qwen": (1, 1, 2), LANGUAGE: (1, 1, 2)}
    make = partial(apart_multimodal_config, apart, 2, presence={"qwen": one_sided})
    instances = _With(make, ("qwen",), {**OVERLAPPED, **several})
    yield WholeRun("overlapped reduction", "an instance without inputs", instances)
    proves = "layers in full shards"
    shares = {"clip": (1, 4), "audio": (2, 2), "words": (1, 4), LANGUAGE: (2, 2)}
    make = partial(multimodal_config, shares, "colocated", num_microbatches=2, presence=PRESENCE)
    sliced = _With(make, ("audio",), {"sequence_parallel": True})
    dropping = partial(_dropping, _With(sliced, tuple(shares), {**IN_FULL, **OVERLAPPED}))
    yield WholeRun(proves, "colocated, without items and with dropout", dropping)
    behind = {"images": (1, 1, 2), LANGUAGE: (1, 1, 2), "writer": (1, 1, 2)}
    decoded = partial(decoded_config, behind, 2)
    both = _With(decoded, ("images", LANGUAGE, "writer"), {**OVERLAPPED, **several})
    yield WholeRun("bf16", "shards of states", partial(in_precision, both, "bf16"))


def predicting(make: Callable[[], ExperimentConfig], layers: int = 1) -> ExperimentConfig:
    """Return a config whose language model predicts as many tokens further on."""
    return _changed(make(), LANGUAGE, mtp_num_layers=layers)


def _multi_token_prediction() -> Iterator[WholeRun]:
    """Yield language models that predict further tokens on their last stage."""
    windows = _With(windows_on_contexts, (LANGUAGE,), RECOMPUTED)
    stages = partial(apart_config, (1, 1, 1), (1, 4, 1), 2)
    alone = partial(ends_as_layers, partial(predicting, stages))
    for name, make, layers in (
        ("a last stage without other layers", alone, 1),
        ("windows, contexts and rows, recomputed", windows, 2),
        ("like DeepSeek-V3", _latent_with_experts, 1),
        ("experts that balance rows of contexts", balanced_rows_on_stages, 2),
    ):
        yield WholeRun("multi-token prediction", name, partial(predicting, make, layers))


WHOLE_RUNS = (
    *_networks(),
    *_pipelines_on_shared_ranks(),
    *_encoders_on_separate_ranks(),
    *_slices_of_sequences(),
    *_contexts(),
    *_samples_in_rows(),
    *_inner_layers(),
    *_attention(),
    *_multi_token_prediction(),
    *_decoders(),
    *_image_decoders(),
    *_adapters(),
    *_several_receivers(),
    *_adapters_on_shared_ranks(),
    *_experts(),
    *_pooling_heads(),
    *_positions_of_encoders(),
    *_frames(),
    *_replicas(),
    *_dropout(),
    *_weights(),
    *_precisions(),
    *_optimizers(),
)
