"""The device and machine of this rank, and the lifetime and timeout of its process groups."""

import contextlib
import os
import platform
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from mimokit.cluster.devices import gpu_number
from mimokit.config import ConfigError
from mimokit.config.messages import problem_at
from mimokit.config.runtime import TF32
from mimokit.engine.megatron import forget_rotary_embeddings
from mimokit.samples import RankFacts, RankHardware


def rank_device() -> torch.device:
    """Return the CUDA device of this rank, else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    place = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", gpu_number(place, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """Compute products and convolutions in fp32; by default cuDNN takes TF32 for convolutions."""
    with _products(in_tf32=False):
        yield


def products_of(precision: str | None) -> AbstractContextManager[None]:
    """Compute products of fp32 numbers in TF32 if that is the precision of a run.

    Raises:
        ConfigError: it is, and this rank has no GPU.
    """
    if precision != TF32:
        return contextlib.nullcontext()
    if rank_device().type == "cpu":
        sentence = (
            f"precision is {TF32}, in which GPUs alone compute, and this rank has none; leave it "
            "out to run in fp32."
        )
        raise ConfigError([problem_at("runtime.precision", TF32, sentence, None)])
    return _products(in_tf32=True)


@contextlib.contextmanager
def _products(*, in_tf32: bool) -> Iterator[None]:
    switches: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = in_tf32
        yield
    finally:
        for switch, allowed in zip(switches, before, strict=True):
            switch.allow_tf32 = allowed


def group_timeout() -> timedelta:
    """Return the timeout of the world; other groups would have torch's default of half an hour."""
    backend = dist.group.WORLD._get_backend(rank_device())  # type: ignore[union-attr]
    timeout: timedelta = backend.options._timeout
    return timeout


def open_groups() -> frozenset[dist.ProcessGroup]:
    """Return the process groups of this rank."""
    return frozenset(dist.distributed_c10d._world.pg_map)


def close_groups_since(before: frozenset[dist.ProcessGroup]) -> None:
    """Destroy the groups created since `before`, once every rank has called this. Collective.

    torch.distributed keeps every group until the world ends, and gloo keeps three threads for each;
    a module creates up to 6 groups. The threads end when the last reference is gone.
    """
    dist.barrier()
    forget_rotary_embeddings()
    made = [group for group in dist.distributed_c10d._world.pg_map if group not in before]
    for group in made:
        dist.destroy_process_group(group)


def rank_facts() -> RankFacts:
    """Return where this rank runs: host, processor, cores, memory in bytes, GPU."""
    device = rank_device()
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    hardware = RankHardware(
        cpu=_processor(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        accelerator=gpu,
        load=round(psutil.getloadavg()[0], 1),
    )
    return RankFacts(rank=dist.get_rank(), host=socket.gethostname(), hardware=hardware)


def _processor() -> str:
    """Return the name of the processor; `platform.processor` is empty on many systems."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
