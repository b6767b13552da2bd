"""`ModuleBuild`: everything that decides how a module is built; its builders read nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimokit.config import MimoParallelismConfig, ModuleArchitecture
from mimokit.config.user_code import NO_CODE, OwnModule, UserCode
from mimokit.engine.megatron import TransformerConfig
from mimokit.engine.models.rng import module_seed
from mimokit.engine.models.transformer import transformer_config
from mimokit.planning.execution import ModuleExecution
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class ModuleBuild:
    """What a module is built from, on every rank of the world.

    Process groups are not among it: ranks without the module make its spec, too, and have none.
    `MimoModelProvider` injects them into the spec, as it does into one of the user's.

    Attributes:
        language: the language model's network: an encoder's projector ends in its width, and a
            text decoder reads rows of its width.
        seed: of the module, see `SeededTransformerLayer`.
    """

    name: str
    execution: ModuleExecution
    architecture: ModuleArchitecture
    language: ModuleArchitecture
    seed: int = 0
    builder: OwnModule | None = None

    @property
    def config(self) -> TransformerConfig:
        """A new configuration of Megatron for the layers of the module."""
        return transformer_config(self.architecture, self.execution)


def module_builds(
    config: MimoParallelismConfig, plan: LayoutPlan, seed: int, code: UserCode = NO_CODE
) -> Mapping[str, ModuleBuild]:
    """Return module -> what it is built from, in the order of the plan.

    Networks come from the config, all that is decided about them from the plan, modules of the
    user from the code.
    """
    language = config.get_architecture(plan.llm_module_name)
    builds = {}
    for name, execution in plan.executions.items():
        network = config.get_architecture(name)
        builder = code.builder_of(name, network)
        initial = module_seed(seed, name)
        builds[name] = ModuleBuild(name, execution, network, language, initial, builder)
    return builds
