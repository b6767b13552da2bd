"""What the tests run on the ranks."""

import contextlib
import ctypes
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

from mimokit.cluster import emit, should_stop

PAUSE = 0.01
"""Seconds between two steps of a loop that waits for its end, which other processes need."""


def describe_rank(*arguments: Any, **keywords: Any) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    total = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(total)
    return {
        "rank": dist.get_rank(),
        "size": dist.get_world_size(),
        "sum": total.item(),
        "pid": os.getpid(),
        "arguments": (arguments, keywords),
        "environment": {name: os.environ.get(name) for name in names},
    }


def process_id() -> int:
    return os.getpid()


def modes() -> tuple[bool, str]:
    import torch

    return torch.is_grad_enabled(), str(torch.get_default_dtype())


def change_modes() -> None:
    import torch

    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    raise ValueError("halfway")


def all_reduce_forever(
    trouble: str, rank: int, seconds: float = 0.3, timeout: float = 1800.0
) -> None:
    """All-reduce in a subgroup that a global keeps alive, as models do; one gets in trouble."""
    import torch
    import torch.distributed as dist

    began = time.monotonic()
    limit = timedelta(seconds=timeout)
    group = dist.new_group(list(range(dist.get_world_size())), timeout=limit)
    globals().setdefault("_kept", []).append(group)
    while True:
        if dist.get_rank() == rank and time.monotonic() - began > seconds:
            _get_in_trouble(trouble)
        emit({"t": time.monotonic() - began})
        dist.all_reduce(torch.ones(1000), group=group)
        time.sleep(PAUSE)


def _get_in_trouble(trouble: str) -> None:
    if trouble == "deaf":
        emit({"trouble": trouble})
    if trouble == "raise":
        raise ValueError("the third wheel came off")
    if trouble == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if trouble == "sleep":
        time.sleep(60)
    if trouble == "lock":
        lock = threading.Lock()
        for _ in range(2):
            lock.acquire()
    if trouble == "poll":
        came = threading.Event()
        while not came.is_set():
            pass
    while trouble == "nap":
        time.sleep(0.01)
    if trouble == "hold":
        mutex = ctypes.create_string_buffer(64)
        for _ in range(2):
            ctypes.PyDLL(None).pthread_mutex_lock(mutex)  # and no other thread runs meanwhile
    while trouble == "deaf":
        with contextlib.suppress(BaseException):
            time.sleep(60)


def train_until_stopped() -> int:
    import torch
    import torch.distributed as dist

    steps = 0
    while True:
        stop = torch.tensor([float(should_stop())])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            return steps
        steps += 1
        emit({"step": steps})
        time.sleep(PAUSE)


def emit_many(count: int) -> int:
    values = {"step": 0}
    for step in range(count):
        values["step"] = step  # the same object again: it must have been copied
        emit(values)
    return count


def sleep_after_some_steps(steps: int) -> None:
    for step in range(steps):
        emit({"step": step})
        time.sleep(0.2)
    while not should_stop():
        time.sleep(0.01)
