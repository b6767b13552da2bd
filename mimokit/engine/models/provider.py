"""Builds the modules of a rank from specs and a plan."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
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
from mimokit.engine.models.transformer import StagePart
from mimokit.engine.models.weights import load_weights, named_parameters
from mimokit.engine.parallel.data_parallel import wrap_data_parallel
from mimokit.engine.parallel.grids import create_grids, participating
from mimokit.engine.parallel.marks import set_own_shards, set_shards
from mimokit.planning.types import LayoutPlan


@dataclass(frozen=True)
class MimoModelProviderResult:
    """The modules of a rank, and its groups.

    Attributes:
        model: the modules that this rank takes part in, each cut to its pipeline stage; None on a
            rank that takes part in no module.
    """

    model: SeededMimoModel | None
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]


@dataclass
class MimoModelProvider:
    """Builds the modules of a multi-module model on the ranks that take part in them.

    Attributes:
        language_model_spec: `pg_collection` is injected.
        special_token_ids: modality -> the token id that its embeddings replace.
        mimo_parallelism_config: finalized; networks of it may start from weights.
        seed: every module starts from a separate seed, made from this one and its name.
        cuts: module -> parameter of the whole module -> how it is cut.
        own_modules: those in which parameters of the user are, which `cuts` need not have.
    """

    language_model_spec: ModuleSpec
    modality_submodules_spec: Mapping[str, ModuleSpec]
    special_token_ids: Mapping[str, int]
    mimo_parallelism_config: MimoParallelismConfig
    seed: int = 1234
    decoder_specs: Mapping[str, ModuleSpec] = field(default_factory=dict)
    cuts: Mapping[str, Mapping[str, TensorCut]] = field(default_factory=dict)
    own_modules: Collection[str] = ()

    def provide(self, plan: LayoutPlan, wrap: bool = True) -> MimoModelProviderResult:
        """Create grids and groups, inject them, build the modules and wrap them. Collective.

        Raises:
            ValueError: if a spec is for a module that the layout does not have, the world has
                another size, or Megatron cuts a parameter differently from `cuts`.
        """
        self._check(plan)
        ensure_memory_buffer()
        grids, groups = create_grids(plan)
        names = participating(grids)
        seed_modules(self.seed, {name: groups[name].tp.rank() for name in names})
        model = self._build(groups) if names else None
        if model is not None:
            model.to(rank_device())
            self._freeze(model, plan)
            networks = self.mimo_parallelism_config.module_architectures
            for name, module in model.parts():
                self._set_shards(name, module, plan.modules[name].shard_place(dist.get_rank()))
                if name in networks:
                    language = name == plan.llm_module_name
                    load_weights(module, networks[name], language, groups[name])
            if wrap:
                self._wrap(model, plan, groups)
        topology = {name: list(targets) for name, targets in plan.topology.items()}
        return MimoModelProviderResult(model, grids, topology, groups)

    def _check(self, plan: LayoutPlan) -> None:
        for name in (*self.modality_submodules_spec, *self.decoder_specs):
            if name not in plan.modules:
                known = ", ".join(plan.modules)
                raise ValueError(f"There is a spec for {name!r}, but the layout has only {known}.")
        if dist.get_world_size() != plan.world_size:
            raise ValueError(
                f"The plan is for {plan.world_size} ranks but the world has "
                f"{dist.get_world_size()}; form a world of {plan.world_size} ranks."
            )

    def _build(self, groups: Mapping[str, ProcessGroupCollection]) -> SeededMimoModel:
        """Build the modules for which this rank has groups."""
        language = self.mimo_parallelism_config.llm_module_name
        language_spec = self.language_model_spec
        if language in groups:
            language_spec = inject_process_groups(language_spec, groups[language])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Megatron's classes say that they are new
            return SeededMimoModel(
                MimoModelConfig(
                    language_model_spec=language_spec,
                    modality_submodules_spec=_of_rank(self.modality_submodules_spec, groups),
                    special_token_ids=dict(self.special_token_ids),
                ),
                language_module_name=language,
                seed=self.seed,
                has_language_model=language in groups,
                decoder_specs=_of_rank(self.decoder_specs, groups),
            )

    def _freeze(self, model: SeededMimoModel, plan: LayoutPlan) -> None:
        for name, module in model.parts():
            execution = plan.executions[name]
            module.requires_grad_(not execution.is_frozen)
            if name in model.modality_submodules:
                module.encoders.requires_grad_("encoder" not in execution.frozen_parts)
                module.input_projections.requires_grad_("projector" not in execution.frozen_parts)

    def _set_shards(self, name: str, module: torch.nn.Module, place: ShardPlace) -> None:
        parameters = named_parameters(module)
        if name in self.own_modules or name not in self.cuts:
            set_own_shards(parameters, self.cuts.get(name, {}), place)
        else:
            set_shards(name, parameters, self.cuts[name], place)

    def _wrap(
        self,
        model: SeededMimoModel,
        plan: LayoutPlan,
        groups: Mapping[str, ProcessGroupCollection],
    ) -> None:
        for name, module in list(model.parts()):
            encodes = name in model.modality_submodules
            config = (next(iter(module.encoders.values())) if encodes else module).config
            wrapped = wrap_data_parallel(module, config, plan.executions[name], groups[name])
            if encodes:
                model.modality_submodules[name] = wrapped
            elif name in model.text_decoders:
                model.text_decoders[name] = wrapped
            else:
                model.language_model = wrapped


class SeededMimoModel(MimoModel):  # type: ignore[misc]
    """Megatron's `MimoModel` whose modules start from separate seeds, or the part of it on a rank.

    A module has the same weights whether or not other modules are built on the rank.

    Args:
        config: the specs of the modules on this rank; that of the language model is always there.

    Attributes:
        language_model: None on a rank that does not take part in it.
    """

    language_model: Any

    def __init__(
        self,
        config: MimoModelConfig,
        language_module_name: str,
        seed: int,
        has_language_model: bool = True,
        decoder_specs: Mapping[str, ModuleSpec] | None = None,
    ) -> None:
        self._seed = seed
        self.language_module_name = language_module_name
        self._has_language_model = has_language_model
        super().__init__(config)
        self.text_decoders = torch.nn.ModuleDict()
        for name, spec in (decoder_specs or {}).items():
            torch.manual_seed(module_seed(seed, name))
            self.text_decoders[name] = spec.module(**spec.params)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules on this rank with their names."""
        yield from self.modality_submodules.items()
        if self.language_model is not None:
            yield self.language_module_name, self.language_model
        yield from self.text_decoders.items()

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
        if not self._has_language_model:
            self.language_model = None
            return
        torch.manual_seed(module_seed(self._seed, self.language_module_name))
        super()._initialize_language_model()


def _of_rank(
    specs: Mapping[str, ModuleSpec], groups: Mapping[str, ProcessGroupCollection]
) -> dict[str, ModuleSpec]:
    return {
        name: inject_process_groups(spec, groups[name])
        for name, spec in specs.items()
        if name in groups
    }


def inject_process_groups(spec: ModuleSpec, groups: ProcessGroupCollection) -> ModuleSpec:
    """Return a copy of a spec for this rank: its process groups, and its stage of a pipeline.

    Parameters `pg_collection` and `tp_group` are filled. In a pipeline `pre_process`,
    `post_process` and `part` say which stage it is, and projections are on the last stage only.
    """
    first, last = groups.pp.rank() == 0, groups.pp.rank() == groups.pp.size() - 1
    filled: dict[str, Any] = {"pg_collection": groups, "tp_group": groups.tp}
    if groups.pp.size() > 1:
        filled |= {"pre_process": first, "post_process": last, "part": StagePart(first, last)}
    params = dict(spec.params or {})
    params |= {name: value for name, value in filled.items() if name in params}
    submodules = copy.copy(spec.submodules)
    if isinstance(submodules, dict):
        submodules = {key: _inject(value, groups) for key, value in submodules.items()}
        if not last and "input_projections" in submodules:
            submodules["input_projections"] = []
    return ModuleSpec(module=spec.module, params=params, submodules=submodules)


def _inject(value: Any, groups: ProcessGroupCollection) -> Any:
    if isinstance(value, ModuleSpec):
        return inject_process_groups(value, groups)
    if isinstance(value, dict):
        return {key: _inject(item, groups) for key, item in value.items()}
    if isinstance(value, list):
        return [_inject(item, groups) for item in value]
    return value
