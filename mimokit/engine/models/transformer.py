"""What a module is built from, Megatron's configuration of it, and the layer that modules share."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mimokit.architecture.layers_on_stage import stage_spans
from mimokit.architecture.tensor_cut import Span
from mimokit.axes import MEGATRON_FIELDS, Axis, Choice
from mimokit.config import ModelSection, ModuleArchitecture
from mimokit.config.runtime import FP8
from mimokit.config.sizes import (
    RECOMPUTE_FULL,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    ParallelSizes,
)
from mimokit.config.user_code import NO_CODE, OwnModule, UserCode
from mimokit.engine.activations import ACTIVATIONS
from mimokit.engine.inside_steps import tell_of_recomputation
from mimokit.engine.megatron import (
    AttnMaskType,
    ModuleSpec,
    ProcessGroupCollection,
    TransformerBlockSubmodules,
    TransformerConfig,
    TransformerLayer,
    get_gpt_layer_local_spec,
    get_transformer_layer_offset,
    multiply_in_fp8,
)
from mimokit.engine.models.dispatch import take_rows
from mimokit.engine.models.dropout import set_dropout
from mimokit.engine.models.experts import (
    expert_options,
    experts_spec,
    layer_with,
    tell_of_crossings,
)
from mimokit.engine.models.fusions import fused_options
from mimokit.engine.models.rng import module_seed, seed_weights
from mimokit.engine.models.self_attention import attention_config, attention_spec
from mimokit.engine.parallel.sequence import SliceNorm
from mimokit.planning.execution import Dtype, ModuleExecution
from mimokit.planning.types import LayoutPlan


def causal_mask(tokens: int, device: torch.device) -> torch.Tensor:
    """Return [1, 1, tokens, tokens], True where attention is forbidden."""
    return torch.ones(tokens, tokens, dtype=torch.bool, device=device).triu(1)[None, None]


@dataclass(frozen=True)
class StagePart:
    """The part of a module on a pipeline stage.

    Attributes:
        last: it includes the parts after the layers.
        chunk: of those on the rank that have several; None: it is the only one.
    """

    first: bool
    last: bool
    chunk: int | None = None


WHOLE = StagePart(first=True, last=True)


DTYPES: Mapping[Dtype, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

_AXES = (Axis.TENSOR, Axis.PIPELINE, Axis.CONTEXT)
_RECOMPUTED: Mapping[int, Mapping[str, Any]] = {
    RECOMPUTE_NONE: {},
    RECOMPUTE_SELECTIVE: {"recompute_granularity": "selective", "recompute_modules": ["core_attn"]},
    RECOMPUTE_FULL: {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
    },
}


def set_precision(
    module: torch.nn.Module, execution: ModuleExecution, groups: ProcessGroupCollection
) -> None:
    """Round the weights of a module as it is executed, and its products if these are in fp8."""
    if execution.weights != "fp32":
        module.to(DTYPES[execution.weights])
    if execution.precision == FP8:
        multiply_in_fp8(module, groups)


def transformer_config(
    architecture: ModuleArchitecture, execution: ModuleExecution
) -> TransformerConfig:
    """Return Megatron's configuration of one module.

    `use_cpu_initialization` draws every full weight and then cuts it, so that one seed gives one
    model at any tensor parallel size. `calculate_per_token_loss` makes Megatron's DDP sum
    gradients, which are divided by the global token count afterwards. Only under this rule is the
    result independent of the data parallel sizes.
    """
    chunks = execution.size(Axis.VIRTUAL_PIPELINE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about CUDA graph settings that are not used
        return attention_config(
            architecture,
            num_layers=architecture.num_layers,
            hidden_size=architecture.hidden_size,
            ffn_hidden_size=architecture.ffn,
            num_attention_heads=architecture.num_attention_heads,
            num_query_groups=architecture.kv_heads,
            kv_channels=architecture.head_dim,
            **{MEGATRON_FIELDS[axis]: execution.size(axis) for axis in _AXES},
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            sequence_parallel=bool(execution.sizes.sequence_parallel),
            mrope_section=rotary_sections(architecture),
            use_cpu_initialization=True,
            calculate_per_token_loss=True,
            bf16=execution.weights == "bf16",
            fp16=execution.weights == "fp16",
            params_dtype=DTYPES[execution.weights],
            pipeline_dtype=DTYPES[execution.weights],
            hidden_dropout=architecture.dropout,
            attention_dropout=architecture.score_dropout,
            **_RECOMPUTED[execution.size(Choice.RECOMPUTE)],
            **_layer_options(architecture) | fused_options(architecture, execution.weights),
            **expert_options(architecture, execution),
        )


def rotary_sections(architecture: ModuleArchitecture) -> list[int] | None:
    """Return what Megatron makes sections of frequencies of: their axes take turns.

    As in Qwen3-VL (`Qwen3VLTextRotaryEmbedding`) every third frequency may rotate with height
    and every third with width, until these have theirs; time has the others.
    """
    section = architecture.mrope_section
    if section is None or not architecture.mrope_interleaved:
        return section
    axes = [0] * sum(section)
    for axis in (1, 2):
        axes[axis : 3 * section[axis] : 3] = [axis] * section[axis]
    return [int(axis == turn) for axis in axes for turn in range(3)]


def _layer_options(architecture: ModuleArchitecture) -> dict[str, Any]:
    options: dict[str, Any] = {
        "normalization": architecture.norm,
        "layernorm_epsilon": architecture.epsilon,
        "gated_linear_unit": architecture.gated,
        "activation_func": ACTIVATIONS[architecture.activation],
        "add_bias_linear": architecture.ffn_bias,
        "add_qkv_bias": architecture.qkv_bias,
        "qk_layernorm": architecture.qk_norm,
        "init_method_std": architecture.matrix_std,
    }
    if architecture.init_method == "xavier":
        drawn = torch.nn.init.xavier_uniform_
        options |= {"init_method": drawn, "output_layer_init_method": drawn}
    return options


def layer_spec(build: ModuleBuild, mask_type: AttnMaskType) -> ModuleSpec:
    """Return Megatron's local layer as an architecture describes it.

    (`get_vit_layer_with_local_spec` of 0.16.1 is causal: a patch does not attend to later ones.)
    """
    architecture = build.architecture
    spec = copy.deepcopy(get_gpt_layer_local_spec(normalization=architecture.normalization))
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = SliceNorm
    spec.submodules.self_attention = attention_spec(
        spec.submodules.self_attention, architecture, build.execution, mask_type
    )
    spec = seeded(spec, build.seed)
    spec.params["further"] = architecture.next_token_layers
    if architecture.num_moe_experts is not None:
        spec.params["experts"] = experts_spec(architecture)
        spec.params["dense_layers"] = architecture.dense_layers
    return spec


def block_submodules(
    layer_spec: ModuleSpec,
    config: TransformerConfig,
    groups: ProcessGroupCollection,
    chunk: int | None = None,
) -> TransformerBlockSubmodules:
    """Return the layers of a stage and their final norm, for Megatron's `TransformerBlock`."""
    start, stop = _span_of_chunk(config, layer_spec.params["further"], groups.pp.rank(), chunk)
    specs = [layer_spec] * (stop - start)
    return TransformerBlockSubmodules(layer_specs=specs, layer_norm=SliceNorm)


def _span_of_chunk(config: TransformerConfig, further: int, stage: int, chunk: int | None) -> Span:
    """Return which layers of a module a chunk of a stage has; a module that is whole has all.

    Megatron's `account_for_loss_in_pipeline_split` does not count layers that predict further
    tokens.
    """
    stages = config.pipeline_model_parallel_size
    chunks = ParallelSizes(pipeline=stages * (config.virtual_pipeline_model_parallel_size or 1))
    spans = stage_spans(config.num_layers, chunks, further)
    return spans[(chunk or 0) * stages + stage % stages]


class SeededTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """Megatron's `TransformerLayer`, initialized from a separate seed.

    A layer then has the same initial weights and the same dropout on every pipeline stage.

    Args:
        initial_seed: seed of the module; the layer adds its index in the whole module.
        experts: what layers behind the first `dense_layers` have as their feed-forward layer.
        inner: the layers of an encoder, counted from 1, whose outputs the encoder returns together
            with that of the last layer (deepstack of Qwen3-VL).
        further: layers of the module that predict further tokens, next to the last of these.
    """

    def __init__(
        self,
        config: TransformerConfig,
        submodules: Any,
        *args: Any,
        initial_seed: int,
        experts: Any = None,
        dense_layers: int = 0,
        inner: Collection[int] = (),
        further: int = 0,
        **options: Any,
    ) -> None:
        stage, chunk = options["pg_collection"].pp.rank(), options.get("vp_stage")
        start, stop = _span_of_chunk(config, further, stage, chunk)
        number = start + options["layer_number"]
        options["layer_number"] = number - get_transformer_layer_offset(config, chunk, stage)
        if experts is not None and number > dense_layers:
            submodules = layer_with(submodules, experts)
        seed_weights(initial_seed + number)
        super().__init__(config, submodules, *args, **options)
        self._inner, self.number = inner, number
        self._ends_stage = number == stop
        set_dropout(self, initial_seed + number, options["pg_collection"])
        take_rows(self.mlp, options["pg_collection"])
        tell_of_crossings(self.mlp)
        if config.recompute_granularity is not None:
            whole = config.recompute_granularity == "full"
            tell_of_recomputation(self if whole else self.self_attention.core_attention)

    def forward(
        self, hidden_states: torch.Tensor, *args: Any, context: torch.Tensor | None = None,
        **options: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        """Run the layer; see Megatron's class.

        Args:
            context: outputs of inner layers side by side, [tokens, samples, layers * hidden], which
                Megatron hands from layer to layer, also where they are recomputed. An encoder's
                layers append to it, and the last of a stage to what it returns; each of the
                language model's adds the first part, and hands on the others.
        """
        output, _ = super().forward(hidden_states, *args, context=None, **options)
        if self._inner:
            if self.number in self._inner:
                parts = [output] if context is None else [context, output]
                # Of what the next layer takes, the gradient is that of the next layer alone.
                context, output = torch.cat(parts, dim=-1), output.clone()
            if self._ends_stage and context is not None:
                output = torch.cat([output, context], dim=-1)
        elif context is not None:
            width = output.shape[-1]
            output, context = output + context[..., :width], context[..., width:].contiguous()
        return output, context if context is not None and context.shape[-1] else None


def seeded(layer_spec: ModuleSpec, initial_seed: int) -> ModuleSpec:
    """Return the spec of the same layer with a seed."""
    return ModuleSpec(
        module=SeededTransformerLayer,
        params={**(layer_spec.params or {}), "initial_seed": initial_seed},
        submodules=layer_spec.submodules,
    )


@dataclass(frozen=True)
class ModuleBuild:
    """What a module is built from, on every rank of the world.

    Process groups, which ranks without the module do not have, are injected into the spec by
    `ModelProvider`.

    Attributes:
        joined: the network with which it exchanges rows, in whose width they are: of the module
            that an encoder feeds, the first of several, or of the language model.
        seed: of the module, see `SeededTransformerLayer`.
    """

    name: str
    execution: ModuleExecution
    architecture: ModuleArchitecture
    joined: ModuleArchitecture
    seed: int = 0
    builder: OwnModule | None = None
    others: tuple[ModuleArchitecture, ...] = ()

    @property
    def config(self) -> TransformerConfig:
        """A new configuration of Megatron for the layers of the module."""
        return transformer_config(self.architecture, self.execution)


def module_builds(
    config: ModelSection, plan: LayoutPlan, seed: int, code: UserCode = NO_CODE
) -> Mapping[str, ModuleBuild]:
    """Return module -> what it is built from, in the order of the plan."""
    language = config.get_architecture(plan.llm_module_name)
    builds = {}
    for name, execution in plan.executions.items():
        network = config.get_architecture(name)
        builder = code.builder_of(name, network)
        if builder is not None:  # in homogeneous mode it is executed as the language model
            execution = execution.resized(sequence_parallel=False)
        initial = module_seed(seed, name)
        joined, others = language, list[ModuleArchitecture]()
        if name in config.encoder_module_names:
            joined, *others = map(config.get_architecture, config.receivers_of(name))
        builds[name] = ModuleBuild(
            name, execution, network, joined, initial, builder, tuple(others)
        )
    return builds
