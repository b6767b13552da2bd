"""Experiments under torchrun and srun: the same folder as on a cluster, which goes on with it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from mimokit.analysis import read_run
from mimokit.experiment import sweep
from tests.commands import run_to_end
from tests.evaluations import QUICK
from tests.experiment.job_faults import KILLED, RAISES, STAYS
from tests.layouts import digits_config

ROOT = Path(__file__).parents[2]
FAULTS = {"a raises": RAISES, "b good": 1e-3, "c killed": KILLED}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_a_job_goes_on_after_an_exception_and_a_cluster_after_the_job(cluster, tmp_path) -> None:
    """One job of two ranks: rank 1 raises in one experiment and is killed in another."""
    for name, rate in FAULTS.items():
        config = digits_config((1, 2), (2, 1), num_iterations=4, learning_rate=rate)
        (tmp_path / f"{name.replace(' ', '_')}.yaml").write_text(config.to_yaml())
    arguments = ("--experiments-dir", tmp_path, "--results-dir", tmp_path / "results")
    ended = _run(*TORCHRUN, "-m", "tests.experiment.job_faults", *map(str, arguments))
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (root,) = (tmp_path / "results").iterdir()  # and no files of the job
    error = json.loads((root / "a_raises" / "error.json").read_text())
    assert (error["rank"], error["step"], error["cause"]) == (1, 2, "KeyError")
    assert "in collate" in error["traceback"]
    killed = json.loads((root / "c_killed" / "error.json").read_text())
    assert (killed["type"], killed["rank"]) == ("RankDied", 1)
    assert "a job replaces no single rank" in killed["message"]
    assert len(read_run(root / "c_killed").metrics) == 2
    good = read_run(root / "b_good")
    assert good.info["status"] == "completed"
    assert len(good.metrics_by_rank) == 2 * 4
    assert set(good.info["versions"]) >= {"torch", "megatron-core"}

    result = sweep(cluster, resume=root, evaluations=QUICK).result(120)
    assert [one.status for one in result.experiments] == ["completed", "skipped", "completed"]
    config = digits_config((1, 2), (2, 1), num_iterations=4)
    again = sweep(cluster, config, results_dir=tmp_path / "again", evaluations=QUICK).result(120)
    rows = result.table[result.table["experiment"] == "b_good"]
    assert rows["loss"].tolist() == pytest.approx(again.table["loss"].tolist(), rel=1e-6)
    assert list(good.metrics.columns) == list(read_run(again.experiments[0].directory).metrics)


def test_ranks_end_with_the_agent_of_their_job_and_keep_their_rows(tmp_path: Path) -> None:
    """Also a rank that hangs when it leaves its world, as here rank 1."""
    config = digits_config((1, 2), (2, 1), num_iterations=100_000, learning_rate=STAYS)
    (tmp_path / "long.yaml").write_text(config.to_yaml())
    arguments = ("--experiments-dir", tmp_path, "--results-dir", tmp_path / "results")
    with (tmp_path / "out").open("w") as out:
        agent = subprocess.Popen(
            [*TORCHRUN, "-m", "tests.experiment.job_faults", *map(str, arguments)],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=out,
            stderr=out,
        )
    ranks: list[psutil.Process] = []
    try:
        _wait(lambda: _rows(tmp_path) >= 3)
        ranks = psutil.Process(agent.pid).children()
        before = _rows(tmp_path)
    finally:
        agent.kill()
        agent.wait()
    assert len(ranks) == 2
    _gone, left = psutil.wait_procs(ranks, timeout=300)
    for one in left:
        one.kill()
    told = (tmp_path / "out").read_text()
    assert not left, told
    (folder,) = (tmp_path / "results").glob("*/long")
    error = json.loads((folder / "error.json").read_text())
    assert "start it again with --resume" in error["message"]
    assert len(read_run(folder).metrics) >= before
    assert "Traceback" not in told


def test_tasks_of_srun_prove_a_layout(tmp_path: Path) -> None:
    """Two processes with the variables of Slurm."""
    config = digits_config((1, 2), (2, 1))
    (tmp_path / "one.yaml").write_text(config.to_yaml())
    arguments = (tmp_path / "one.yaml", "--verify", "--results-dir", tmp_path / "results")
    slurm = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid())}
    tasks = [
        subprocess.Popen(
            [sys.executable, "-m", "mimokit.experiment", *map(str, arguments)],
            env={**ENVIRONMENT, **slurm, "SLURM_PROCID": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    told = [task.communicate(timeout=600)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], told
    assert "computes what one process computes" in told[0]
    assert told[1] == ""


def test_without_torchrun_it_says_how_to_start_it() -> None:
    ended = _run(sys.executable, "-m", "mimokit.experiment", "a.yaml")
    assert ended.returncode == 2
    assert "torch.distributed.run --nproc-per-node N" in ended.stdout


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    given = {
        name: text for name, text in ENVIRONMENT.items() if name not in ("RANK", "SLURM_PROCID")
    }
    return run_to_end(command, cwd=ROOT, env=given, timeout=600)


def _rows(folder: Path) -> int:
    return sum(len(one.read_text().splitlines()) - 1 for one in folder.rglob("metrics.csv"))


def _wait(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
