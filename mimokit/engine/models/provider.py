"""Builds the modules of a rank from specs and a plan."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.architecture.tensor_cut import ShardPlace, TensorCut
from mimokit.axes import Axis
from mimokit.config import ModelSection
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import (
    HyperCommGrid,
    MimoModel,
    MimoModelConfig,
    ModalitySubmodules,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerBlock,
    TransformerConfig,
    build_module,
    ensure_memory_buffer,
)
from mimokit.engine.models.chunks import ModuleChunks, built, chunks_of
from mimokit.engine.models.rng import module_seed, seed_modules, seed_weights
from mimokit.engine.models.transformer import DTYPES, StagePart, set_precision
from mimokit.engine.models.weights import load_weights, named_parameters
from mimokit.engine.parallel.data_parallel import wrap_data_parallel
from mimokit.engine.parallel.grids import create_grids, participating
from mimokit.engine.parallel.marks import set_own_shards, set_shards
from mimokit.planning.execution import Dtype, ModuleExecution
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted


@dataclass(frozen=True)
class MimoModelProviderResult:
    """The modules of a rank, and its groups.

    Attributes:
        model: the modules that this rank takes part in, each cut to its pipeline stage; None on a
            rank that takes part in no module.
        config: the layout, with the networks of all modules.
    """

    model: SeededMimoModel | None
    module_to_grid_map: dict[str, HyperCommGrid]
    topology: dict[str, list[str]]
    pg_collections: dict[str, ProcessGroupCollection]
    config: ModelSection
    plan: LayoutPlan


@dataclass
class ModelProvider:
    """Builds the modules of a planned model on the ranks that take part in them.

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
    mimo_parallelism_config: ModelSection
    seed: int = 1234
    decoder_specs: Mapping[str, ModuleSpec] = field(default_factory=dict)
    cuts: Mapping[str, Mapping[str, TensorCut]] = field(default_factory=dict)
    own_modules: Collection[str] = ()

    def described(self) -> ModelSection:
        """Return the layout with the networks of all modules."""
        return self.mimo_parallelism_config

    def provide(self, plan: LayoutPlan, wrap: bool = True) -> MimoModelProviderResult:
        """Create grids and groups, inject them, build the modules and wrap them. Collective.

        Raises:
            ValueError: if a spec is for a module that the layout does not have, the world has
                another size, or Megatron cuts a parameter differently from `cuts`.
        """
        config = self.described()
        self._check(plan)
        ensure_memory_buffer()
        grids, groups = create_grids(plan)
        names = participating(grids)
        seed_modules(self.seed, {name: groups[name].tp.rank() for name in names})
        model = self._build(plan, groups) if names else None
        if model is not None:
            model.to(rank_device())
            for name, module in model.parts():
                # Drawn in fp32 and rounded: one seed is one model in every precision.
                set_precision(module, plan.executions[name], groups[name])
            self._freeze(model, plan)
            networks = config.module_architectures
            for name, module in model.parts():
                place = plan.modules[name].shard_place(dist.get_rank())
                self._set_shards(name, module, place)
                if name in networks:
                    language = name == plan.llm_module_name
                    load_weights(module, networks[name], language, groups[name], place)
            if wrap:
                self._wrap(model, plan, groups)
        topology = {name: list(targets) for name, targets in plan.topology.items()}
        return MimoModelProviderResult(model, grids, topology, groups, config, plan)

    def _check(self, plan: LayoutPlan) -> None:
        for name in (*self.modality_submodules_spec, *self.decoder_specs):
            if name not in plan.modules:
                known = ", ".join(plan.modules)
                raise ValueError(f"There is a spec for {name!r}, but the layout has only {known}.")
        if dist.get_world_size() != plan.world_size:
            raise ValueError(
                f"The plan is for {counted(plan.world_size, 'rank')} but the world has "
                f"{dist.get_world_size()}; form a world of {counted(plan.world_size, 'rank')}."
            )

    def _build(
        self, plan: LayoutPlan, groups: Mapping[str, ProcessGroupCollection]
    ) -> SeededMimoModel:
        language = self.mimo_parallelism_config.llm_module_name
        language_spec = self.language_model_spec
        if language in groups:
            execution = plan.executions[language]
            language_spec = _spec_of_rank(language_spec, groups[language], execution)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Megatron's classes say that they are new
            return SeededMimoModel(
                MimoModelConfig(
                    language_model_spec=language_spec,
                    modality_submodules_spec=_of_rank(self.modality_submodules_spec, plan, groups),
                    special_token_ids=dict(self.special_token_ids),
                ),
                language_module_name=language,
                seed=self.seed,
                has_language_model=language in groups,
                decoder_specs=_of_rank(self.decoder_specs, plan, groups),
            )

    def _freeze(self, model: SeededMimoModel, plan: LayoutPlan) -> None:
        for name, module in model.parts():
            execution = plan.executions[name]
            frozen = [module] if execution.is_frozen else []
            if name in model.modality_submodules:
                names = {"encoder": "encoders", "projector": "input_projections"}
                frozen += [
                    getattr(chunk, names[part])
                    for chunk in chunks_of(module)
                    for part in execution.frozen_parts
                ]
            for part in frozen:
                part.requires_grad_(False)

    def _set_shards(self, name: str, module: torch.nn.Module, place: ShardPlace) -> None:
        parameters = named_parameters(module)
        if name in self.own_modules or name not in self.cuts:
            set_own_shards(parameters, self.cuts.get(name, {}), place)
        else:
            set_shards(name, parameters, self.cuts[name], place)

    def _wrap(
        self, model: SeededMimoModel, plan: LayoutPlan, groups: Mapping[str, ProcessGroupCollection]
    ) -> None:
        for name, module in list(model.parts()):
            encoders = [
                encoder
                for chunk in chunks_of(module)
                if isinstance(chunk, ModalitySubmodules)
                for encoder in chunk.encoders.values()
            ]
            config = (encoders[0] if encoders else module).config
            wrapped = wrap_data_parallel(module, config, plan.executions[name], groups[name])
            if encoders and (wrapped.shares_layers or config.num_moe_experts is not None):
                for encoder in encoders:
                    encoder.shares_items = encoder.shares_layers = True
            if name in model.modality_submodules:
                model.modality_submodules[name] = wrapped
            elif name in model.decoders:
                model.decoders[name] = wrapped
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
        self._language_model_spec = config.language_model_spec
        super().__init__(replace(config, language_model_spec=_of_whole_sequences(config)))
        self.decoders = torch.nn.ModuleDict()
        for name, spec in (decoder_specs or {}).items():
            seed_weights(module_seed(seed, name))
            self.decoders[name] = built(spec)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the modules on this rank with their names."""
        yield from self.modality_submodules.items()
        if self.language_model is not None:
            yield self.language_module_name, self.language_model
        yield from self.decoders.items()

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
            seed_weights(module_seed(self._seed, name))
            self.modality_submodules[name] = built(spec)

    def _initialize_language_model(self) -> None:
        if not self._has_language_model:
            self.language_model = None
            return
        seed_weights(module_seed(self._seed, self.language_module_name))
        self.language_model = build_module(self._language_model_spec)


class NoModules(SeededMimoModel):
    """What is on a rank that takes part in no module."""

    def __init__(self, language_module_name: str) -> None:
        torch.nn.Module.__init__(self)
        self.language_module_name = language_module_name
        self.modality_submodules = torch.nn.ModuleDict()
        self.decoders = torch.nn.ModuleDict()
        self.language_model = None
        self.special_token_ids: dict[str, int] = {}


def _of_whole_sequences(config: MimoModelConfig) -> ModuleSpec:
    """Return the spec of the language model as if no rank had a part of a sequence.

    From 0.19 on Megatron's `MimoModel` would look for the global groups to cut sequences itself.
    """
    spec = config.language_model_spec
    layers = copy.copy(spec.params["config"])
    layers.sequence_parallel, layers.context_parallel_size = False, 1
    return ModuleSpec(
        module=spec.module, params={**spec.params, "config": layers}, submodules=spec.submodules
    )


def _of_rank(
    specs: Mapping[str, ModuleSpec], plan: LayoutPlan, groups: Mapping[str, ProcessGroupCollection]
) -> dict[str, ModuleSpec]:
    return {
        name: _spec_of_rank(spec, groups[name], plan.executions[name])
        for name, spec in specs.items()
        if name in groups
    }


def _spec_of_rank(
    spec: ModuleSpec, groups: ProcessGroupCollection, execution: ModuleExecution
) -> ModuleSpec:
    chunks, weights = execution.size(Axis.VIRTUAL_PIPELINE), execution.weights
    if chunks == 1:
        return inject_process_groups(spec, groups, weights)
    specs = [inject_process_groups(spec, groups, weights, chunk, chunks) for chunk in range(chunks)]
    params = {"config": (specs[0].params or {}).get("config"), "specs": specs}
    return ModuleSpec(module=ModuleChunks, params=params)


def inject_process_groups(
    spec: ModuleSpec,
    groups: ProcessGroupCollection,
    weights: Dtype = "fp32",
    chunk: int = 0,
    chunks: int = 1,
) -> ModuleSpec:
    """Return a copy of a spec for this rank: its process groups, and its stage of a pipeline.

    Parameters `pg_collection` and `tp_group` are filled, and its layers are configured as they are
    executed: how many ranks share them, and of which type their `weights` are. In a pipeline
    `pre_process`, `post_process` and `part` say which stage it is, and projections are on the last
    stage only.

    Args:
        chunk: of this rank's stages of an interleaved pipeline, of which it has `chunks`.
    """
    first = groups.pp.rank() == 0 and chunk == 0
    last = groups.pp.rank() == groups.pp.size() - 1 and chunk == chunks - 1
    filled: dict[str, Any] = {"pg_collection": groups, "tp_group": groups.tp}
    if groups.pp.size() > 1:
        part = StagePart(first, last, chunk if chunks > 1 else None)
        filled |= {"pre_process": first, "post_process": last, "part": part}
        filled["vp_stage"] = part.chunk
    params = dict(spec.params or {})
    params |= {name: value for name, value in filled.items() if name in params}
    layers = params.get("config")
    if isinstance(layers, TransformerConfig):
        params["config"] = _as_executed(layers, groups.tp.size(), weights)
    submodules = copy.copy(spec.submodules)
    if isinstance(submodules, dict):
        how = groups, weights, chunk, chunks
        submodules = {key: _inject(value, *how) for key, value in submodules.items()}
        if not last and "input_projections" in submodules:
            submodules["input_projections"] = []
    module = SampleOrderBlock if spec.module is TransformerBlock else spec.module
    return ModuleSpec(module=module, params=params, submodules=submodules)


def _as_executed(config: TransformerConfig, size: int, weights: Dtype) -> TransformerConfig:
    """Return a configuration for as many tensor-parallel ranks and weights of a type.

    One spec serves all layouts. In an fp32 run one of the user's may have a type of its own.
    """
    changed = copy.copy(config)
    changed.tensor_model_parallel_size = size
    if weights != "fp32":
        changed.bf16, changed.fp16 = weights == "bf16", weights == "fp16"
        changed.params_dtype = changed.pipeline_dtype = DTYPES[weights]
    return changed


class SampleOrderBlock(TransformerBlock):  # type: ignore[misc]
    """Megatron's `TransformerBlock` as an encoder, whose rows `MimoModel` takes sample by sample.

    Megatron's own returns them token by token, [tokens, samples, hidden], which would give the rows
    of one sample to others.
    """

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None, **given: Any
    ) -> torch.Tensor:
        """Return [samples, tokens, hidden] of hidden states [tokens, samples, hidden]."""
        output: torch.Tensor = super().forward(hidden_states, attention_mask, **given)
        return output.transpose(0, 1)


def _inject(
    value: Any, groups: ProcessGroupCollection, weights: Dtype, chunk: int, chunks: int
) -> Any:
    how = groups, weights, chunk, chunks
    if isinstance(value, ModuleSpec):
        return inject_process_groups(value, *how)
    if isinstance(value, dict):
        return {key: _inject(item, *how) for key, item in value.items()}
    if isinstance(value, list):
        return [_inject(item, *how) for item in value]
    return value
