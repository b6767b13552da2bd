"""Losses on validation samples: of node 0's weights, and of the mean of all nodes' weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from mimokit.engine.fits.data import ValidationData, on_device
from mimokit.engine.fits.forward import scalar_loss
from mimokit.engine.fits.records import Validation
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
