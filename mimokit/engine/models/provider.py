"""From specs and a plan to a model on this rank."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mimokit.config import MimoParallelismConfig
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import (
    HyperCommGrid,
    MimoModel,
    MimoModelConfig,
    ModuleSpec,
    ProcessGroupCollection,
    ensure_memory_buffer,
)
from mimokit.engine.models.rng import module_seed, seed_modules
from mimokit.engine.parallel.data_parallel import wrap_data_parallel
from mimokit.engine.parallel.grids import create_grids, participating
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class MimoModelProviderResult:
    """What a rank holds.

    Attributes:
        model: Megatron's `MimoModel`, None on a rank that takes part in no module.
        module_to_grid_map: the grid of every module.
        topology: module -> the modules it feeds.
        pg_collections: the process groups of the modules this rank takes part in.
    """

    model: MimoModel | None
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]


@dataclass
class MimoModelProvider:
    """Builds the modules of a multi-module model on the ranks that take part in them.

    Attributes:
        language_model_spec: spec of the language model; `pg_collection` is injected.
        modality_submodules_spec: modality -> spec; every key is a module of the layout.
        special_token_ids: modality -> the token id that its embeddings replace.
        mimo_parallelism_config: the finalized layout; what it calls frozen is not trained.
        seed: every module starts from a seed of its own made from this and its name.
    """

    language_model_spec: ModuleSpec
    modality_submodules_spec: Mapping[str, ModuleSpec]
    special_token_ids: Mapping[str, int]
    mimo_parallelism_config: MimoParallelismConfig
    seed: int = 1234

    def provide(self, plan: LayoutPlan, wrap: bool = True) -> MimoModelProviderResult:
        """Create grids and groups, inject them, build the modules and wrap them. Collective.

        Args:
            plan: the plan of the same layout.
            wrap: wrap every module with Megatron's data parallel.

        Raises:
            ValueError: if a modality is no module of the layout, or the world has another size.
        """
        self._check(plan)
        ensure_memory_buffer()
        grids, groups = create_grids(plan)
        mine = participating(grids)
        seed_modules(self.seed, {name: groups[name].tp.rank() for name in mine})
        model = self._build(groups) if mine else None
        if model is not None:
            model.to(rank_device())
            self._freeze(model)
            if wrap:
                self._wrap(model, groups)
        topology = {name: list(targets) for name, targets in plan.topology.items()}
        return MimoModelProviderResult(model, grids, topology, groups)

    def _check(self, plan: LayoutPlan) -> None:
        for name in self.modality_submodules_spec:
            if name not in plan.modules:
                known = ", ".join(plan.modules)
                raise ValueError(
                    f"The modality {name!r} is no module of the layout (modules are {known})."
                )
        if dist.get_world_size() != plan.world_size:
            raise ValueError(
                f"The plan is for {plan.world_size} ranks but the world has "
                f"{dist.get_world_size()}; form a world of {plan.world_size} ranks."
            )

    def _build(self, groups: Mapping[str, ProcessGroupCollection]) -> MimoModel:
        language = self.mimo_parallelism_config.llm_module_name
        language_spec = inject_process_groups(self.language_model_spec, groups[language])
        modality_specs = {
            name: inject_process_groups(spec, groups[name])
            for name, spec in self.modality_submodules_spec.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return SeededMimoModel(
                MimoModelConfig(
                    language_model_spec=language_spec,
                    modality_submodules_spec=modality_specs,
                    special_token_ids=dict(self.special_token_ids),
                ),
                language_module_name=language,
                seed=self.seed,
            )

    def _freeze(self, model: MimoModel) -> None:
        language = self.mimo_parallelism_config.llm_module_name
        for name, module in (*model.modality_submodules.items(), (language, model.language_model)):
            module.requires_grad_(not self.mimo_parallelism_config.is_frozen(name))

    def _wrap(self, model: MimoModel, groups: Mapping[str, ProcessGroupCollection]) -> None:
        language = self.mimo_parallelism_config.llm_module_name
        model.language_model = wrap_data_parallel(
            model.language_model, model.language_model.config, groups[language]
        )
        for name, submodule in model.modality_submodules.items():
            encoder = next(iter(submodule.encoders.values()))
            model.modality_submodules[name] = wrap_data_parallel(
                submodule, encoder.config, groups[name]
            )


class SeededMimoModel(MimoModel):  # type: ignore[misc]
    """Megatron's `MimoModel` whose modules start from seeds of their own.

    A module then has the same weights whether or not other modules are built on the rank.
    """

    def __init__(self, config: MimoModelConfig, language_module_name: str, seed: int) -> None:
        self._seed = seed
        self._language_module_name = language_module_name
        super().__init__(config)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None, **given: Any
    ) -> Any:
        """Run the whole model; positions of three axes reach the language model.

        Megatron's own forward keeps positions from it and indexes them as [samples, tokens].
        """
        if position_ids is None or position_ids.dim() != 3:
            return super().forward(input_ids=input_ids, position_ids=position_ids, **given)
        hook = self.language_model.register_forward_pre_hook(
            lambda _, places, named: (places, {**named, "position_ids": position_ids}),
            with_kwargs=True,
        )
        try:
            return super().forward(input_ids=input_ids, position_ids=None, **given)
        finally:
            hook.remove()

    def _initialize_submodules(self) -> None:
        for name, spec in self.mimo_config.modality_submodules_spec.items():
            torch.manual_seed(module_seed(self._seed, name))
            self.modality_submodules[name] = spec.module.from_spec(spec)

    def _initialize_language_model(self) -> None:
        torch.manual_seed(module_seed(self._seed, self._language_module_name))
        super()._initialize_language_model()


def inject_process_groups(spec: ModuleSpec, groups: ProcessGroupCollection) -> ModuleSpec:
    """Return a copy of a spec in which every `pg_collection` and `tp_group` parameter is filled."""
    result = ModuleSpec(
        module=spec.module,
        params=dict(spec.params or {}),
        submodules=copy.copy(spec.submodules),
    )
    if "pg_collection" in result.params:
        result.params["pg_collection"] = groups
    if "tp_group" in result.params:
        result.params["tp_group"] = groups.tp
    if isinstance(result.submodules, dict):
        result.submodules = {key: _inject(value, groups) for key, value in spec.submodules.items()}
    return result


def _inject(value: Any, groups: ProcessGroupCollection) -> Any:
    if isinstance(value, ModuleSpec):
        return inject_process_groups(value, groups)
    if isinstance(value, dict):
        return {key: _inject(item, groups) for key, item in value.items()}
    if isinstance(value, list):
        return [_inject(item, groups) for item in value]
    return value
