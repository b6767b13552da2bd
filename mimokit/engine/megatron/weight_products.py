"""Gradients of the weights of Megatron's linear layers, computed later than those of their inputs.

A backward pass of a linear layer is two products: the gradient of its input, for which the stage
before waits, and that of its weight, for which no other rank does. An order such as ZB-H1 (Qi et
al. 2023, arXiv 2401.10241) computes them apart.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import layers

_LINEAR = "linear_with_grad_accumulation_and_async_allreduce"
"""The function of Megatron by which layers with a trained weight compute."""


Later: TypeAlias = Callable[[Callable[[], torch.Tensor]], None]
"""Takes what computes the gradient of a weight."""


@dataclass(frozen=True)
class _Product:
    """The gradient of a weight that is not computed yet.

    Attributes:
        compute: it. With sequence parallelism collective over the ranks that have slices.
    """

    weight: torch.nn.Parameter
    compute: Callable[[], torch.Tensor]

    def add(self) -> None:
        """Add it to the gradient buffer. Collective as `compute` is."""
        buffer: torch.Tensor = self.weight.main_grad  # type: ignore[attr-defined]
        buffer.add_(self.compute())


class WeightProducts:
    """The products that the forward and backward passes of a micro-batch have put off.

    Layers whose input needs no gradient, and weights that are sharded and gathered for each layer,
    have nothing to put off: their backward pass stays whole.
    """

    def __init__(self) -> None:
        self._products: list[_Product] = []

    @contextlib.contextmanager
    def put_off(self) -> Iterator[None]:
        """Put products off in a block; a backward pass in it may compute layers again."""
        global _collecting
        original, before = getattr(layers, _LINEAR), _collecting
        linear = partial(self._linear, original)
        linear.warned = original.warned  # type: ignore[attr-defined]
        setattr(layers, _LINEAR, linear)
        _collecting = self
        try:
            yield
        finally:
            setattr(layers, _LINEAR, original)
            _collecting = before

    def add(self) -> None:
        """Compute all gradients, and add them to the gradient buffers."""
        with torch.no_grad():
            while self._products:
                self._products.pop().add()

    def take(self, weight: torch.nn.Parameter, compute: Callable[[], torch.Tensor]) -> None:
        """Put the gradient of a weight off."""
        self._products.append(_Product(weight, compute))

    def _linear(
        self, original: Callable[..., torch.Tensor], input: torch.Tensor, weight: Any, **how: Any
    ) -> torch.Tensor:
        later = later_of(input, weight)
        if later is None:
            return original(input=input, weight=weight, **how)
        in_slices, group = how["sequence_parallel"], how["tp_group"]
        output: torch.Tensor = layers.linear_with_frozen_weight(
            input, weight.detach(), None, False, how["allreduce_dgrad"], in_slices, group
        )
        gradient_of = partial(_product, input.detach(), group if in_slices else None)
        output.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: later(partial(gradient_of, gradient))
        )
        return output if how["bias"] is None else output + how["bias"]


_collecting: WeightProducts | None = None
"""What takes the products of layers that compute now; None: they are not put off."""


def later_of(given: torch.Tensor, weight: Any) -> Later | None:
    """Return what takes the gradient of a weight, if it is computed after the backward pass."""
    if _collecting is None or not (torch.is_grad_enabled() and given.requires_grad):
        return None
    is_trained = weight.requires_grad and hasattr(weight, "main_grad")
    return partial(_collecting.take, weight) if is_trained else None


def _product(
    given: torch.Tensor, group: dist.ProcessGroup | None, gradient: torch.Tensor
) -> torch.Tensor:
    """Return the gradient of a weight.

    Args:
        given: the input of the layer; with sequence parallelism the slice of this rank.
    """
    if group is not None:
        given = layers.gather_from_sequence_parallel_region(
            given, tensor_parallel_output_grad=False, group=group
        )
    return gradient.flatten(0, -2).t() @ given.flatten(0, -2)
