"""Small configs for tests: the digits model with modules on ranks of their own."""

from collections.abc import Mapping
from typing import Any

from mimokit.architecture.tokens import image_geometry, tokens_per_item
from mimokit.config import (
    ExperimentConfig,
    MimoParallelismConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
)
from tests.layouts import SAMPLES_PER_MICROBATCH, digits_config
from tests.layouts_multimodal import LANGUAGE, SMALL, multimodal_config

Sizes = tuple[int, int, int]
WRITER: dict[str, Any] = {**SMALL, "seq_length": 42, "vocab_size": 16, "modal_type": "text"}
"""The network of a text decoder."""


def apart_config(
    encoder: Sizes, language: Sizes, num_microbatches: int = 1, **runtime: object
) -> ExperimentConfig:
    """Return a finalized config; sizes are (tensor, pipeline, data parallel)."""
    config = digits_config(num_microbatches=num_microbatches, **runtime)
    for name, sizes in (("images", encoder), (LANGUAGE, language)):
        config.model.module_architectures[name].num_layers = 2 * sizes[1]
    return _apart(config, {"images": encoder, LANGUAGE: language}, "apart")


def _apart(config: ExperimentConfig, sizes: Mapping[str, Sizes], name: str) -> ExperimentConfig:
    """Return a config whose modules lie on their ranks in the order in which they are given."""
    model, offset, modules = config.model, 0, {}
    for module, own in sizes.items():
        modules[module] = _sizes(own, offset)
        offset += own[0] * own[1] * own[2]
    ids, networks = model.special_token_ids, model.module_architectures
    decoders = [module for module in sizes if module not in (LANGUAGE, *ids)]
    changed = MimoParallelismConfig(
        llm_module_name=LANGUAGE,
        deployment_mode="heterogeneous",
        module_parallelisms=modules,
        special_token_ids={module: token for module, token in ids.items() if module in sizes},
        module_architectures={module: networks[module] for module in sizes},
        topology={"images": [LANGUAGE], LANGUAGE: decoders} if decoders else None,
    )
    config.data.base_batch_size = SAMPLES_PER_MICROBATCH // sizes[LANGUAGE][2]
    config.runtime.pipeline_schedule = "1f1b"
    config = config.model_copy(update={"model": changed, "name": name})
    config.model.finalize(offset)
    return config


def _sizes(sizes: Sizes, offset: int) -> ModuleParallelismConfig:
    names = ("tensor_parallel", "pipeline_parallel", "data_parallel")
    return ModuleParallelismConfig(**dict(zip(names, sizes, strict=True)), rank_offset=offset)


def apart_multimodal_config(
    sizes: Mapping[str, Sizes], num_microbatches: int = 1, **options: Any
) -> ExperimentConfig:
    """Return a finalized config; modules lie on their ranks in the order in which they are given.

    Args:
        sizes: module -> (tensor, pipeline, data parallel); encoders are clip, dino, qwen and audio.
        num_microbatches: per step.
        options: of `multimodal_config`.
    """
    encoders = {name: (1, 1) for name in sizes if name != LANGUAGE} or {"clip": (1, 1)}
    config = multimodal_config(
        {**encoders, LANGUAGE: (1, 1)}, "homogeneous", num_microbatches=num_microbatches, **options
    )
    for name, own in sizes.items():
        config.model.module_architectures[name].num_layers *= own[1]
    room = config.data.modality_seq_lengths
    config.data.modality_seq_lengths = {name: room[name] for name in room if name in sizes}
    return _apart(config, sizes, "apart")


def decoded_config(
    sizes: Mapping[str, Sizes], num_microbatches: int = 1, **runtime: object
) -> ExperimentConfig:
    """Return a finalized config of digits with text decoders behind the language model.

    Args:
        sizes: module -> (tensor, pipeline, data parallel), of "images", "language_module" and any
            number of decoders; they lie on their ranks in this order.
        num_microbatches: per step.
        runtime: what of that section is not as usual.
    """
    config = digits_config(num_microbatches=num_microbatches, **runtime)
    networks = config.model.module_architectures
    for name, own in sizes.items():
        networks.setdefault(name, ModuleArchitecture(**WRITER)).num_layers = 2 * own[1]
    return _apart(config, sizes, "decoded")


def _images_of(reading: ModuleArchitecture) -> dict[str, int]:
    """Return the fields of a decoder of the images that an encoder reads."""
    read = image_geometry(reading)
    return {
        "seq_length": read.tokens,
        "image_size": read.height,
        "patch_size": read.patch_size * read.merge_size,
        "num_channels": read.num_channels,
    }


def _sound_of(reading: ModuleArchitecture) -> dict[str, int | None]:
    """Return the fields of a decoder of the recordings that an encoder reads."""
    return {field: getattr(reading, field) for field in ("seq_length", "mel_bins", "merge_size")}


def with_image_decoder(
    config: ExperimentConfig,
    sizes: Sizes,
    encoder: str = "images",
    name: str = "painter",
    **fields: object,
) -> ExperimentConfig:
    """Return a config with a module that makes an encoder's items again, on the last ranks.

    Args:
        sizes: (tensor, pipeline, data parallel).
        fields: of its network that are not as usual.
    """
    model = config.model
    reading = model.get_architecture(encoder)
    own: dict[str, Any] = {**SMALL, "num_layers": 2 * sizes[1], "reconstructs": encoder}
    read = _sound_of(reading) if reading.modality == "audio" else _images_of(reading)
    network = ModuleArchitecture(**own, **read)
    graph = {source: list(fed) for source, fed in model.module_topology.items()}
    graph[LANGUAGE].append(name)
    changed = _with_module(model, name, sizes, network.model_copy(update=fields), topology=graph)
    return config.model_copy(update={"model": changed}).finalize()


def _with_module(
    model: MimoParallelismConfig,
    name: str,
    sizes: Sizes,
    network: ModuleArchitecture,
    **fields: object,
) -> MimoParallelismConfig:
    """Return a model with one more module, on the last ranks, and with other fields."""
    modules = {**model.module_parallelisms, name: _sizes(sizes, model.total_world_size)}
    networks = {**model.module_architectures, name: network}
    update = {"module_parallelisms": modules, "module_architectures": networks, **fields}
    return model.model_copy(update=update)


def with_adapter(
    config: ExperimentConfig,
    sizes: Sizes,
    encoder: str = "images",
    name: str = "adapter",
    others: tuple[str, ...] = (),
    **fields: object,
) -> ExperimentConfig:
    """Return a config with an adapter between an encoder and what that feeds, on the last ranks.

    Args:
        sizes: (tensor, pipeline, data parallel).
        others: encoders that feed it, too.
        fields: of its network that are not as usual.
    """
    model, data = config.model, config.data
    graph = {source: list(fed) for source, fed in model.module_topology.items()}
    graph |= {name: graph[encoder], **{feeding: [name] for feeding in (encoder, *others)}}
    rows = max(tokens_per_item(model.get_architecture(n)) for n in (encoder, *others))
    own: dict[str, Any] = {**SMALL, "hidden_size": 48, "seq_length": rows, "modal_type": "rows"}
    network = ModuleArchitecture(**{**own, "num_layers": 2 * sizes[1]})
    ids = _together(model.special_token_ids, encoder, others, name)
    network = network.model_copy(update=fields)
    changed = _with_module(model, name, sizes, network, special_token_ids=ids, topology=graph)
    lengths = _together(data.modality_seq_lengths, encoder, others, name)
    if name in lengths:
        lengths[name] = sum(data.modality_seq_lengths[feeding] for feeding in (encoder, *others))
    of_adapter = data.model_copy(update={"modality_seq_lengths": lengths})
    return config.model_copy(update={"model": changed, "data": of_adapter}).finalize()


def with_edge(
    config: ExperimentConfig, source: str = "images", target: str = LANGUAGE
) -> ExperimentConfig:
    """Return a config in which an encoder feeds one more module; its rows share their places."""
    model, data = config.model, config.data
    graph = {name: list(fed) for name, fed in model.module_topology.items()}
    graph[source].append(target)
    ids = dict(model.special_token_ids)
    if target == LANGUAGE:
        ids.setdefault(source, max(ids.values()) + 1)
    changed = model.model_copy(update={"topology": graph, "special_token_ids": ids})
    paths = [sum(one.ends_of(source).values()) for one in (model, changed)]
    each = config.tokens_of(source) * paths[0] // paths[1]
    room = {end: each * changed.paths_of_items(end) for end in changed.ends_of(source)}
    lengths = data.model_copy(update={"modality_seq_lengths": data.modality_seq_lengths | room})
    return config.model_copy(update={"model": changed, "data": lengths}).finalize()


def _together(
    of_modules: Mapping[str, int], encoder: str, others: tuple[str, ...], name: str
) -> dict[str, int]:
    """Return the numbers of modules, with that of an encoder as that of an adapter."""
    left = {name if one == encoder else one: number for one, number in of_modules.items()}
    return {one: number for one, number in left.items() if one not in others}
