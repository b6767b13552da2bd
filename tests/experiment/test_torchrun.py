"""A sweep under torchrun: the same folder as on a cluster, and a cluster goes on with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from mimokit.analysis import read_run
from mimokit.cluster import ClusterError
from mimokit.cluster.torchrun.cluster import TorchrunCluster
from mimokit.cluster.torchrun.messages import (
    Task,
    message_from_json,
    message_to_json,
    outcome_from_json,
    outcome_to_json,
)
from mimokit.cluster.worker.task import Failure, RankOutcome
from mimokit.config.user_code import NO_CODE
from mimokit.experiment import Evaluations, sweep
from mimokit.experiment.sweeps.folder import config_content
from mimokit.experiment.torchrun import TRAINING, training_from_json, training_to_json
from mimokit.planning import plan_layout
from mimokit.samples import (
    AnswersSample,
    ProfileSample,
    RankFacts,
    RankHardware,
    Sample,
    TraceSample,
    from_wire,
    to_wire,
)
from tests.charts.fakes import samples
from tests.evaluations import QUICK
from tests.experiment.torchrun_faults import KILLED, RAISES, STAYS
from tests.layouts import digits_config

ROOT = Path(__file__).parents[2]
FAULTS = {"a raises": RAISES, "b good": 1e-3, "c killed": KILLED}
HARDWARE = RankHardware("a processor", 2, 2**34)


def _write(folder: Path) -> None:
    for name, rate in FAULTS.items():
        config = digits_config((1, 2), (2, 1), num_iterations=4, learning_rate=rate)
        (folder / f"{name.replace(' ', '_')}.yaml").write_text(config.to_yaml())


def test_a_job_goes_on_after_an_exception_and_a_cluster_after_the_job(cluster, tmp_path) -> None:
    """One job of two ranks: rank 1 raises in one experiment and is killed in another."""
    _write(tmp_path)
    arguments = ("--experiments-dir", tmp_path, "--results-dir", tmp_path / "results")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    job = subprocess.run(
        [*command, "-m", "tests.experiment.torchrun_faults", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert job.returncode == 1, job.stdout + job.stderr
    (root,) = (tmp_path / "results").iterdir()
    error = json.loads((root / "a_raises" / "error.json").read_text())
    assert (error["rank"], error["step"], error["cause"]) == (1, 2, "KeyError")
    assert "in collate" in error["traceback"]
    killed = json.loads((root / "c_killed" / "error.json").read_text())
    assert (killed["type"], killed["rank"]) == ("RankDied", 1)
    assert "torchrun replaces no single rank" in killed["message"]
    assert len(read_run(root / "c_killed").metrics) == 2
    good = read_run(root / "b_good")
    assert good.info["status"] == "completed"
    assert len(good.metrics_by_rank) == 2 * 4
    assert set(good.info["versions"]) >= {"torch", "megatron-core"}

    result = sweep(cluster, resume=root, evaluations=QUICK).result(120)
    assert [one.status for one in result.experiments] == [
        "completed",
        "skipped",
        "completed",
    ]
    config = digits_config((1, 2), (2, 1), num_iterations=4)
    again = sweep(cluster, config, results_dir=tmp_path / "again", evaluations=QUICK).result(120)
    rows = result.table[result.table["experiment"] == "b_good"]
    assert rows["loss"].tolist() == pytest.approx(again.table["loss"].tolist(), rel=1e-6)
    assert list(good.metrics.columns) == list(read_run(again.experiments[0].directory).metrics)


def _all_samples() -> list[Sample]:
    return [
        *samples(iterations=10, ranks=2),
        TraceSample(
            rank=1,
            iteration=0,
            clock_offset=0.5,
            clock_error=1e-6,
            events=(("load", None, 0, 0.0, 1.0), ("forward", "images", None, 1.0, 2.0)),
            inside=(("reduce-scatter", "images", 0, 0.5, 0.75),),
        ),
        AnswersSample(rank=1, iteration=9, answers=((0, (1, 2)), (1, (3,)))),
        RankFacts(rank=1, host="here", hardware=HARDWARE, peak_flops_per_sec=1e12),
        ProfileSample(rank=1, name="a.gz", part=0, parts=1, content=b"\x00\xff"),
    ]


def test_samples_cross_as_json_and_are_the_same() -> None:
    for sample in _all_samples():
        text = json.dumps(message_to_json(to_wire(sample)))
        assert from_wire(message_from_json(json.loads(text))) == sample


def test_a_message_that_is_no_sample_is_rejected() -> None:
    with pytest.raises(KeyError):
        message_from_json({"os.system": {"command": "true"}})


def test_tasks_and_outcomes_cross_as_json() -> None:
    config = digits_config((1, 2), (2, 1))
    given = (plan_layout(config), config, Evaluations(3, 4, 5), True, 1e9)
    task = Task.from_text(Task(training_to_json(*given, NO_CODE), 2, last=False).to_text())
    arguments = training_from_json(task.arguments, task.world_size)
    assert arguments[0] == given[0]
    assert config_content(arguments[1]) == config_content(config)
    assert arguments[2:] == given[2:]
    assert (task.last, Task.from_text(Task().to_text()).last) == (False, True)
    outcome = RankOutcome(None, Failure("KeyError", "k", "Traceback", False, False), 7, False)
    assert outcome_from_json(outcome_to_json(outcome)) == outcome


def test_a_job_does_its_own_work_only() -> None:
    job = SimpleNamespace(_work=TRAINING)
    with pytest.raises(ClusterError, match="ranks run train_rank, nothing else"):
        TorchrunCluster.submit(job, print, world_size=1)  # type: ignore[arg-type]


def test_without_torchrun_it_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    from mimokit.experiment.sweeps.options import SweepRequest
    from mimokit.experiment.torchrun import run_job

    monkeypatch.delenv("RANK", raising=False)
    assert run_job(SweepRequest("a.yaml")) == 2
    assert "torch.distributed.run --nproc-per-node N" in capsys.readouterr().out


def test_ranks_end_with_the_agent_of_their_job_and_keep_their_rows(tmp_path: Path) -> None:
    """Also a rank that hangs when it leaves its world, as here rank 1."""
    config = digits_config((1, 2), (2, 1), num_iterations=100_000, learning_rate=STAYS)
    (tmp_path / "long.yaml").write_text(config.to_yaml())
    arguments = ("--experiments-dir", tmp_path, "--results-dir", tmp_path / "results")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    with (tmp_path / "out").open("w") as out:
        agent = subprocess.Popen(
            [*command, "-m", "tests.experiment.torchrun_faults", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
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
    assert "the agent of this torchrun job is gone: start the job again with" in error["message"]
    assert len(read_run(folder).metrics) >= before
    assert "Traceback" not in told


def _rows(folder: Path) -> int:
    """Return how many rows the run has written."""
    return sum(len(one.read_text().splitlines()) - 1 for one in folder.rglob("metrics.csv"))


def _wait(condition: Callable[[], bool], seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
