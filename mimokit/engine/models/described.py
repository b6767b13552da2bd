"""What a `ModuleSpec` of the user says about its network, as far as a plan needs it."""

from collections.abc import Iterator, Mapping
from typing import Any

from mimokit.config import ConfigError, MimoParallelismConfig, ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.engine.megatron import ModuleSpec, TransformerConfig


def with_networks(
    model: MimoParallelismConfig,
    specs: Mapping[str, ModuleSpec],
    tokens_per_item: Mapping[str, int],
) -> MimoParallelismConfig:
    """Return a layout with a network for every module that has a spec and no network.

    Args:
        specs: module -> spec.
        tokens_per_item: encoder -> tokens that an item becomes.

    Raises:
        ConfigError: a spec has no `TransformerConfig`, or does not say what else a plan needs.
    """
    known = model.module_architectures
    new = {
        name: _network(name, spec, name == model.llm_module_name, tokens_per_item)
        for name, spec in specs.items()
        if name not in known
    }
    return model.model_copy(update={"module_architectures": {**known, **new}}) if new else model


def _network(
    name: str, spec: ModuleSpec, is_language: bool, tokens_per_item: Mapping[str, int]
) -> ModuleArchitecture:
    layers = next(_layers(spec), None)
    if layers is None:
        raise _unknown(name, "has no TransformerConfig", "describe its network")
    params = spec.params or {}
    if is_language:
        wanted = ("vocab_size", "max_sequence_length")
        missing = [field for field in wanted if field not in params]
        if missing:
            raise _unknown(name, f"does not say {missing[0]}", "give it among its params")
        words, tokens = params["vocab_size"], params["max_sequence_length"]
    elif name in tokens_per_item:
        words, tokens = 0, tokens_per_item[name]
    else:
        raise _unknown(
            name,
            "does not say how many tokens an item becomes",
            f"give the provider tokens_per_item={{{name!r}: …}}, or describe its network",
        )
    return ModuleArchitecture(
        num_layers=layers.num_layers,
        hidden_size=layers.hidden_size,
        num_attention_heads=layers.num_attention_heads,
        num_query_groups=layers.num_query_groups,
        ffn_hidden_size=layers.ffn_hidden_size,
        seq_length=tokens,
        vocab_size=words,
    )


def _layers(spec: Any) -> Iterator[TransformerConfig]:
    config = (getattr(spec, "params", None) or {}).get("config")
    if isinstance(config, TransformerConfig):
        yield config
    submodules = getattr(spec, "submodules", None)
    if isinstance(submodules, Mapping):
        for encoder in submodules.get("encoders", {}).values():
            yield from _layers(encoder)


def _unknown(name: str, why: str, right: str) -> ConfigError:
    sentence = (
        f"Module '{name}': module_architectures does not describe its network, and its spec {why}; "
        f"{right}."
    )
    return ConfigError([Problem(name, "module_architectures", None, sentence)])
