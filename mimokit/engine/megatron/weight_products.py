"""Gradients of the weights of Megatron's linear layers, computed later than those of their inputs.

A backward pass of a linear layer is two products: the gradient of its input, for which the stage
before waits, and that of its weight, for which no other rank does. An order such as ZB-H1 (Qi et
al. 2023, arXiv 2401.10241) computes them apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel import layers

_LINEAR = "linear_with_grad_accumulation_and_async_allreduce"
"""The function of Megatron by which layers with a trained weight compute."""


@dataclass
class _Product:
    """What the gradient of a weight is computed from.

    Attributes:
        given: the input of the layer; with sequence parallelism the slice of this rank.
        group: whose slices are one sequence, with sequence parallelism.
        gradients: of the output, one after its backward pass.
    """

    weight: torch.nn.Parameter
    given: torch.Tensor
    group: dist.ProcessGroup | None
    gradients: list[torch.Tensor] = field(default_factory=list)

    def add(self) -> None:
        """Add it to the gradient buffer. Collective over the ranks that have the slices."""
        for gradient in self.gradients:
            given = self.given
            if self.group is not None:
                given = layers.gather_from_sequence_parallel_region(
                    given, tensor_parallel_output_grad=False, group=self.group
                )
            product = gradient.flatten(0, -2).t() @ given.flatten(0, -2)
            buffer: torch.Tensor = self.weight.main_grad  # type: ignore[attr-defined]
            buffer.add_(product)


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
        original = getattr(layers, _LINEAR)
        linear = partial(self._linear, original)
        linear.warned = original.warned  # type: ignore[attr-defined]
        setattr(layers, _LINEAR, linear)
        try:
            yield
        finally:
            setattr(layers, _LINEAR, original)

    def add(self) -> None:
        """Compute all gradients, and add them to the gradient buffers."""
        with torch.no_grad():
            while self._products:
                self._products.pop().add()

    def _linear(
        self, original: Callable[..., torch.Tensor], input: torch.Tensor, weight: Any, **how: Any
    ) -> torch.Tensor:
        """Return what Megatron's function does."""
        if not (torch.is_grad_enabled() and input.requires_grad and hasattr(weight, "main_grad")):
            return original(input=input, weight=weight, **how)
        in_slices, group = how["sequence_parallel"], how["tp_group"]
        output: torch.Tensor = layers.linear_with_frozen_weight(
            input, weight.detach(), None, False, how["allreduce_dgrad"], in_slices, group
        )
        product = _Product(weight, input.detach(), group if in_slices else None)
        self._products.append(product)
        output.register_hook(product.gradients.append)  # type: ignore[no-untyped-call]
        return output if how["bias"] is None else output + how["bias"]
