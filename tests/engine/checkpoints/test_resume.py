"""Runs that go on from a checkpoint, and resumes with faults, each of which is named."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
import torch

from mimokit.analysis import read_run
from mimokit.cluster import EngineCluster, RankError
from mimokit.config import ConfigError, ExperimentConfig, StrategyConfig
from mimokit.config.runtime import CheckpointConfig
from mimokit.engine.checkpoints.files import read_whole
from mimokit.experiment import resume_check, train
from mimokit.experiment.prepare import finalized_copy
from mimokit.experiment.resume_proof import find_differences
from mimokit.planning import plan_layout
from mimokit.planning.checkpoints import PARTIAL, read_checkpoint, steps_in
from mimokit.result_files import CHECKPOINTS, RunFile
from tests import seams
from tests.cli.call import call
from tests.engine.checkpoints.resumes import resumes_with_faults
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.planted import planted

NAMED = {
    "nothing": "",
    "nothing, the same layout": "",
    "the step count of Adam is dropped": "The optimizer's step of images/",
    "the moments are dropped": "The exp_avg of images/",
    "the states began with a step": " was 2 and is 3, and ",
    "main weights went through bf16": " was rounded through bf16",
    "states are those of another parameter": " has other values",
    "the scaler is dropped": "The loss scale was {'value': 4.0, 'skipped': 0, 'good': 2} and is ",
    "the data start again": "The data position starts again: the next samples are those of step 1",
    "random states have one key": "on tensor rank 1, is that of ",
    "how a tensor is cut is lost": "linear_fc1.weight has rows of other places",
}
"""Fault -> what the first sentence about it says."""


def _layout(tensor: int, data: int, **runtime: object) -> ExperimentConfig:
    config = digits_config(
        (tensor, data), (tensor, data), precision="fp16", initial_loss_scale=4.0, **runtime
    )
    config.model.module_architectures["language_module"].gated_linear_unit = True
    for sizes in config.model.module_parallelisms.values():
        sizes.use_distributed_optimizer = data > 1 or None
    return finalized_copy(config)


def test_every_fault_of_a_resume_is_named(cluster: EngineCluster, tmp_path: Path) -> None:
    """Published faults: of Megatron-LM 6920, 4791, 5976, of Megatron-Bridge 3832, and others."""
    saved, resumed = ((plan_layout(c), c) for c in (_layout(2, 1), _layout(1, 2)))
    by_rank = cluster.run(resumes_with_faults, saved, resumed, str(tmp_path), world_size=2)
    said = {}
    for fault in NAMED:
        before, after = zip(*(rank[fault] for rank in by_rank), strict=True)
        tolerance = 0.0 if "same layout" in fault or "one key" in fault else 0.05
        said[fault] = list(find_differences(before, after, tolerance))
    for fault, sentence in NAMED.items():
        assert (sentence in said[fault][0]) if sentence else not said[fault], (fault, said[fault])
    # What is left out changes nothing else that is loaded.
    assert all(
        "was dropped: all its entries are 0" in s for s in said["the moments are dropped"][:1]
    )


SAVED, LAST = 4, 7


def _losses(cluster: EngineCluster, config: ExperimentConfig, **given: Any) -> list[float]:
    steps = train(cluster, config, evaluations=QUICK, **given).result().steps
    losses: list[float] = steps.groupby("iteration").loss.first().tolist()
    return losses


def _by_command(
    cluster: EngineCluster, config: ExperimentConfig, folder: Path, *options: str
) -> Path:
    """Run a config as a user does in a shell, on engines that are there; return its folder."""
    folder.mkdir()
    file = folder / "config.yaml"
    file.write_text(config.to_yaml())
    with mock.patch(seams.ENGINE_CLUSTER, side_effect=lambda n: nullcontext(cluster)):
        command = ["run", str(file), *options, "--results-dir", str(folder / "results")]
        done = call(*command)
    assert done.exit_code == 0, done.output
    (results,) = (one.parent for one in folder.rglob(str(RunFile.METRICS)))
    return results


def test_a_run_goes_on_under_other_layouts_as_if_it_had_not_stopped(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    colocated = digits_config((1, 4), (2, 2), num_iterations=LAST, num_microbatches=2)
    colocated.model.module_parallelisms["images"].use_megatron_fsdp = True
    expected = _losses(cluster, colocated, directory=tmp_path / "saved", checkpoints=SAVED)
    resume = {"resume": tmp_path / "saved", "from_step": SAVED}
    options = ("--resume", str(tmp_path / "saved"), "--from-step", str(SAVED))
    again = read_run(_by_command(cluster, colocated, tmp_path / "again", *options))
    assert again.metrics["loss"].tolist() == expected[SAVED:], "bit for bit under the same layout"
    assert again.metrics["iteration"].tolist() == [*range(SAVED, LAST)]
    assert again.info["status"] == "completed"
    sharded = digits_config((1, 4), (1, 4), num_iterations=LAST, num_microbatches=2)
    for sizes in sharded.model.module_parallelisms.values():
        sizes.use_distributed_optimizer = True
    sharded.model.module_parallelisms["language_module"].use_megatron_fsdp = True
    alone = digits_config(num_iterations=LAST, num_microbatches=2)
    others = {
        "one process": alone,
        "sharded states": sharded,
        "a pipeline apart": alone.with_layout(
            "heterogeneous",
            images={"data_parallel": 1},
            language_module={"pipeline_parallel": 2, "data_parallel": 1},
        ),
    }
    for name, other in others.items():
        resumed = _losses(cluster, other, directory=tmp_path / name, **resume)
        assert resumed == pytest.approx(expected[SAVED:], rel=1e-5), name
    larger = digits_config(num_iterations=LAST, num_microbatches=2)
    larger.model.module_architectures["images"].num_layers = 2
    with pytest.raises(ConfigError, match=r"of another model: it lacks images/enc.*layers\.1"):
        train(cluster, larger, directory=tmp_path / "larger", **resume)  # before any rank works
    changed = digits_config(num_iterations=LAST, num_microbatches=2, seed=1)
    with pytest.raises(RankError, match=r"data have changed \(runtime.seed is 1, was 1234"):
        _losses(cluster, changed, directory=tmp_path / "changed", **resume)


STRATEGIES = (
    StrategyConfig(name="diloco", replicas=2, H=2),  # an outer step before the checkpoint
    StrategyConfig(name="sparta", replicas=2, p_sparta=0.1, delay=2),
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=[one.name for one in STRATEGIES])
def test_replicas_go_on_bit_for_bit_with_what_they_exchange(
    cluster: EngineCluster, strategy: StrategyConfig
) -> None:
    """Outer weights and their momentum, sums under way."""
    config = digits_config(num_microbatches=2)
    config.strategy = strategy
    report = resume_check(cluster, config)
    assert report.passed, report.findings
    assert report.tolerance == 0.0


def test_an_exchange_that_starts_again_is_found(cluster: EngineCluster) -> None:
    config = digits_config(num_microbatches=2)
    config.strategy = STRATEGIES[0]
    with planted(cluster, seams.KEEP_EXCHANGE, lambda original: lambda self, saved: None, 2):
        report = resume_check(cluster, config)
    assert any("After the steps that follow, " in finding for finding in report.findings)


class _Unused:
    """A cluster of one whose runs say where they save, and go no further."""

    def __len__(self) -> int:
        return 1

    def run(
        self, function: Any, plan: Any, config: ExperimentConfig, *more: Any, **named: Any
    ) -> Any:
        assert config.runtime.checkpoint is not None
        assert Path(config.runtime.checkpoint.directory or "").is_dir()
        raise FileNotFoundError(config.runtime.checkpoint.directory)


def test_a_resume_check_saves_where_all_hosts_do(tmp_path: Path) -> None:
    shared, unused = tmp_path / "shared", cast(Any, _Unused())
    for settings, within in ((CheckpointConfig(directory=str(shared)), shared), (None, Path("/"))):
        with pytest.raises(FileNotFoundError) as error:
            resume_check(unused, digits_config(checkpoint=settings))
        folder = Path(str(error.value))
        assert folder.is_relative_to(within)
        assert folder.match(f".*{PARTIAL}"), "a name that a run removes"
        assert not folder.exists()
    (tmp_path / "file").write_text("")
    beneath_a_file = digits_config(checkpoint=CheckpointConfig(directory=f"{tmp_path}/file/below"))
    with pytest.raises(ConfigError, match="it cannot be written"):
        resume_check(unused, beneath_a_file)


SAVES = CheckpointConfig(interval=4, keep=9)
STEPS = 10


def two_steps_later(write: Callable[..., None]) -> Callable[..., None]:
    """Let a rank write a checkpoint when it has trained two steps more; the last one at once."""

    def write_later(self: Any, *files: Any) -> None:
        saved, deadline = self._content.update["learning_rate_steps"], time.monotonic() + 120
        while self._update.progress()["learning_rate_steps"] < min(saved + 2, STEPS):
            if time.monotonic() > deadline:
                raise OSError("training waits for its checkpoint")
            time.sleep(0.005)
        write(self, *files)

    return write_later


def test_training_goes_on_while_a_checkpoint_is_written(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    """The checkpoint is that of its step, whatever training has done to the weights since."""
    config = digits_config((1, 2), (2, 1), num_iterations=STEPS)
    with planted(cluster, seams.WRITE_CHECKPOINT, two_steps_later, 2):
        train(
            cluster, config, evaluations=QUICK, directory=tmp_path / "late", checkpoints=SAVES
        ).result()
    train(
        cluster, config, evaluations=QUICK, directory=tmp_path / "soon", checkpoints=SAVES
    ).result()
    late, soon = (steps_in(tmp_path / name / CHECKPOINTS) for name in ("late", "soon"))
    assert list(late) == list(soon) == [4, 8, 10]
    for step in late:
        saved, expected = (read_checkpoint(folders[step]) for folders in (late, soon))
        assert saved.shapes == expected.shapes
        held, wanted = (read_whole(whole, whole.shapes) for whole in (saved, expected))
        assert all(torch.equal(bits(held[name]), bits(wanted[name])) for name in wanted)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor: no state of a generator is equal to itself as a NaN."""
    return tensor.flatten().view(torch.uint8)


def test_a_killed_rank_costs_the_steps_since_the_last_checkpoint(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    """Rows leave a rank before a checkpoint after them is whole: nothing else sends them here."""
    config = digits_config((1, 2), (2, 1), num_iterations=40)
    process = cluster.run(os.getpid, world_size=2)[1]
    with planted(cluster, seams.WAKE_SENDER, lambda _: lambda self, sender: None, 2):
        run = train(
            cluster, config, directory=tmp_path, checkpoints=5, restarts=2, evaluations=QUICK
        )
        while not steps_in(tmp_path / CHECKPOINTS):
            time.sleep(0.005)
        os.kill(process, signal.SIGKILL)
        steps = run.result().steps
    (restart,) = run.restarts
    assert 5 <= restart.resumed <= restart.step
    assert "SIGKILL" in restart.cause
    assert len(steps) == 80, "every row once"
    read = read_run(tmp_path)
    assert read.metrics["iteration"].tolist() == [*range(40)]
    assert read.info["restarts"][0]["resumed"] == restart.resumed
