"""Layouts of every mode and size that run, drawn at random: one of a number is always the same."""

import random
from typing import Any

import mimokit
from mimokit.config import (
    ConfigError,
    DeploymentMode,
    ExperimentConfig,
    ModalityPresence,
    ModuleParallelismConfig,
    ProjectorArchitecture,
    StrategyConfig,
)
from tests.layouts_apart import (
    apart_multimodal_config,
    decoded_config,
    with_adapter,
    with_edge,
    with_image_decoder,
)
from tests.layouts_experts import MIXTURE
from tests.layouts_multimodal import LANGUAGE, multimodal_config
from tests.layouts_networks import LANGUAGES

MOST_RANKS = 8
ENCODERS = ("clip", "dino", "qwen", "audio", "words")
STRATEGIES: dict[str, dict[str, Any]] = {
    "diloco": {"H": 2},
    "simple_reduce": {},
    "sparta": {"p_sparta": 0.3},
    "fedavg": {"H": 2},
}
PRECISIONS = (None, None, None, None, "bf16", "fp16")
EXPERTS = {
    "add_bias_linear": False, "num_moe_experts": 4, "moe_router_topk": 2, "moe_ffn_hidden_size": 24,
}  # fmt: skip
_OF_LANGUAGE = ("seq_length", "vocab_size", "rope_scaling", "max_position_embeddings")


def numbered_config(number: int) -> ExperimentConfig:
    """Return the layout of a number; one of an odd number does not clip gradients."""
    draws = random.Random(number)
    config = drawn_config(draws)
    _predict_further(draws, config)
    config.runtime.clip_grad = 0.0 if number % 2 else 1.0
    config.name = f"drawn {number}"
    return config


def drawn_config(draws: random.Random) -> ExperimentConfig:
    """Return a finalized layout that runs, of at most `MOST_RANKS` ranks."""
    while True:
        try:
            config = _drawn(draws)
            config.finalize()
            if mimokit.plan(config).world_size <= MOST_RANKS:
                _vary_chunks(draws, config)
                config.finalize()
                return _with_inner_layers(draws, config)
        except (ConfigError, ZeroDivisionError):
            continue


def numbered_graph(number: int) -> ExperimentConfig:
    """Return a layout with adapters, encoders of several receivers, or decoders of items."""
    draws = random.Random(number)
    while True:
        try:
            config = _graph(draws)
            for vary in (_vary_language, _share_replicas, _cut_sequences, _mix_experts):
                vary(draws, config)
            _vary_steps(draws, config)
            config.finalize()
            if mimokit.plan(config).world_size <= MOST_RANKS:
                _vary_chunks(draws, config)
                config.runtime.clip_grad = 0.0 if number % 2 else 1.0
                config.name = f"drawn graph {number}"
                return config.finalize()
        except (ConfigError, ZeroDivisionError):
            continue


def _graph(draws: random.Random) -> ExperimentConfig:
    """Return modules on ranks of their own, or a chain with an adapter on shared ranks."""
    mode = draws.choice(("homogeneous", "colocated", "heterogeneous", "heterogeneous"))
    encoders = draws.sample(ENCODERS, draws.choice((1, 2, 2, 3)))
    options, apart = _options(draws, encoders), mode == "heterogeneous"
    each = {name: _sizes(draws, 2) if apart else (1, 1, 1) for name in (*encoders, LANGUAGE)}
    config = apart_multimodal_config(each, **options)
    if apart and draws.random() < 0.3:
        return _decoding(draws, config)
    config = _adapting(draws, config, encoders, apart)
    if not apart:
        return _on_shared_ranks(draws, config, mode)
    feeding = [n for n in encoders if LANGUAGE not in config.model.module_topology[n]]
    if draws.random() < 0.4:
        config = with_edge(config, draws.choice(feeding))
    return _decoding(draws, config) if draws.random() < 0.2 else config


def _adapting(
    draws: random.Random, config: ExperimentConfig, encoders: list[str], apart: bool
) -> ExperimentConfig:
    """Draw an adapter of one encoder or of several, sometimes another behind it."""
    last, *others = draws.sample(encoders, draws.randint(1, len(encoders)))
    for name in ("adapter", "second")[: draws.choice((1, 1, 2))]:
        fields: dict[str, Any] = {"hidden_size": draws.choice((32, 48))}
        if draws.random() < 0.4:
            fields["position_embedding_type"] = "rope"
        sizes = _sizes(draws, 2) if apart else (1, 1, 1)
        config = with_adapter(config, sizes, last, name, tuple(others), **fields)
        last, others = name, []
    return config


def _decoding(draws: random.Random, config: ExperimentConfig) -> ExperimentConfig:
    """Draw a decoder of the images or the sound that an encoder reads."""
    networks = config.model.module_architectures
    names = [n for n in config.model.input_module_names if networks[n].modality != "text"]
    if not names:
        return config
    weight = draws.choice((None, 0.5))
    return with_image_decoder(
        config, _sizes(draws, 2), draws.choice(names), reconstruction_loss_weight=weight
    )


def _on_shared_ranks(
    draws: random.Random, config: ExperimentConfig, mode: DeploymentMode
) -> ExperimentConfig:
    """Draw the sizes of a chain of modules, on which the language model may have stages."""
    networks = config.model.module_architectures
    config.data.seq_length = networks[LANGUAGE].seq_length = 44
    ranks, stages = draws.choice((2, 4, 4, 8)), draws.choice((1, 1, 2))
    own: dict[str, Any] = {**_of_ranks(draws, ranks // stages), "pipeline_parallel": stages}
    sizes = {
        name: own if mode == "homogeneous" else _of_encoder(draws, ranks, stages)
        for name in config.model.encoder_module_names
    }
    for name in sizes if mode == "colocated" else ():
        network = networks[name]
        network.num_layers = max(sizes[name]["pipeline_parallel"], network.num_layers)
    networks[LANGUAGE].num_layers = max(stages, networks[LANGUAGE].num_layers)
    config.data.base_batch_size = 8 // own["data_parallel"]
    config = config.with_layout(mode, **sizes, **{LANGUAGE: own})
    if mode == "colocated" and draws.random() < 0.5:
        config.runtime.encoder_microbatches = draws.randint(1, config.data.num_microbatches)
    return config


def _predict_further(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw layers for tokens further on, last of all: numbers keep what else they stand for."""
    network, layers = config.model.get_architecture(LANGUAGE), draws.choice((0, 0, 0, 1, 2))
    sizes = config.model.get_parallelism(LANGUAGE)
    learned = network.has_learned_positions(by_default=False)
    if layers and not learned:
        fields = {"mtp_num_layers": layers}
        if sizes.account_for_loss_in_pipeline_split:  # a chunk of two has room for one of them
            fields = {"mtp_num_layers": 1, "num_layers": network.num_layers - 1}
        config.model.module_architectures[LANGUAGE] = network.model_copy(update=fields)
        config.finalize()


def _drawn(draws: random.Random) -> ExperimentConfig:
    mode = draws.choice(("homogeneous", "colocated", "heterogeneous"))
    config = _apart(draws) if mode == "heterogeneous" else _together(draws, mode)
    _vary_language(draws, config)
    if draws.random() < 0.15:
        name = draws.choice(tuple(STRATEGIES))
        config.strategy = StrategyConfig(name=name, replicas=2, **STRATEGIES[name])
    _share_replicas(draws, config)
    _cut_sequences(draws, config)
    _mix_experts(draws, config)
    _vary_steps(draws, config)
    return config


def _options(draws: random.Random, encoders: list[str]) -> dict[str, Any]:
    return {
        "num_microbatches": draws.randint(1, 4),
        "three_axes": "qwen" in encoders and draws.random() < 0.5,
        "tied": draws.random() < 0.3,
        "presence": {name: _presence(draws) for name in encoders if draws.random() < 0.4},
        "frozen": [name for name in (*encoders, LANGUAGE) if draws.random() < 0.1],
        "seed": draws.randint(0, 1 << 20),
        "learning_rate": draws.choice((1e-3, 3e-3, 1e-2)),
    }


def _presence(draws: random.Random) -> ModalityPresence:
    return ModalityPresence(
        microbatches=[draws.random() < 0.8 for _ in range(2)],
        samples=[draws.random() < 0.6 for _ in range(8)],
    )


def _apart(draws: random.Random) -> ExperimentConfig:
    """Return modules on ranks of their own, sometimes with a decoder."""
    if draws.random() < 0.2:
        sizes = {name: _sizes(draws, 4) for name in ("images", LANGUAGE, "writer")}
        return decoded_config(sizes, draws.randint(1, 4))
    encoders = draws.sample(ENCODERS, draws.choice((1, 1, 2, 3)))
    sizes = {name: _sizes(draws, 4) for name in (*encoders, LANGUAGE)}
    if draws.random() < 0.3:
        sizes = dict(reversed(sizes.items()))
    return apart_multimodal_config(sizes, **_options(draws, encoders))


def _sizes(draws: random.Random, most: int) -> tuple[int, int, int]:
    while True:
        sizes = draws.choice((1, 1, 2)), draws.choice((1, 1, 2)), draws.choice((1, 1, 2, 4))
        if sizes[0] * sizes[1] * sizes[2] <= most:
            return sizes


def _together(draws: random.Random, mode: DeploymentMode) -> ExperimentConfig:
    """Return modules on shared ranks, on which the language model may have stages."""
    encoders = draws.sample(ENCODERS, draws.choice((1, 1, 2, 3)))
    ranks = draws.choice((2, 4, 4, 8))
    alone = dict.fromkeys((*encoders, LANGUAGE), (1, 1))
    config = multimodal_config(alone, "homogeneous", **_options(draws, encoders))
    stages = draws.choice((1, 1, 2, 4)) if ranks > 2 else draws.choice((1, 2))
    own: dict[str, Any] = {**_of_ranks(draws, ranks // stages), "pipeline_parallel": stages}
    sizes = {
        name: own if mode == "homogeneous" else _of_encoder(draws, ranks, stages)
        for name in encoders
    }
    for name in encoders if mode == "colocated" else ():
        config.model.module_architectures[name].num_layers = sizes[name]["pipeline_parallel"]
    config = config.with_layout(mode, **sizes, **{LANGUAGE: own})
    config.data.base_batch_size = 8 // own["data_parallel"]
    if mode == "colocated" and draws.random() < 0.5:
        config.runtime.encoder_microbatches = draws.randint(1, config.data.num_microbatches)
    return config


def _of_encoder(draws: random.Random, ranks: int, stages: int) -> dict[str, int]:
    """Return one stage on all ranks, or as many as the language model has."""
    stages = draws.choice((1, 1, stages))
    return {**_of_ranks(draws, ranks // stages), "pipeline_parallel": stages}


def _of_ranks(draws: random.Random, ranks: int) -> dict[str, int]:
    tensor = draws.choice([size for size in (1, 2, 4) if size <= ranks])
    return {"tensor_parallel": tensor, "data_parallel": ranks // tensor}


def _vary_language(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw another language model, the chunks of its stages, and the order of these."""
    sizes, networks = config.model.module_parallelisms[LANGUAGE], config.model.module_architectures
    network, fields = networks[LANGUAGE], {}
    if draws.random() < 0.5 and network.mrope_section is None:
        fields = dict(LANGUAGES[draws.choice(tuple(LANGUAGES))])
        for name in _OF_LANGUAGE:
            fields.pop(name, None)
        if fields.get("position_embedding_type") == "learned_absolute":
            fields["max_position_embeddings"] = 64
    elif network.mrope_section is None:
        fields = {"hidden_size": draws.choice((32, 48, 64))}
    if draws.random() < 0.3:
        words = draws.choice((17, 19, 23, 131))
        fields |= {"vocab_size": words, "make_vocab_size_divisible_by": draws.choice((1, 3, 8))}
    stages, chunks = sizes.pipeline_parallel, 1
    if stages > 1 and draws.random() < 0.4:
        sizes.virtual_pipeline_model_parallel_size = chunks = 2
        config.data.num_microbatches = stages * draws.randint(1, 4 // stages)
        _as_language_of_all(config)
    fields["num_layers"] = stages * chunks * draws.choice((1, 2) if stages * chunks < 4 else (1,))
    if stages * chunks == 4 and draws.random() < 0.3:  # embedding and loss count as layers
        fields["num_layers"] = 6
        sizes.account_for_embedding_in_pipeline_split = True
        sizes.account_for_loss_in_pipeline_split = True
        _as_language_of_all(config)
    if stages > 1 and draws.random() < 0.2:
        config.runtime.pipeline_order = "gpipe" if chunks > 1 else draws.choice(("gpipe", "zb-h1"))
    fields["init_std"] = draws.choice((0.02, 0.05, 0.2))  # large weights have large gradients
    networks[LANGUAGE] = network.model_copy(update=fields)


def _vary_chunks(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw chunks of encoders and decoders that are cut into stages."""
    model = config.model
    if model.deployment_mode == "homogeneous" or config.runtime.pipeline_order == "zb-h1":
        return
    for name, sizes in model.module_parallelisms.items():
        stages, network = sizes.pipeline_parallel, model.module_architectures[name]
        if name == LANGUAGE or stages == 1:
            continue
        if draws.random() < 0.5:
            sizes.virtual_pipeline_model_parallel_size = 2
            layers = network.model_copy(update={"num_layers": 2 * stages})
            model.module_architectures[name] = layers


def _with_inner_layers(draws: random.Random, config: ExperimentConfig) -> ExperimentConfig:
    """Draw inner layers of encoders of images, where the layout runs with them."""
    for name in config.model.encoder_module_names:
        network = config.model.module_architectures[name]
        if network.modality != "vision" or draws.random() >= 0.3:
            continue
        inner = list(range(1, network.num_layers + 1))[-draws.choice((1, 2)) :]
        projector = network.projector or ProjectorArchitecture()
        other = config.model_copy(deep=True)
        other.model.module_architectures[name].projector = projector.model_copy(
            update={"deepstack_layers": inner}
        )
        try:
            other.finalize()
        except ConfigError:
            continue
        config = other
    return config


def _as_language_of_all(config: ExperimentConfig) -> None:
    """Give modules that are one with the language model the sizes of its pipeline, too."""
    sizes = config.model.module_parallelisms
    if config.model.deployment_mode == "homogeneous":
        for name in sizes:
            sizes[name] = sizes[LANGUAGE].model_copy()


def _share_replicas(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw what modules do with weights, gradients and activations that replicas share."""
    alike, drawn = config.model.deployment_mode == "homogeneous", _shared_fields(draws)
    for name, sizes in config.model.module_parallelisms.items():
        for field, value in (drawn if alike else _shared_fields(draws)).items():
            setattr(sizes, field, value)
        if name in config.model.encoder_module_names and not alike and draws.random() < 0.2:
            sizes.use_megatron_fsdp, sizes.use_distributed_optimizer = True, None


def _shared_fields(draws: random.Random) -> dict[str, Any]:
    sharded = draws.random() < 0.3 or None
    return {
        "use_distributed_optimizer": sharded,
        "num_distributed_optimizer_instances": draws.choice((None, 2)) if sharded else None,
        "overlap_grad_reduce": draws.random() < 0.2 or None,
        "recompute_granularity": draws.choice((None, None, "selective", "full")),
    }


def _cut_sequences(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw modules that cut their sequences, in slices or over context-parallel ranks, and rows.

    The replicas of a module give it the ranks.
    """
    config.data.pack_sequences_in_batch = draws.random() < 0.2
    model = config.model
    alike = model.deployment_mode == "homogeneous"
    slices, contexts = draws.random() < 0.5, draws.random() < 0.5
    for name, sizes in model.module_parallelisms.items():
        network, ranks = model.module_architectures[name], sizes.tensor_parallel
        positions = config.data.seq_length if name == LANGUAGE else network.positions
        if not alike:
            slices, contexts = draws.random() < 0.4, draws.random() < 0.4
        replicas = sizes.data_parallel or 1
        divides = name in model.encoder_module_names or positions % 4 == 0
        if contexts and (alike or divides) and replicas % 2 == 0:
            sizes.context_parallel, sizes.data_parallel = 2, replicas // 2
            if name == LANGUAGE:
                config.data.base_batch_size *= 2
        divides = divides or positions // sizes.context_parallel % ranks == 0
        if slices and ranks > 1 and (alike or divides):
            sizes.sequence_parallel = True


def _mix_experts(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw a language model with experts, on ranks of their own or on all."""
    model = config.model
    if draws.random() >= 0.25:
        return
    fields: dict[str, Any] = {**EXPERTS}
    if draws.random() < 0.3:
        fields |= {"moe_aux_loss_coeff": 0.1, "moe_z_loss_coeff": 0.02}
    if draws.random() < 0.3:
        fields |= {"moe_shared_expert_intermediate_size": 16}
    network = model.module_architectures[LANGUAGE]
    stated = {**network.model_dump(exclude_unset=True), **fields}
    if draws.random() < 0.5:
        stated |= {key: value for key, value in MIXTURE.items() if key != "num_layers"}
        stated |= {name: getattr(network, name) for name in ("seq_length", "vocab_size")}
    model.module_architectures[LANGUAGE] = type(network)(**stated)
    sizes: ModuleParallelismConfig = model.module_parallelisms[LANGUAGE]
    chosen: dict[str, Any] = {
        "expert_parallel": draws.choice((1, 2, 2, 4)),
        "expert_tensor_parallel": draws.choice((None, None, 1, 2)),
        "moe_token_dispatcher_type": draws.choice((None, "alltoall", "allgather")),
        "sequence_parallel": sizes.tensor_parallel > 1 or None,
    }
    together = model.deployment_mode == "homogeneous"
    for name in model.module_parallelisms if together else (LANGUAGE,):
        for field, value in chosen.items():
            setattr(model.module_parallelisms[name], field, value)


def _vary_steps(draws: random.Random, config: ExperimentConfig) -> None:
    """Draw the precision of a run, and what its layers drop."""
    config.runtime.precision = draws.choice(PRECISIONS)
    if draws.random() < 0.15:
        for network in config.model.module_architectures.values():
            network.hidden_dropout = 0.1
