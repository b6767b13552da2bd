"""The folder for caches is this user's alone, or nothing is kept there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.cluster.state_folder import CACHES, compiler_caches, state_folder

OTHERS = 65534


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where the folder would be: the home cannot be written, as on some hosts of a network."""
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for variable in CACHES:
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / f"mimokit-{os.geteuid()}"


def test_it_is_made_where_only_its_owner_can_enter(place: Path) -> None:
    assert state_folder() == state_folder() == place
    assert place.stat().st_mode & 0o777 == 0o700
    assert set(compiler_caches().values()) == {f"{place}/inductor", f"{place}/triton"}


def test_one_that_others_could_read_is_closed(place: Path) -> None:
    place.mkdir(mode=0o755)
    assert state_folder() == place
    assert place.stat().st_mode & 0o777 == 0o700


def open_to_all(place: Path) -> None:
    place.mkdir()
    place.chmod(0o777)


def a_link(place: Path) -> None:
    other = place.with_name("of-another")
    other.mkdir(mode=0o700)
    place.symlink_to(other)


def of_another(place: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("Only an administrator can make a folder of another user.")
    place.mkdir(mode=0o700)
    os.chown(place, OTHERS, OTHERS)


@pytest.mark.parametrize(
    ("prepare", "why"),
    [
        (open_to_all, "can be written by others"),
        (a_link, "is a link or a file"),
        (of_another, "belongs to another user"),
    ],
)
def test_a_folder_that_others_have_prepared_is_refused(
    place: Path, prepare: Callable[[Path], None], why: str
) -> None:
    """By whoever would keep a key there, and before engines would load compiled code from it."""
    prepare(place)
    before, mode = sorted(place.parent.rglob("*")), place.lstat().st_mode
    with pytest.raises(ClusterError, match=f"keeps caches, {why}: remove it, or name"):
        state_folder()
    with pytest.raises(ClusterError, match=why):
        EngineCluster(1, progress=False)
    assert (sorted(place.parent.rglob("*")), place.lstat().st_mode) == (before, mode)


def where_caches_are() -> list[str]:
    return [os.environ[variable] for variable in CACHES]


def test_compilers_of_engines_keep_their_caches_there(cluster: EngineCluster) -> None:
    for folders in cluster.run(where_caches_are, world_size=2):
        assert folders == [str(state_folder() / name) for name in CACHES.values()]
