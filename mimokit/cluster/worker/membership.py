"""This engine's membership of a torch.distributed world: open the store, join, leave."""

import gc
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psutil

from mimokit.cluster.devices import gpu_number
from mimokit.cluster.local.private_network import in_private_network
from mimokit.cluster.patience import slowdown
from mimokit.cluster.rank import call_on_leave
from mimokit.cluster.worker.connections import (
    break_connections,
    listening_ports,
    silence_broken_connections,
)
from mimokit.cluster.world import EngineFacts, WorldSpec

if TYPE_CHECKING:
    from mimokit.cluster.worker.handshake import Handshake

ENVIRONMENT = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK = "127.0.0.1"

SILENCE_AFTER = 1.0
"""Seconds after which every rank of a failed run has broken off."""


class Membership:
    """The world this process is in, at most one."""

    def __init__(self) -> None:
        self._kept_ports = listening_ports()
        self._spec: WorldSpec | None = None
        self._store: Any = None
        self._broken = False
        self._left_at: float | None = None
        self._later: threading.Timer | None = None
        self._interface: str | None = None
        self._lock = threading.Lock()
        self._handshake: Handshake | None = None

    def open_store(self, address: str, timeout: float) -> int:
        """Leave the world, host the store of the next one; returns its port."""
        from torch._C._distributed_c10d import TCPStore

        self.leave()
        listener = socket.create_server((address, 0))
        port = int(listener.getsockname()[1])
        self._store = TCPStore(
            address,
            port,
            is_master=True,
            wait_for_workers=False,
            timeout=_patience(timeout),
            master_listen_fd=listener.detach(),
        )
        return port

    def join(self, spec: WorldSpec) -> None:
        """Become rank `spec.rank`; does nothing if that is what this process is already."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        from mimokit.cluster.worker.signed_store import SignedStore

        if self._spec == spec and dist.is_initialized():
            return
        store = self._store if spec.rank == 0 else None
        self.leave()
        self._silence()
        with self._lock:
            self._spec = spec
        timeout = _patience(spec.timeout)
        if store is None:
            store = TCPStore(
                spec.address, spec.port, is_master=False, wait_for_workers=False, timeout=timeout
            )
        self._store = SignedStore(store, spec.key)
        _set_environment(spec)
        self._choose_interface(spec)
        if not (spec.same_host and in_private_network()):
            from mimokit.cluster.worker.handshake import handshake

            self._handshake = handshake()
            self._handshake.key, self._handshake.break_off = spec.key, self.break_off
        # torch records 2,000 collectives with their tracebacks, in case one hangs: 3 MB per rank.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
        device = None
        if "nccl" in spec.backend:
            device = torch.device("cuda", gpu_number(spec.local_rank, torch.cuda.device_count()))
            torch.cuda.set_device(device)
        dist.init_process_group(
            spec.backend,
            store=self._store,
            rank=spec.rank,
            world_size=spec.size,
            timeout=timeout,
            device_id=device,  # else barriers guess it, and connections are made at first use
        )

    def _choose_interface(self, spec: WorldSpec) -> None:
        """Name the interface for gloo, unless the user has.

        Without it gloo looks up the host's own name, which some machines cannot resolve, and
        others resolve to an address that other hosts do not reach.
        """
        if os.environ.get(INTERFACE, self._interface) != self._interface:
            return
        address = LOOPBACK if spec.same_host else _own_address()
        self._interface = _interface_of(address)
        if self._interface is None or (address == LOOPBACK and not spec.same_host):
            os.environ.pop(INTERFACE, None)  # gloo may know better
            self._interface = None
        else:
            os.environ[INTERFACE] = self._interface

    def intact(self, spec: WorldSpec) -> bool:
        """Whether this process is (still) the rank `spec` describes."""
        dist = _distributed()
        return self._spec == spec and dist is not None and bool(dist.is_initialized())

    def stands(self, name: str) -> bool:
        """Whether this process is in the world of a name."""
        return self._spec is not None and self._spec.name == name and self.intact(self._spec)

    @property
    def groups_made(self) -> int:
        """The number of process groups that were made in this world so far."""
        dist = _distributed()
        return 0 if dist is None else int(dist.distributed_c10d._world.group_count)

    def break_off(self) -> None:
        """Free every rank that waits for this one; any thread may call it."""
        self._broken, self._left_at = True, None
        break_connections(self._kept_ports, self._spec.port if self._spec else None)

    def leave(self) -> None:
        """Leave nothing behind: groups, globals of libraries (`on_leave`), environment, store."""
        _destroy_groups()
        if self._handshake is not None:
            self._handshake.key = None
        call_on_leave()
        for name in ENVIRONMENT:
            os.environ.pop(name, None)
        joined = self._spec is not None
        self._spec = None
        self._store = None
        if joined:
            gc.collect()
        if self._broken:
            self._silence_later()

    def _silence_later(self) -> None:
        # Others may break off later than this rank, and there may be no next world.
        if self._left_at is None:
            self._left_at = time.monotonic()
        if self._later is not None:
            self._later.cancel()
        self._later = threading.Timer(SILENCE_AFTER, self._silence)
        self._later.daemon = True
        self._later.start()

    def _silence(self) -> None:
        # Never while there is a world: its connections are for gloo to give up.
        with self._lock:
            if not self._broken or self._spec is not None:
                return
            since = self._left_at
            silence_broken_connections()
            over = since is not None and time.monotonic() - since >= SILENCE_AFTER
            if over and self._left_at == since:
                self._broken = False  # by now every rank has broken off


def _patience(seconds: float) -> timedelta:
    return timedelta(seconds=seconds * slowdown())


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    return torch.distributed if torch is not None and torch.distributed.is_available() else None


def _destroy_groups() -> None:
    dist = _distributed()
    if dist is None:
        return
    if dist.is_initialized():
        dist.destroy_process_group()
    # A join that was interrupted has counted a group that never came to be; groups are named by
    # this count, and ranks that disagree on it wait for each other in vain.
    dist.distributed_c10d._world.group_count = 0


def _set_environment(spec: WorldSpec) -> None:
    values = (spec.rank, spec.size, spec.local_rank, spec.local_size, spec.address, spec.port)
    os.environ.update({name: str(value) for name, value in zip(ENVIRONMENT, values, strict=True)})


def _interface_of(address: str) -> str | None:
    for name, addresses in psutil.net_if_addrs().items():
        if any(listed.address == address for listed in addresses):
            return str(name)
    return "lo" if address == LOOPBACK else None


def describe_rank() -> EngineFacts:
    """Where this engine sits."""
    import torch

    return EngineFacts(
        pid=os.getpid(),
        host=socket.gethostname(),
        address=_own_address(),
        gpus=tuple(
            str(torch.cuda.get_device_properties(number).uuid)
            for number in range(torch.cuda.device_count())
        ),
        began=psutil.Process().create_time(),
    )


def _own_address() -> str:
    # Connecting a datagram socket sends nothing; it only asks for the route's local end.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])
