"""How a training stack runs a model: facts that decide its speed, and that no layout states."""

from typing import Annotated, Literal

from pydantic import Field

from mimokit.config.base import ConfigModel, NotNegative

Graphs = Literal["none", "part", "part+attention", "full"]
Dispatcher = Literal["alltoall", "deepep", "hybridep"]
RecomputedModule = Literal[
    "core_attn", "mla_up_proj", "mlp", "moe_act", "layernorm", "shared_experts", "moe"
]


class RecipeConfig(ConfigModel):
    """What predictions suppose of the training stack. Runs ignore it.

    What is left out is unknown: predictions take the default of the GPU, and a wider band.
    """

    graphs: Graphs | None = None
    """What CUDA graphs capture. part: router and preprocessing of experts; full: whole layers."""

    dispatcher: Dispatcher | None = None
    """What sends tokens to experts: NCCL's all-to-all, DeepEP or HybridEP."""

    dispatch_overlap: bool | None = None
    """Dispatch runs beside a layer of another micro-batch."""

    fused_experts: bool | None = None
    """One kernel has the products of all experts of a rank."""

    attention_8bit: bool | None = None
    """The attention core multiplies in 8 bits."""

    drops_tokens: bool | None = None
    """Experts drop tokens above their capacity and pad below it, so that all shapes are known."""

    recompute_modules: Annotated[list[RecomputedModule], Field(max_length=7)] | None = None
    """Parts of a layer that the backward pass computes again, by Megatron's names."""

    recompute_layers: NotNegative | None = None
    """Layers of each stage that are recomputed whole."""
