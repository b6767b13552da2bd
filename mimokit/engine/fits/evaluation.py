"""Losses on validation samples: of node 0's weights, and of the mean of all nodes' weights."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from mimokit.engine.fits.data import ValidationData, on_device
from mimokit.engine.fits.forward import scalar_loss
from mimokit.engine.fits.records import Drift, Validation
from mimokit.engine.strategies import communicate
from mimokit.engine.strategies.buckets import Bucket, trainable
from mimokit.engine.strategies.metrics import collecting, means


class Evaluator:
    """Evaluates on node 0, in a copy of the model, so that no weight that trains changes.

    Floating-point buffers, such as the statistics of BatchNorm, are averaged like weights; of all
    others those of node 0 are taken.
    """

    def __init__(
        self,
        model: nn.Module,
        data: ValidationData,
        rank: int,
        nodes: int,
        minibatch_size: int,
        autocast: bool = False,
    ) -> None:
        """Take the model that trains, and the samples."""
        self._model, self._data, self._minibatch_size = model, data, minibatch_size
        self._rank, self._nodes, self._autocast = rank, nodes, autocast
        self._copy = copy.deepcopy(model) if rank == 0 and nodes > 1 else None
        self._bucket = Bucket(averaged(model))
        self._averaged_at = -1

    def evaluate(self, step: int) -> Validation | None:
        """Return, on node 0, the losses after `step` completed steps. Collective."""
        self._average(step)
        if self._rank != 0:
            return None
        values = self._losses(self._model, "local")
        if self._copy is not None:
            values |= self._losses(self._copy, "global")
        return Validation(step, values)

    def mean_state(self, step: int) -> dict[str, Tensor] | None:
        """Return, on node 0, the state of the model with the mean of all nodes. Collective."""
        self._average(step)
        if self._rank != 0:
            return None
        model = self._model if self._copy is None else self._copy
        state = model.state_dict()
        return {name: one.detach().cpu() for name, one in state.items()}

    def _average(self, step: int) -> None:
        if self._nodes < 2 or self._averaged_at == step:
            return
        self._averaged_at = step
        tensors = averaged(self._model)
        self._bucket.fill(tensors)
        with communicate.ledger.counting("evaluation"):
            communicate.all_reduce(self._bucket.flat)
        if self._copy is not None:
            self._bucket.flat.div_(self._nodes)
            self._bucket.write(averaged(self._copy))
            for there, one in zip(self._copy.buffers(), self._model.buffers(), strict=True):
                if not one.is_floating_point():
                    there.copy_(one)

    @torch.no_grad()
    def _losses(self, model: nn.Module, name: str) -> dict[str, float]:
        total, samples = 0.0, 0
        device = next((one.device for one in model.parameters()), torch.device("cpu"))
        with evaluating(model), collecting() as found:
            for batch, count in self._data.micros(self._minibatch_size):
                with torch.autocast(device.type, torch.bfloat16, enabled=self._autocast):
                    loss = scalar_loss(model(on_device(batch, device)), self._rank)
                total, samples = total + count * float(loss), samples + count
        return {
            f"{name}_{metric}": value
            for metric, value in {"loss": total / samples, **means(found)}.items()
        }


def averaged(model: nn.Module) -> list[Tensor]:
    """Return what the mean of nodes is taken of: what trains, and floating-point buffers."""
    buffers = [one for one in model.buffers() if one.is_floating_point()]
    return [*trainable(model).values(), *buffers]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and keep random draws apart from those of the training."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training


BLOCK = 1 << 20
"""Entries that travel at once."""


def measure_drift(tensors: Sequence[Tensor], nodes: int, step: int) -> Drift:
    """Return correlation and distance of the weights of all nodes. Collective.

    Weights travel in blocks; what stays of a block are the dot products of each pair of nodes.

    Args:
        nodes: how many nodes there are, at least 2.
        step: optimizer steps completed.
    """
    device = tensors[0].device
    flat = torch.cat([one.detach().reshape(-1).float() for one in tensors])
    sums = torch.zeros(nodes, dtype=torch.float64, device=device)
    products = torch.zeros(nodes, nodes, dtype=torch.float64, device=device)
    apart = torch.zeros_like(products)
    for block in torch.split(flat, BLOCK):
        found = [torch.empty_like(block) for _ in range(nodes)]
        with communicate.ledger.counting("evaluation"):
            communicate.all_gather(found, block)
        rows = torch.stack(found).double()
        sums += rows.sum(1)
        products += rows @ rows.T
        # Nodes are close to each other: less their mean, dot products lose no digits.
        rows -= rows.mean(0)
        apart += rows @ rows.T
    return drift_of(sums.cpu(), products.cpu(), apart.cpu(), flat.numel(), step)


def drift_of(sums: Tensor, products: Tensor, apart: Tensor, entries: int, step: int) -> Drift:
    """Return correlation and distance from sums and dot products.

    Args:
        sums: [nodes], of the weights.
        products: [nodes, nodes], of the weights.
        apart: likewise, of the weights less the mean of the nodes.
        entries: of a node's weights.
        step: optimizer steps completed.
    """
    covariance = products - torch.outer(sums, sums) / entries
    deviations = covariance.diagonal().clamp(min=0).sqrt()
    pairs = torch.triu_indices(len(sums), len(sums), offset=1)
    scale = (deviations[pairs[0]] * deviations[pairs[1]]).clamp(min=1e-300)
    correlations = covariance[pairs[0], pairs[1]] / scale
    lengths = apart.diagonal()
    squares = lengths[pairs[0]] + lengths[pairs[1]] - 2 * apart[pairs[0], pairs[1]]
    largest = math.sqrt(max(0.0, float(squares.max())))
    return Drift(step, float(correlations.clamp(-1, 1).mean()), largest)
