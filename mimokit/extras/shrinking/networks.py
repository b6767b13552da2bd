"""Makes the networks, sequences and batches of a layout as small as its rules allow."""

from collections.abc import Callable, Iterator
from typing import Any

from mimokit.architecture.attention import FREE_WIDTHS
from mimokit.config import ExperimentConfig, ModuleArchitecture

Accepts = Callable[[ExperimentConfig], bool]

HEAD = 8
"""Width of a head; with three axes a head keeps its frequencies."""

INNER = 16
"""Widths inside of attention and experts."""

WORDS = 128


def with_small_networks(config: ExperimentConfig, accepts: Accepts) -> ExperimentConfig:
    """Return a copy in which everything is as small as it can be, each change by itself.

    Args:
        accepts: whether a config is valid and keeps what it has to.
    """
    small = config.model_copy(deep=True)
    for name in small.model.module_architectures:
        small = _first(small, accepts, _without_weights(small, name))
        small = _first(small, accepts, _narrow(small, name))
        small = _first(small, accepts, _few_tokens(small, name))
    small = _first(small, accepts, _short(small))
    small = _first(small, accepts, _few_words(small))
    small = _first(small, accepts, _small_batches(small))
    return small.finalize()


def _first(
    config: ExperimentConfig, accepts: Accepts, candidates: Iterator[ExperimentConfig]
) -> ExperimentConfig:
    return next((candidate for candidate in candidates if accepts(candidate)), config)


def _with_network(config: ExperimentConfig, name: str, **fields: Any) -> ExperimentConfig:
    changed = config.model_copy(deep=True)
    networks = changed.model.module_architectures
    networks[name] = networks[name].model_copy(update=fields)
    return changed


def _without_weights(config: ExperimentConfig, name: str) -> Iterator[ExperimentConfig]:
    if config.model.module_architectures[name].weights is not None:
        yield _with_network(config, name, weights=None, weights_prefix=None)


def _narrow(config: ExperimentConfig, name: str) -> Iterator[ExperimentConfig]:
    network = config.model.module_architectures[name]
    width = HEAD if network.mrope_section is None else 2 * sum(network.mrope_section)
    for heads in _divisors(network.num_attention_heads):
        hidden = heads * width
        if hidden >= network.hidden_size:
            return
        fields: dict[str, Any] = {
            "num_attention_heads": heads, "hidden_size": hidden, "ffn_hidden_size": 2 * hidden,
        }  # fmt: skip
        if network.kv_channels is not None:
            fields["kv_channels"] = width
        yield _with_network(config, name, **fields, **_groups(network, heads), **_inner(network))


def _groups(network: ModuleArchitecture, heads: int) -> dict[str, int]:
    groups = network.num_query_groups
    if groups is None:
        return {}
    return {"num_query_groups": max(1, groups * heads // network.num_attention_heads)}


def _inner(network: ModuleArchitecture) -> dict[str, int]:
    return {field: INNER for field in FREE_WIDTHS if getattr(network, field) is not None}


def _few_tokens(config: ExperimentConfig, name: str) -> Iterator[ExperimentConfig]:
    network, data = config.model.module_architectures[name], config.data
    if config.model.receivers_of(name) != (config.model.llm_module_name,):
        # An adapter takes all of its tokens.
        return
    tokens = data.modality_seq_length(name)
    for fields, share in _inputs(network):
        changed = _with_network(config, name, **fields)
        lengths = {**data.modality_seq_lengths, name: max(1, int(tokens * share))}
        changed.data = data.model_copy(update={"modality_seq_lengths": lengths})
        yield changed


def _inputs(network: ModuleArchitecture) -> Iterator[tuple[dict[str, int], float]]:
    if network.mel_bins is not None:
        for positions in _divisors(network.seq_length):
            if positions >= 4 * network.merge_size:
                yield {"seq_length": positions}, positions / network.seq_length
    elif network.image_size is not None and network.patch_size is not None:
        old = network.image_size // network.patch_size
        for side in _divisors(old):
            if side >= 2 * network.merge_size:
                fields = {"image_size": side * network.patch_size, "seq_length": side * side}
                yield fields, side * side / old**2


def _short(config: ExperimentConfig) -> Iterator[ExperimentConfig]:
    model, data = config.model, config.data
    language = model.llm_module_name
    encoders = [name for name in model.special_token_ids if name in model.module_architectures]
    tokens = [data.modality_seq_length(name) for name in encoders]
    for length in _divisors(data.seq_length):
        if length < 1.5 * sum(tokens) + 8:
            continue
        changed = _with_network(config, language, seq_length=length)
        longest = min(data.image_seq_length, max(tokens, default=0))
        changed.data = data.model_copy(update={"seq_length": length, "image_seq_length": longest})
        yield changed


def _few_words(config: ExperimentConfig) -> Iterator[ExperimentConfig]:
    model, data = config.model, config.data
    network = model.module_architectures[model.llm_module_name]
    if network.vocab_size <= 2 * WORDS:
        return
    changed = _with_network(config, model.llm_module_name, vocab_size=2 * WORDS)
    ids = {token: WORDS + n for n, token in enumerate(model.special_token_ids.values())}
    names = model.special_token_ids
    changed.model.special_token_ids = {name: ids[token] for name, token in names.items()}
    image = data.image_special_token_id
    changed.data = data.model_copy(
        update={"vocab_size": WORDS, "image_special_token_id": ids.get(image, image)}
    )
    yield changed


def _small_batches(config: ExperimentConfig) -> Iterator[ExperimentConfig]:
    for size in _divisors(config.data.base_batch_size):
        changed = config.model_copy(deep=True)
        changed.data = config.data.model_copy(update={"base_batch_size": size})
        yield changed


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]
