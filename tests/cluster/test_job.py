"""What the processes of a job believe of what others could have written."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch.distributed as dist

from mimokit.cluster import ClusterError, job


def test_files_that_others_could_have_written_are_not_read(tmp_path: Path) -> None:
    """The store, in which others can write, names the folder."""
    folder = tmp_path / ".job-1"
    folder.mkdir(mode=0o700)
    assert job.own_folder(str(folder)) == folder
    (tmp_path / ".job-2").symlink_to(folder)
    (tmp_path / "keys").mkdir(mode=0o700)
    for other in (".job-2", "keys"):
        with pytest.raises(ClusterError, match="others can enter"):
            job.own_folder(str(tmp_path / other))
    folder.chmod(0o755)
    with pytest.raises(ClusterError, match="others can enter"):
        job.own_folder(str(folder))


def test_what_ranks_run_is_in_the_folder_whatever_the_store_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # Its signals are a main thread's.
    monkeypatch.setattr(job, "open_world_session", lambda kernel: None)
    board = dist.HashStore()
    with ThreadPoolExecutor() as threads:
        ranks = [threads.submit(job.Job, board, rank, 2, tmp_path) for rank in range(2)]
        leader, worker = (rank.result() for rank in ranks)
    leader._write("task-0", "a task")
    board.set("task-0", b"another task")
    assert worker._read("task-0") == "a task"
