"""Nobody else reaches the ports of a local cluster, or takes the descriptors of its ranks."""

import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mimokit.cluster import EngineCluster, RankError
from mimokit.cluster.local import private_network
from mimokit.cluster.local.private_network import (
    HOST_NETWORK,
    enter_private_network,
    in_private_network,
)
from mimokit.cluster.local.processes import MOST_DESCRIPTORS
from mimokit.cluster.worker.connections import listening_ports
from mimokit.result_files import write_json
from tests.cluster.functions import describe_rank
from tests.waiting import wait_until

NOBODY = 65534
SET_DUMPABLE = 4
NAMESPACE = "/proc/self/ns/net"


def allowed() -> bool:
    """Whether this machine has network namespaces for its users."""
    return os.environ.get(HOST_NETWORK) != "1" and private_network._is_allowed()


@pytest.mark.skipif(not allowed(), reason="Linux has no network namespaces for this user here.")
def test_ranks_have_a_network_that_nobody_else_reaches(cluster: EngineCluster) -> None:
    cluster.run(describe_rank)
    networks = {os.readlink(f"/proc/{pid}/ns/net") for pid in cluster.pids}
    assert len(networks) == 1
    assert networks != {os.readlink(NAMESPACE)}
    assert all(cluster.run(in_private_network))
    assert not in_private_network()


def test_a_user_without_rights_gets_one_and_no_rights_over_files(tmp_path: Path) -> None:
    """In it the loopback works, and a read-only file stays one."""
    if not allowed():
        pytest.skip("Linux has no network namespaces for this user here.")
    file = tmp_path / "read-only"
    tmp_path.chmod(0o755)
    file.touch(0o444)
    user = os.geteuid() or NOBODY
    os.chown(file, user, -1)
    assert in_a_child(lambda: as_user_in_network(user, file)) == 0


def as_user_in_network(user: int, file: Path) -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(user, user, user)
        ctypes.CDLL(None).prctl(SET_DUMPABLE, 1)  # as in a process that this user has started
    assert enter_private_network()
    assert os.geteuid() == user
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        with pytest.raises(OSError, match="unreachable"), socket.socket() as outside:
            outside.connect(("10.255.255.255", 1))
    assert not os.access(file, os.W_OK)


def in_a_child(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("what", ["_enter", "ioctl"])
def test_a_system_that_does_not_allow_it_leaves_engines_on_the_host(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Also one that lets a user in, and then refuses to switch on the loopback."""
    before = os.readlink(NAMESPACE)

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "not for users")

    owner = private_network if what == "_enter" else private_network.fcntl
    monkeypatch.setattr(owner, what, refuse)
    assert not enter_private_network()
    assert os.readlink(NAMESPACE) == before
    assert not in_private_network()


def reach(host: str) -> None:
    socket.create_connection((host, 80), timeout=1.0).close()


@pytest.mark.parametrize("host", ["10.255.255.255", "host.invalid"])
def test_code_that_needs_the_network_of_the_host_is_told_how(
    cluster: EngineCluster, host: str
) -> None:
    if not allowed():
        pytest.skip("Linux has no network namespaces for this user here.")
    with pytest.raises(RankError, match=f"start the cluster with {HOST_NETWORK}=1") as caught:
        cluster.run(reach, host, world_size=2)
    assert "\n" not in str(caught.value).split("\n\n")[0]


def descriptors() -> tuple[int, int]:
    return resource.getrlimit(resource.RLIMIT_NOFILE)


def test_a_rank_may_open_all_the_descriptors_that_the_system_allows(cluster: EngineCluster) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, MOST_DESCRIPTORS)
    assert {now for now, _ in cluster.run(descriptors, world_size=2)} == {wanted}


@pytest.fixture(scope="module")
def host_cluster() -> Iterator[EngineCluster]:
    """Two engines in the network of this machine, whose collectives have much time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOST_NETWORK, "1")
        with EngineCluster(2, timeout=600.0, preload=("torch",), progress=False) as cluster:
            yield cluster


def new_group(other_key_of: int) -> int:
    import torch.distributed as dist

    from mimokit.cluster.worker.handshake import handshake

    dist.new_group()
    if dist.get_rank() == other_key_of:
        handshake().key = b"another"
    return int(dist.get_world_size(dist.new_group()))


def test_on_the_network_of_the_host_ranks_show_each_other_their_key(
    host_cluster: EngineCluster,
) -> None:
    """Each new group does, before anything else; a rank with another key is named."""
    assert host_cluster.run(new_group, -1) == [2, 2]
    with pytest.raises(
        RankError, match=r"in the place of rank \d of a group does not have the key"
    ):
        host_cluster.run(new_group, 1)
    assert host_cluster.run(new_group, -1) == [2, 2]


def meet_late(folder: str) -> None:
    """Form a group: each rank says where it listens, and connects once there is a file `told`."""
    import torch.distributed as dist

    from mimokit.cluster.worker.signed_store import SignedStore

    get, before = SignedStore.get, listening_ports()
    said, told = Path(folder) / f"ports-{dist.get_rank()}", Path(folder) / "told"

    def late(store: SignedStore, name: str) -> bytes:
        value = get(store, name)
        if not said.exists():
            write_json(said, {"ports": sorted(listening_ports() - before)})
        wait_until(told.exists)
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SignedStore, "get", late)
        dist.new_group()


IMPOSTOR = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = []
for port in map(int, sys.argv[1:]):
    for number in range(4):
        held.append(socket.socket())
        held[-1].connect((b"127.0.0.1", port))
        held[-1].send(number.to_bytes(8, "little"))
print("there", flush=True)
sys.stdin.read()
"""
"""Sends each port the numbers with which gloo's ranks begin, and nothing else."""


@pytest.mark.skipif(os.geteuid() != 0, reason="Only an administrator can act as another user.")
def test_another_user_who_takes_the_place_of_a_rank_and_is_silent_is_named_in_seconds(
    host_cluster: EngineCluster, tmp_path: Path
) -> None:
    """Before each rank connects to the other, user `nobody` has connected to both."""
    host_cluster.run(new_group, -1)
    run = host_cluster.submit(meet_late, str(tmp_path))
    files = [tmp_path / f"ports-{rank}" for rank in range(2)]
    wait_until(lambda: all(file.exists() for file in files))
    ports = [str(port) for file in files for port in json.loads(file.read_text())["ports"]]
    assert len(ports) == 2
    with subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, *ports],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as impostor:  # fmt: skip
        assert impostor.stdout is not None
        assert impostor.stdout.readline() == "there\n"
        time.sleep(0.5)  # gloo accepts in a thread of its ranks
        (tmp_path / "told").touch()
        nobody = "another user of this machine is connected to ranks: nobody"
        with pytest.raises(RankError, match=nobody):
            run.result(180.0)
        impostor.communicate("")
    assert host_cluster.run(new_group, -1) == [2, 2]
