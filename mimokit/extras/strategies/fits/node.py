"""`fit_node`: the fit on one node, from its data to the mean of all nodes' weights."""

import os
import random
import secrets
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from mimokit.cluster.devices import gpu_number
from mimokit.extras.strategies.fits import checkpoint, records
from mimokit.extras.strategies.fits.agreement import (
    Facts,
    StopAgreement,
    check_model_of_node,
    gathered_facts,
    gathered_values,
    shapes_of_model,
    start_alike,
    steps_of,
)
from mimokit.extras.strategies.fits.evaluation import Evaluator, measure_drift
from mimokit.extras.strategies.fits.forward import accumulate, check_finite, find_minibatch_size
from mimokit.extras.strategies.fits.job import (
    Emit,
    FitError,
    FitJob,
    Micro,
    NodeBatches,
    ValidationData,
)
from mimokit.extras.strategies.nodes import communicate
from mimokit.extras.strategies.nodes.buckets import trainable
from mimokit.extras.strategies.nodes.metrics import collecting, means
from mimokit.extras.strategies.nodes.modules import CommunicateOptimizeStrategy
from mimokit.planning.checkpoint_files import save_id


def fit_node(job: FitJob, emit: Emit, should_stop: Callable[[], bool]) -> dict[str, Tensor] | None:
    """Train on this node; return the state of the model on node 0, with the mean of all weights.

    Collective.

    Raises:
        FitError: the fit cannot begin or go on.
        ConfigError: the strategy does not suit the number of nodes.
    """
    ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    node = FitNode(job, emit, *ranks)
    node.begin()
    node.train(should_stop)
    return node.end()


class FitNode:
    """A node of a fit."""

    def __init__(self, job: FitJob, emit: Emit, rank: int, nodes: int) -> None:
        self._job, self._rank, self._nodes = job, rank, nodes
        self._device = device_of(job, rank)
        if self._device.type == "cpu" and nodes > 1:
            # More threads would compete for cores with the other nodes of this machine.
            torch.set_num_threads(1)
        self._model, self._strategy = job.model.to(self._device), job.strategy
        self._report = records.Reporter(emit, rank, nodes)
        self._records: list[records.Record] = []
        self._step, self._validated, self._saved = 0, -1, -1
        self._watch = records.Watch()
        self._token = ""

    def begin(self) -> None:
        """Compare what nodes have, start them alike or from their checkpoints."""
        job, ranks = self._job, (self._rank, self._nodes)
        self._setting = checkpoint.setting_of(job)
        communicate.start_ledger()
        self._data = NodeBatches(job, *ranks)
        validation = ValidationData(job, *ranks)
        facts = self._facts()
        self._total, notes = steps_of(facts, job.num_epochs, job.max_steps)
        self._minibatch_size = facts[0].minibatch_size
        self._start()
        if job.resume:
            self._go_on()
        communicate.ledger.pace = job.pace
        sizes = (self._minibatch_size, job.autocast)
        self._named = dict(self._model.named_parameters())
        self._evaluator = Evaluator(self._model, validation, *ranks, *sizes)
        begun = records.Begun(self._rank, self._step, self._total, self._minibatch_size, notes)
        self._report.send(begun)
        self._report.again(self._records)
        if self._step == 0:
            self._send_validation()

    def train(self, should_stop: Callable[[], bool]) -> None:
        """Do all steps that are left, or as many as nodes agree on."""
        job = self._job
        agreement = StopAgreement(should_stop, self._nodes, self._step)
        for micros in self._data.from_step(self._step, self._minibatch_size):
            if self._step >= self._total or agreement.after(self._step):
                break
            self._report_step(*self._train_step(micros))
            if job.correlation_interval and self._step % job.correlation_interval == 0:
                self._measure_drift()
            if job.checkpoint_interval and self._step % job.checkpoint_interval == 0:
                self._save()
        agreement.close()

    def end(self) -> dict[str, Tensor] | None:
        """Validate, and return the mean of the weights."""
        if self._validated != self._step:
            self._send_validation()
        self._report.send()  # Nodes but the first have not yet sent their part of a validation.
        if self._job.checkpoint_interval and self._saved != self._step:
            self._save()
        return self._evaluator.mean_state(self._step)

    def _facts(self) -> list[Facts]:
        size = self._job.minibatch_size
        if size is None:
            trial = (self._model, self._job, self._data, self._nodes, self._device)
            size = find_minibatch_size(*trial) if self._rank == 0 else 1
        mine = Facts(shapes_of_model(self._model), self._data.batches, size)
        facts = gathered_facts(mine, self._nodes)
        check_model_of_node(facts, self._rank)
        return facts

    def _start(self) -> None:
        strategy = self._strategy
        seed_everything(self._job.seed)
        start_alike(self._model)
        begun = communicate.ledger.messages
        strategy.max_steps, strategy.seed = self._total, self._job.seed
        strategy._init_node(self._model, self._rank, self._nodes)
        if communicate.ledger.messages is not begun:
            communicate.ledger.messages[:0] = begun
        self._model.train()

    def _go_on(self) -> None:
        ranks = self._rank, self._nodes
        state = checkpoint.load_node(self._job.checkpoints, self._setting, *ranks, self._device)
        self._model.load_state_dict(state.model)
        self._strategy.load_state_dict(state.strategy)
        checkpoint.set_generator_states(state.generators)
        self._step = self._validated = self._saved = state.header.step
        self._minibatch_size = state.header.minibatch_size
        self._records = state.records

    def _train_step(self, micros: list[Micro]) -> tuple[records.NodeStep, dict[str, float]]:
        strategy, watch = self._strategy, self._watch
        step = communicate.ledger.step = self._step + 1
        parts = {"data_time": watch.lap()}
        with collecting() as metrics:
            strategy.zero_grad()
            loss, samples, forward = accumulate(
                self._model, micros, self._device, self._rank, autocast=self._job.autocast
            )
            check_finite(self._named, loss, self._rank, step)
            busy = watch.lap()
            if self._job.speeds:
                time.sleep(busy * max(0.0, 1 / self._job.speeds[self._rank] - 1))
            parts |= {"forward_time": forward, "backward_time": busy - forward}
            watch.lap()
            if isinstance(strategy, CommunicateOptimizeStrategy):
                strategy.count_samples(samples)
            rate = strategy.lr if hasattr(strategy, "optim") else None
            strategy.step()
        self._step = step
        whole = watch.lap()
        parts["communication_time"] = watch.exchanging
        parts["optimizer_time"] = whole - watch.exchanging
        parts["time"] = time.time()
        record = records.NodeStep(
            self._rank, step, samples, loss, rate, watch.total - watch.exchanging, watch.total,
            means(metrics),
        )  # fmt: skip
        watch.next_step()
        return record, parts

    def _report_step(self, record: records.NodeStep, parts: dict[str, float]) -> None:
        """Send the step; where a validation is due, node 0 sends both together."""
        due = self._step % self._job.val_interval == 0 or self._step == self._total
        if self._rank or not due:
            self._report.step(record, parts)
        if due:
            validation = self._validate()
            if self._rank == 0:
                self._report.step(record, parts, validation)
            self._begin_together()

    def _validate(self) -> records.Validation | None:
        """Return what node 0 reports of a validation; elsewhere None. Collective."""
        communicate.ledger.step = self._validated = self._step
        return self._evaluator.evaluate(self._step)

    def _send_validation(self) -> None:
        validation = self._validate()
        self._report.send(*([] if validation is None else [validation]))
        self._begin_together()

    def _measure_drift(self) -> None:
        if self._nodes < 2:
            return
        communicate.ledger.step = self._step
        drift = measure_drift(list(trainable(self._model).values()), self._nodes, self._step)
        self._report.send(*([drift] if self._rank == 0 else []))
        self._begin_together()

    def _save(self) -> None:
        if not self._token:
            self._token = gathered_values(secrets.token_hex(8), self._nodes)[0]
        save = save_id(self._token, self._step)
        header = checkpoint.Header(
            self._step, self._nodes, self._minibatch_size, self._setting, save
        )
        state = checkpoint.NodeState(
            header,
            self._model.state_dict(),
            self._strategy.state_dict(),
            checkpoint.generator_states(),
            self._report.since_checkpoint,
        )
        checkpoint.save(self._job.checkpoints, state, self._rank, self._nodes)
        self._report.since_checkpoint = []
        self._saved = self._step
        self._begin_together()

    def _begin_together(self) -> None:
        # On an emulated network the next exchange would last longer by what one node was busy with.
        if self._job.pace is not None and self._nodes > 1:
            dist.barrier()
        self._watch = records.Watch()


def device_of(job: FitJob, rank: int) -> torch.device:
    """Return the device of a node: by default its rank's, else one of `devices`, round robin.

    Raises:
        FitError: there is no such device, or the world of the node communicates on another one.
    """
    cuda, mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    kind = job.device or ("cuda" if cuda else "mps" if mps else "cpu")
    if kind != "cuda":
        return torch.device(kind)
    if not cuda:
        raise FitError(f"node {rank}: device is cuda, but torch finds no GPU")
    if job.devices:
        device = torch.device("cuda", job.devices[rank % len(job.devices)])
    else:
        place = int(os.environ.get("LOCAL_RANK", rank))
        device = torch.device("cuda", gpu_number(place, torch.cuda.device_count()))
    bound = dist.group.WORLD.bound_device_id if dist.group.WORLD is not None else None
    if bound is not None and bound != device:
        raise FitError(
            f"node {rank}: devices names GPU {device.index}, but its engine has joined its world "
            f"with GPU {bound.index}; leave devices out, and choose the GPUs of engines by "
            "CUDA_VISIBLE_DEVICES"
        )
    torch.cuda.set_device(device)
    return device


def seed_everything(seed: int) -> None:
    """Seed the generators of torch, numpy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
