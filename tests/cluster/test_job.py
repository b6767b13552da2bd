"""What the processes of a job believe of what others could have written."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from mimokit.cluster import ClusterError, job
from mimokit.cluster.state_folder import state_folder


def test_what_ranks_say_in_the_store_is_signed_for_this_job() -> None:
    board, earlier = dist.HashStore(), dist.HashStore()
    leader, worker = _jobs(board, b"key", b"key")
    _jobs(earlier, b"key", b"key")[0]._store.set("task/0", "of yesterday")
    for forged in (b"a task", b"x" * 32 + b"a task", earlier.get("task/0")):
        board.set("task/0", forged)
        with pytest.raises(RuntimeError, match="not written by one of its ranks"):
            worker._store.get("task/0")
    leader._store.set("task/0", "a task")
    assert worker._store.get("task/0") == b"a task"
    with pytest.raises(ClusterError, match=r"not signed with the key of rank .*MIMOKIT_JOB_KEY"):
        _jobs(dist.HashStore(), b"one", b"another")


def test_files_that_others_could_have_written_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "run" / "call"
    file.parent.mkdir()
    file.write_bytes(b"a pickle")
    tmp_path.chmod(0o700)
    assert job.own_file(file) == b"a pickle"
    tmp_path.chmod(0o755)
    with pytest.raises(ClusterError, match="others can enter"):
        job.own_file(file)


def test_the_key_of_a_user_is_read_by_nobody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(job.KEY_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with ThreadPoolExecutor() as threads:
        (made,) = set(threads.map(lambda _: job.user_key(), range(8)))
    (file,) = (tmp_path / "state" / "mimokit").iterdir()
    assert (len(made), file.stat().st_mode & 0o777) == (64, 0o600)
    file.chmod(0o644)
    with pytest.raises(ClusterError, match="others can read it: delete it"):
        job.user_key()
    monkeypatch.setenv(job.KEY_VARIABLE, "secret" * 6)
    assert job.user_key() == b"secret" * 6


@pytest.mark.parametrize("key", [b"", b"x" * 31])
def test_a_key_that_can_be_guessed_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: bytes
) -> None:
    """Of a file, which a full disk leaves empty, and of the environment."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv(job.KEY_VARIABLE, key.decode())
    refusal = f"a key of {len(key)} byte.*, and a key has 32 or more"
    with pytest.raises(ClusterError, match=refusal):
        job.user_key()
    monkeypatch.delenv(job.KEY_VARIABLE)
    job.user_key()
    file = state_folder() / job.KEY_FILE
    file.write_bytes(key)
    with pytest.raises(ClusterError, match=refusal):
        job.user_key()
    assert file.read_bytes() == key


def _jobs(board: dist.Store, *keys: bytes) -> list[job.Job]:
    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor() as threads:
        patch.setattr(job, "open_session", lambda kernel: None)  # whose signals a main thread has
        made = [
            threads.submit(job.Job, board, rank, len(keys), key) for rank, key in enumerate(keys)
        ]
        return [one.result() for one in made]
