"""Hosts on this machine: network namespaces with a name and an address, joined by a bridge.

`python -m tests.network_hosts` starts a controller and forks engines into them.
"""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mimokit.cluster.local import commands
from mimokit.cluster.local.entries import connection_file, profile_directory
from mimokit.cluster.local.processes import fork_process, kill_group
from mimokit.cluster.local.starting import ONE_THREAD

NEW_NETWORK, NEW_NAME, NEW_MOUNTS = 0x40000000, 0x04000000, 0x00020000
"""Linux: CLONE_NEWNET, CLONE_NEWUTS and CLONE_NEWNS."""
BIND, RECURSIVE, PRIVATE = 0x1000, 0x4000, 0x40000
"""Linux: MS_BIND, MS_REC and MS_PRIVATE."""

OWN_DISK = "disk"
"""The folder, next to the files of ipyparallel, that each host has for itself."""
START_SECONDS = 120.0
PROBED = "10.255.255.255/32"
"""What an engine asks for the route to, to learn its address.

No route leads elsewhere: a name server must be out of reach at once, not after a timeout.
"""
_SHAPE = ("root", "tbf", "burst", "32kbit", "latency", "400ms", "rate")


@dataclass(frozen=True)
class Host:
    """A host: its namespace and name, and its address on the bridge."""

    name: str
    namespace: str
    address: str

    @property
    def cable(self) -> str:
        """The end of its cable on the bridge."""
        return self.namespace.replace("-", "v")

    def enter(self, disk: Path) -> None:
        """Move this process there, for all sockets that it opens from now on.

        Args:
            disk: a folder that each host has for itself from now on.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        own = disk.with_name(f"{disk.name}-{self.name}")
        for folder in (disk, own):
            folder.mkdir(exist_ok=True)
        with open(f"/run/netns/{self.namespace}") as namespace:
            results = [
                libc.setns(namespace.fileno(), NEW_NETWORK),
                libc.unshare(NEW_NAME | NEW_MOUNTS),
                libc.mount(b"none", b"/", None, RECURSIVE | PRIVATE, None),
                libc.mount(bytes(own), bytes(disk), None, BIND, None),
            ]
        if any(results):
            raise OSError(ctypes.get_errno(), f"the host {self.name} cannot be entered")
        socket.sethostname(self.name)


def skip_without_hosts() -> None:
    """Skip a test where network namespaces cannot be made, and say so."""
    if problem := why_no_hosts():
        pytest.skip(problem)


def why_no_hosts() -> str | None:
    """Return one sentence if this machine cannot have hosts."""
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "Hosts need the commands ip and tc (iproute2)."
    name = f"mk{os.getpid()}"
    try:
        _call("ip", "netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"Hosts need the right to make network namespaces: {error.stderr.strip()}"
    _call("ip", "netns", "del", name)
    return None


@contextlib.contextmanager
def network_of(names: Sequence[str], rate: str | None = None) -> Iterator[tuple[str, list[Host]]]:
    """Make hosts, and delete them at the end.

    Args:
        names: of the hosts.
        rate: of each host's line in both directions, as tc writes it: 100mbit; None: any.

    Returns:
        The address of this machine on the bridge, and the hosts.
    """
    # Unique names and addresses: other runs may have hosts at the same time.
    number = os.getpid() % 60_000
    stem, net = f"mk{number}", f"10.{100 + number // 250 % 150}.{number % 250}"
    hosts = [
        Host(name, f"{stem}-{place}", f"{net}.{place + 2}") for place, name in enumerate(names)
    ]
    try:
        _call("ip", "link", "add", stem, "type", "bridge")
        _call("ip", "addr", "add", f"{net}.1/24", "dev", stem)
        _call("ip", "link", "set", stem, "up")
        for host in hosts:
            _join(host, stem, f"{net}.1", rate)
        yield f"{net}.1", hosts
    finally:
        for host in hosts:
            _call("ip", "netns", "del", host.namespace, check=False)
        _call("ip", "link", "del", stem, check=False)


def _join(host: Host, bridge: str, gateway: str, rate: str | None) -> None:
    cable = host.cable
    inside = ("ip", "netns", "exec", host.namespace)
    _call("ip", "netns", "add", host.namespace)
    _call("ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns",
          host.namespace)  # fmt: skip
    _call("ip", "link", "set", cable, "master", bridge, "up")
    _call(*inside, "ip", "addr", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("eth0", "lo"):
        _call(*inside, "ip", "link", "set", device, "up")
    _call(*inside, "ip", "route", "add", PROBED, "via", gateway)
    if rate is not None:
        _call(*inside, "tc", "qdisc", "add", "dev", "eth0", *_SHAPE, rate)
        _call("tc", "qdisc", "add", "dev", cable, *_SHAPE, rate)


@contextlib.contextmanager
def cut_off(host: Host) -> Iterator[None]:
    """Cut the cable of a host until the end of the block."""
    _call("ip", "link", "set", host.cable, "down")
    try:
        yield
    finally:
        _call("ip", "link", "set", host.cable, "up")


@contextlib.contextmanager
def counted_cable(one: Host, other: Host) -> Iterator[Callable[[], list[int]]]:
    """Join two hosts by a cable that carries what they send to each other, and nothing else.

    The controller is reached over the bridge as before.

    Returns:
        What returns the bytes that each has sent to the other so far, headers included.
    """
    pair = (one, other)
    _call("ip", "link", "add", "cable", "netns", one.namespace, "type", "veth", "peer", "name",
          "cable", "netns", other.namespace)  # fmt: skip
    try:
        for host in pair:
            _call("ip", "-n", host.namespace, "link", "set", "cable", "up")
        for host, there in (pair, pair[::-1]):
            _call("ip", "-n", host.namespace, "route", "add", f"{there.address}/32",
                  "dev", "cable", "src", host.address)  # fmt: skip
        yield lambda: [_sent(host, "cable") for host in pair]
    finally:
        _call("ip", "-n", one.namespace, "link", "del", "cable")


def _sent(host: Host, device: str) -> int:
    shown = _call("ip", "-n", host.namespace, "-s", "-j", "link", "show", device)
    return int(json.loads(shown)[0]["stats64"]["tx"]["bytes"])


def _call(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout


@contextlib.contextmanager
def engines_on(address: str, places: Sequence[Host], folder: Path) -> Iterator[Path]:
    """Start a controller and an engine on a host for each place, and end them.

    Args:
        address: of the controller, on this machine.
        places: the host of engine 0, 1, …
        folder: for files of ipyparallel; must not be too long a path.

    Returns:
        The connection file for clients.
    """
    profile_directory(folder).mkdir(parents=True)
    found = json.dumps([vars(host) for host in places])
    command = [sys.executable, "-m", "tests.network_hosts", str(folder), address, found]
    # Threads of OpenMP would not survive the fork, and what needs them would wait for ever.
    environment = os.environ | dict.fromkeys(ONE_THREAD, "1")
    server = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (folder / "ready").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no engines; see the logs in {folder}")
            time.sleep(0.02)
        yield connection_file(folder)
    finally:
        server.communicate()
        server.wait(30)


def stand_ins(folder: Path, hosts: Sequence[Host]) -> None:
    """Write `ssh`, `srun` and `mpiexec` into a folder, which start a command on a host.

    The job of Slurm has the last host.
    """
    entered = {
        host.name: f"exec ip netns exec {host.namespace} "
        f'unshare --uts sh -c \'hostname {host.name}; exec "$0" "$@"\' "$@"'
        for host in hosts
    }
    ssh = "\n".join(f"{name}) shift; {command};;" for name, command in entered.items())
    scripts = {
        "ssh": f'case "$1" in\n{ssh}\n*) exit 1;;\nesac',
        "srun": f'test "$1" = --ntasks-per-node=1 && shift && ssh {hosts[-1].name} "$@"',
        "mpiexec": 'test "$1 $2 $3" = "-n 1 --host" && shift 3 && ssh "$@"',
    }
    for name, script in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)


def main() -> None:
    """Start the processes, wait for the end of the input, and end them."""
    folder, address, places = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    import ipyparallel.controller.app
    import ipyparallel.engine.app

    import mimokit.cluster.worker.task
    import mimokit.engine.preload  # noqa: F401

    options = [
        *commands.controller_arguments(folder),
        f"--ip={address}",
        f"--location={address}",
        "--IPController.enable_curve=True",
    ]

    def controller() -> None:
        ipyparallel.controller.app.IPController.launch_instance(argv=options)

    def engine(number: int, host: Host) -> None:
        host.enter(folder / OWN_DISK)
        arguments = commands.engine_arguments(folder, number)
        ipyparallel.engine.app.IPEngine.launch_instance(argv=arguments)

    children = [fork_process(folder / "controller.log", controller)]
    while commands.engine_connection(folder) is None:
        time.sleep(0.02)
    for number, place in enumerate(places):
        host = Host(**place)
        log = folder / f"engine-{number}.log"
        children.append(fork_process(log, lambda number=number, host=host: engine(number, host)))  # type: ignore[misc]
    (folder / "ready").touch()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.read()
    for child in children:
        kill_group(child)


if __name__ == "__main__":
    main()
