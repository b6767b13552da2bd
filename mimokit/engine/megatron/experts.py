"""What Megatron-Core's mixtures of experts need without Transformer Engine and without CUDA."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import mappings
from megatron.core.transformer.moe import moe_utils, token_dispatcher
from megatron.core.transformer.spec_utils import ModuleSpec


def submodules_of(spec: Any) -> Any:
    """Return the submodules of a part of a layer's spec.

    Until 0.16 such a part is a `ModuleSpec`, from 0.19 on a partial of its class.
    """
    return spec.submodules if isinstance(spec, ModuleSpec) else spec.keywords["submodules"]


def of_class(spec: Any, module: type) -> Any:
    """Return the spec of another class with the same submodules."""
    if isinstance(spec, ModuleSpec):
        return ModuleSpec(module=module, submodules=spec.submodules)
    return partial(module, **spec.keywords)


def without_transformer_engine() -> None:
    """Give the router a name that it asks for, and that is undefined without that package."""
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def on_cpu(idle_stream: object) -> None:
    """Replace what counts tokens of experts on a CUDA device, or sends them with nccl alone."""
    token_dispatcher.MoEAlltoAllTokenDispatcher.cuda_dtoh_stream = idle_stream
    token_dispatcher.maybe_move_tensor_to_cpu = _numbers
    # Ranks of one expert get different numbers of tokens, which gloo does not gather or scatter.
    mappings._gather_along_first_dim = partial(_gather, mappings._gather_along_first_dim)
    mappings._reduce_scatter_along_first_dim = partial(
        _reduce_scatter, mappings._reduce_scatter_along_first_dim
    )


def _numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    """Return a tensor on the CPU, as numbers if an all-to-all asks for them.

    Megatron's own moves those of CUDA alone, not those of a stand-in.
    """
    if not torch.is_tensor(tensor):
        return tensor
    return tensor.cpu().numpy() if as_numpy else tensor.cpu()


def _gather(
    of_equal: Any,
    tensor: torch.Tensor,
    group: dist.ProcessGroup,
    sizes: list[int] | None = None,
    use_global_buffer: bool = False,
) -> torch.Tensor:
    """Gather rows of ranks, of which each may have another number: padded to the most."""
    if sizes is None or group.size() == 1:
        return of_equal(tensor, group, None, use_global_buffer)  # type: ignore[no-any-return]
    most = max(sizes)
    if not most:
        return tensor  # no token has chosen these experts
    padded = tensor.new_zeros((most, *tensor.shape[1:]))
    padded[: len(tensor)] = tensor
    parts = of_equal(padded, group).split(most)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def _reduce_scatter(
    of_equal: Any,
    tensor: torch.Tensor,
    group: dist.ProcessGroup,
    sizes: list[int] | None = None,
    use_global_buffer: bool = False,
) -> torch.Tensor:
    """Sum rows over ranks, of which each gets another number: padded to the most."""
    if sizes is None or group.size() == 1:
        return of_equal(tensor, group, None, use_global_buffer)  # type: ignore[no-any-return]
    most = max(sizes)
    if not most:
        return tensor
    padded = tensor.new_zeros((len(sizes), most, *tensor.shape[1:]))
    for block, part in zip(padded, torch.split(tensor, list(sizes)), strict=True):
        block[: len(part)] = part
    summed: torch.Tensor = of_equal(padded.flatten(0, 1), group)
    return summed[: sizes[group.rank()]]
