"""Losses on validation samples, of node 0 and of the mean of all nodes; how far nodes are apart."""

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from mimokit.extras.strategies.fits.forward import loss_of
from mimokit.extras.strategies.fits.job import ValidationData
from mimokit.extras.strategies.fits.records import Drift, Validation
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import Bucket, trainable
from mimokit.extras.strategies.nodes.metrics import collecting, means


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
        return {name: tensor.detach().cpu() for name, tensor in state.items()}

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
            for target, buffer in zip(self._copy.buffers(), self._model.buffers(), strict=True):
                if not buffer.is_floating_point():
                    target.copy_(buffer)

    @torch.no_grad()
    def _losses(self, model: nn.Module, name: str) -> dict[str, float]:
        total, samples = 0.0, 0
        device = next((weight.device for weight in model.parameters()), torch.device("cpu"))
        with evaluating(model), collecting() as metrics:
            for batch, count in self._data.micros(self._minibatch_size):
                loss = loss_of(model, batch, device, self._rank, autocast=self._autocast)
                total, samples = total + count * float(loss), samples + count
        values = {"loss": total / samples, **means(metrics)}
        return {f"{name}_{metric}": value for metric, value in values.items()}


def averaged(model: nn.Module) -> list[Tensor]:
    """Return what the mean of nodes is taken of: what trains, and floating-point buffers."""
    buffers = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
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
    """Return correlation and distance of the weights of all nodes, at least 2. Collective.

    Weights travel in blocks; of a block the dot products of each pair of nodes are kept.
    """
    device = tensors[0].device
    flat = torch.cat([tensor.detach().reshape(-1).float() for tensor in tensors])
    sums = torch.zeros(nodes, dtype=torch.float64, device=device)
    products = torch.zeros(nodes, nodes, dtype=torch.float64, device=device)
    apart = torch.zeros_like(products)
    for block in torch.split(flat, BLOCK):
        blocks = [torch.empty_like(block) for _ in range(nodes)]
        with communicate.ledger.counting("evaluation"):
            communicate.all_gather(blocks, block)
        rows = torch.stack(blocks).double()
        sums += rows.sum(1)
        products += rows @ rows.T
        # Nodes are close to each other: less their mean, dot products lose no digits.
        rows -= rows.mean(0)
        apart += rows @ rows.T
    sums, products, apart = sums.cpu(), products.cpu(), apart.cpu()
    covariance = products - torch.outer(sums, sums) / flat.numel()
    deviations = covariance.diagonal().clamp(min=0).sqrt()
    pairs = torch.triu_indices(nodes, nodes, offset=1)
    scale = (deviations[pairs[0]] * deviations[pairs[1]]).clamp(min=1e-300)
    correlations = covariance[pairs[0], pairs[1]] / scale
    lengths = apart.diagonal()
    squares = lengths[pairs[0]] + lengths[pairs[1]] - 2 * apart[pairs[0], pairs[1]]
    largest = math.sqrt(max(0.0, float(squares.max())))
    return Drift(step, float(correlations.clamp(-1, 1).mean()), largest)
