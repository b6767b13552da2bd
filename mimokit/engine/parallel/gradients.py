"""Sums and scales the gradients of micro-batches: the functions that a user's own loop calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist

from mimokit.engine.device import rank_device
from mimokit.engine.megatron import HyperCommGrid
from mimokit.engine.parallel.data_parallel import ModuleDataParallel
from mimokit.engine.parallel.loss import one_over
from mimokit.engine.part_times import StepPart
from mimokit.engine.steps import Step, loop_watcher
from mimokit.step_kinds import StepKind

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
) -> float:
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
    watcher = loop_watcher()
    if watcher is not None:
        watcher.observe(Step(StepKind.GRAD_SYNC))
    on_rank = sum(module.num_tokens for module, _ in modules if module.ownership.counts_tokens())
    count = torch.tensor([on_rank], dtype=torch.float64, device=rank_device())
    dist.all_reduce(count)
    total: float = count.item()  # waits for the device: the scale is a number of Python
    for module, _ in modules:
        with module.times.part(StepPart.REDUCTION):
            module.finish_grad_sync()
            module.sync_tied_embeddings()
        module.scale_gradients(one_over(total))
        module.gradient_order.reduced()
    if watcher is not None:
        watcher.pause()
    return total


def zero_grad_buffer_for_multimodule(modules: ModuleToGridTuple) -> None:
    """Set the gradient buffers of all modules to zero."""
    for module, _ in modules:
        module.zero_grad_buffer()
