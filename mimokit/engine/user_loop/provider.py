"""`MimoModelProvider`: the modules of a rank from specs of the user, with or without a plan."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist

from mimokit.config import (
    ConfigError,
    MimoParallelismConfig,
    ModuleArchitecture,
    check_experiment,
)
from mimokit.config.errors import Problem
from mimokit.engine.megatron import ModuleSpec, TransformerConfig
from mimokit.engine.models.provider import MimoModelProviderResult, ModelProvider
from mimokit.planning.layout import plan_checked
from mimokit.planning.model_section import experiment_of_model
from mimokit.planning.types import LayoutPlan


@dataclass
class MimoModelProvider(ModelProvider):
    """Builds the modules of a multi-module model on the ranks that take part in them.

    Attributes:
        tokens_per_item: encoder -> tokens that an item becomes, where no network says it.
    """

    mimo_parallelism_config: MimoParallelismConfig
    tokens_per_item: Mapping[str, int] = field(default_factory=dict)

    @property
    def modules(self) -> dict[str, ModuleSpec]:
        """The specs by module, as `train`, `verify` and `Stepper` take them."""
        language = self.mimo_parallelism_config.llm_module_name
        return {**self.modality_submodules_spec, language: self.language_model_spec}

    def described(self) -> MimoParallelismConfig:
        """Return the layout with the networks that specs describe, next to those of the config.

        Raises:
            ConfigError: a spec does not say what a plan needs of its network.
        """
        return _with_networks(self.mimo_parallelism_config, self.modules, self.tokens_per_item)

    def provide(self, plan: LayoutPlan | None = None, wrap: bool = True) -> MimoModelProviderResult:
        """Create grids and groups, inject them, build the modules and wrap them. Collective.

        Args:
            plan: of `described()`; None: for the smallest batch that all replicas share.

        Raises:
            ConfigError: there is no plan, and the layout cannot be planned.
            ValueError: as `ModelProvider.provide`.
        """
        if plan is None:
            experiment = experiment_of_model(self.described(), None, dist.get_world_size())
            check_experiment(experiment)
            plan = plan_checked(experiment)
        return super().provide(plan, wrap)


def _with_networks(
    model: MimoParallelismConfig,
    specs: Mapping[str, ModuleSpec],
    tokens_per_item: Mapping[str, int],
) -> MimoParallelismConfig:
    """Return a layout with a network for every module that has a spec and no network."""
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
