"""Reduces, scales and clips the gradients of micro-batches before the optimizer steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.marks import is_cut, is_tied_copy
from mimokit.engine.part_times import StepPart

ModuleToGridTuple = tuple[tuple[ModuleDataParallel, HyperCommGrid], ...]


class ModulesOnRank(Protocol):
    """The modules that a rank holds; see `SeededMimoModel` and `MimoModelOnRank`."""

    @property
    def modality_submodules(self) -> Any:
        """Encoder -> module."""

    @property
    def language_model(self) -> Any:
        """None on a rank without a part of it."""

    @property
    def language_module_name(self) -> str:
        """Its name in the layout."""

    @property
    def text_decoders(self) -> Any:
        """Module behind the language model -> module."""


def get_module_to_grid_tuple(
    mimo_model: ModulesOnRank, module_to_grid_map: Mapping[str, HyperCommGrid]
) -> ModuleToGridTuple:
    """Pair every module on this rank with its grid: encoders, language model, text decoders."""
    pairs = [
        (module, module_to_grid_map[name])
        for name, module in mimo_model.modality_submodules.items()
        if module is not None
    ]
    if mimo_model.language_model is not None:
        grid = module_to_grid_map[mimo_model.language_module_name]
        pairs.append((mimo_model.language_model, grid))
    pairs += [
        (module, module_to_grid_map[name]) for name, module in mimo_model.text_decoders.items()
    ]
    return tuple(pairs)


@contextlib.contextmanager
def multimodule_no_sync(
    modules: ModuleToGridTuple, iteration: int = 0, num_microbatches: int = 1
) -> Iterator[None]:
    """Accumulate gradients of all modules without reducing them.

    The schedules enter it for every micro-batch except the last. Around an optimizer step, where
    the source documents have it, it changes nothing.

    Args:
        modules: all modules on this rank.
        iteration: accepted because the documents pass it; not used.
        num_microbatches: accepted because the documents pass it; not used.
    """
    with contextlib.ExitStack() as stack:
        for module, _ in modules:
            stack.enter_context(module.no_sync())
        yield


def finalize_model_grads(
    modules: ModuleToGridTuple, iteration: int = 0, num_microbatches: int = 1
) -> int:
    """Sum gradients over data parallel ranks and divide by the global token count. Collective.

    Tied embeddings on two pipeline stages are added as well. A frozen module has no gradients and
    takes part in nothing. Dividing by the count over all ranks makes the step the gradient of the
    mean loss per token, whatever the data parallel sizes of the modules are. After the last
    micro-batch, before the optimizer step.

    Args:
        modules: all modules on this rank; `ModuleDataParallel.num_tokens` says what to divide by.
        iteration: accepted because the documents pass it; not used.
        num_microbatches: accepted because the documents pass it; not used.

    Returns:
        The global token count; gradients stay unscaled where it is zero.
    """
    # The tensor-parallel ranks of a replica see the same tokens; the first of them counts.
    own = sum(module.num_tokens for module, grid in modules if grid.get_pg("tp").rank() == 0)
    count = torch.tensor([own], dtype=torch.int64, device=rank_device())
    dist.all_reduce(count)
    total = int(count.item())
    for module, _ in modules:
        with module.times.part(StepPart.REDUCTION):
            module.finish_grad_sync()
            module.sync_tied_embeddings()
        module.scale_gradients(1.0 / max(total, 1))
    return total


def zero_grad_buffer_for_multimodule(modules: ModuleToGridTuple) -> None:
    """Set the gradient buffers of all modules to zero."""
    for module, _ in modules:
        module.zero_grad_buffer()


def trainable_parameters(modules: ModuleToGridTuple) -> list[torch.nn.Parameter]:
    """Return the parameters of all modules that are trained."""
    return [p for module, _ in modules for p in module.parameters() if p.requires_grad]


def squared_norm_share(module: ModuleDataParallel, grid: HyperCommGrid) -> torch.Tensor:
    """Return this rank's share of the squared norm of a module's gradient.

    In the sum over all ranks every entry counts once: on the first replica, for replicated
    parameters on its first tensor-parallel rank, for a tied embedding on its first pipeline stage.
    """
    total = torch.zeros(1, dtype=torch.float32, device=rank_device())
    if grid.get_pg("dp").rank() > 0:
        return total
    for parameter in module.parameters():
        first = is_cut(parameter) or grid.get_pg("tp").rank() == 0
        mine = first and not is_tied_copy(parameter)
        if parameter.requires_grad and mine:
            total += parameter.main_grad.float().pow(2).sum()
    return total


def global_gradient_norm(modules: ModuleToGridTuple) -> float:
    """Return the norm over the gradients of all modules together. Collective over the world.

    The squared norms of the modules are added: norms 3 and 4 give 5.
    """
    total = torch.zeros(1, dtype=torch.float32, device=rank_device())
    for module, grid in modules:
        total += squared_norm_share(module, grid)
    dist.all_reduce(total)
    return float(total.sqrt().item())


def clip_gradients(modules: ModuleToGridTuple, norm: float, maximum: float) -> None:
    """Scale all gradients by maximum / (norm + 1e-6) where the norm exceeds the maximum.

    The constant is Megatron's (`megatron.core.optimizer.clip_grads`). A maximum of 0 clips nothing.
    """
    if maximum <= 0:
        return
    scale = maximum / (norm + 1e-6)
    if scale < 1.0:
        for module, _ in modules:
            with module.times.part(StepPart.UPDATE):
                module.scale_gradients(scale)
