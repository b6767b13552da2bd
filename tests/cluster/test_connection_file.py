"""Which connection files are used: what keeps others away from a controller of its owner."""

import json
import os
import re
from pathlib import Path

import pytest

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.cluster.connection_file import CURVE_KEY, UNENCRYPTED, connection_of
from tests.rows import rows

HERE = "tcp://127.0.0.1"
THERE = "tcp://10.0.0.5"


@pytest.fixture
def security(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for connection files that its owner alone enters, and no variable of ipyparallel."""
    for name in (UNENCRYPTED, CURVE_KEY):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "security"
    folder.mkdir(mode=0o700)
    return folder


def written(security: Path, interface: str, engines: str | None = None, curve: str = "") -> Path:
    common = {"registration": 1, "curve_serverkey": curve or None, "key": "k"}
    file = security / "ipcontroller-client.json"
    file.write_text(json.dumps(common | {"interface": interface}))
    of_engines = json.dumps(common | {"interface": engines or interface})
    (security / "ipcontroller-engine.json").write_text(of_engines)
    return file


@pytest.mark.parametrize("interface", [HERE, "tcp://localhost", "tcp://[::1]", "ipc:///tmp/socket"])
def test_what_stays_on_this_machine_needs_no_encryption(security: Path, interface: str) -> None:
    assert connection_of(None, written(security, interface), 0.0)["interface"] == interface


@pytest.mark.parametrize("interface", [THERE, "tcp://*", "tcp://0.0.0.0", "tcp://[fe80::1]"])
def test_a_network_needs_encryption_unless_said(
    security: Path, interface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence says what to start the controller with; engines' interface counts, too."""
    sentence = rf"listens on {re.escape(interface)} without encryption.*enable_curve=True"
    for of_clients in (interface, HERE):
        with pytest.raises(ClusterError, match=sentence):
            EngineCluster(cluster_file=written(security, of_clients, interface), progress=False)
    assert connection_of(None, written(security, interface, curve="key"), 0.0)
    monkeypatch.setenv(UNENCRYPTED, "1")
    assert connection_of(None, written(security, interface), 0.0)


@rows("mode", 0o640, 0o604)
def test_a_file_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    """A folder that they cannot enter keeps them from it whatever its own mode."""
    security = Path("/tmp") / tmp_path.name  # the folder of pytest is its owner's alone
    security.mkdir(mode=0o755)
    try:
        file = written(security, HERE)
        file.chmod(mode)
        with pytest.raises(ClusterError, match=r"others can read it.*chmod 700"):
            EngineCluster(cluster_file=file, progress=False)
        security.chmod(0o700)
        assert connection_of(None, file, 0.0)
    finally:
        for file in security.iterdir():
            file.unlink()
        security.rmdir()


@pytest.mark.parametrize(
    "content",
    ["[]", "3", "null", "[" * 200_000, "", "{}", "pipe", '{"registration": 1}',
     '{"cluster": {"class": "os.system"}, "controller": {"class": "os", "state": {}}}'],
    ids=lambda content: content[:20],
)  # fmt: skip
def test_what_is_no_connection_file_is_refused_at_once(security: Path, content: str) -> None:
    file = security / "ipcontroller-client.json"
    if content == "pipe":
        os.mkfifo(file)
    else:
        file.write_text(content)
    with pytest.raises(ClusterError, match="no running cluster was found by"):
        EngineCluster(cluster_file=file, progress=False)
    assert list(security.iterdir()) == [file]
