"""`MimoModelProvider`: the modules of a rank from specs of the user, with or without a plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist

from mimokit.config import MimoParallelismConfig, check_experiment
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.described import with_networks
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
        return with_networks(self.mimo_parallelism_config, self.modules, self.tokens_per_item)

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
