"""Checkpoints that are not as they were saved are refused or passed over, in a sentence each."""

import contextlib
import io
import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimokit.cluster import EngineCluster
from mimokit.config import ConfigError, StrategyConfig
from mimokit.config.runtime import CheckpointConfig
from mimokit.engine.checkpoints.files import read_whole
from mimokit.engine.training.resuming import _saved_state
from mimokit.experiment import train
from mimokit.experiment.checkpoints import verify_checkpoints
from mimokit.planning.checkpoints import DamagedCheckpointError, folder_of_replica, steps_in
from mimokit.result_files import CHECKPOINTS
from tests import seams
from tests.cli.call import call
from tests.engine.checkpoints.damages import DAMAGES, FILES, as_before, at, flip, zero_half
from tests.engine.checkpoints.savers import save_steps
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.planted import planted
from tests.shared_cluster import SharedCluster

READ = "it is read"


@pytest.fixture(scope="module")
def saved(shared_cluster: SharedCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoints of two runs on two ranks, which differ in their seed."""
    folder = tmp_path_factory.mktemp("saved")
    for seed in (1, 2):
        shared_cluster.get().run(save_steps, str(folder / str(seed)), seed, world_size=2)
    shared_cluster.take_back("the checkpoints of two runs")
    return folder


def _read(folder: str) -> tuple[str, str]:
    """Return how this rank goes on from a checkpoint, and what it prints."""
    config = digits_config(resume_from=folder)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            checkpoint = _saved_state(config, None)
            assert checkpoint is not None
            read_whole(checkpoint, checkpoint.shapes)
        except ConfigError as error:
            return str(error), said.getvalue()
    return READ, said.getvalue()


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_not_as_it_was_saved_is_refused_by_all_ranks(
    what: str, saved: Path, cluster: EngineCluster, tmp_path: Path
) -> None:
    damage, sentence = DAMAGES[what]
    shutil.copytree(saved, tmp_path / "saved")
    run, other = (tmp_path / "saved" / seed for seed in "12")
    damage(run, other)
    for said, _ in cluster.run(_read, str(at(run)), world_size=2):
        assert sentence in said
        assert said.startswith(f"Checkpoint '{at(run)}': ")
        assert said.endswith("; go on from an earlier checkpoint.")
        assert len(said.splitlines()) == 1
    assert [said for said, _ in cluster.run(_read, str(at(run, 2)), world_size=2)] == [READ] * 2
    found = verify_checkpoints(run)
    assert sentence in found.found[4]  # type: ignore[operator]
    assert found.files == {2: "whole"}


def test_one_of_before_is_read_with_a_sentence(
    saved: Path, cluster: EngineCluster, tmp_path: Path
) -> None:
    run = shutil.copytree(saved / "1", tmp_path / "run")
    as_before(at(run))
    (first, said), (second, nothing) = cluster.run(_read, str(at(run)), world_size=2)
    assert first == second == READ
    assert f"Checkpoint '{at(run)}' has no digests, as an earlier version" in said
    assert (len(said.splitlines()), nothing) == (1, "")
    assert verify_checkpoints(run).files == {2: "whole", 4: "no digests"}


def test_a_rank_compares_its_own_files_under_the_saved_layout(
    saved: Path, cluster: EngineCluster
) -> None:
    noted = planted(
        cluster, seams.FILE_DIFFERENCE, lambda _: lambda checkpoint, name: f"was read {name}", 2
    )
    with noted:
        ranks = cluster.run(_own_differences, str(at(saved / "1")), world_size=2)
    assert ranks == [[f"{name} was read {name}"] for name in FILES]


def _own_differences(folder: str) -> list[str]:
    import torch.distributed as dist

    from mimokit.planning.checkpoint_files import changed_files, files_of_replica
    from mimokit.planning.checkpoints import read_checkpoint

    checkpoint = read_checkpoint(folder)
    own = files_of_replica(checkpoint, dist.get_rank(), dist.get_world_size())
    return changed_files(checkpoint, own)


def _call(*arguments: str) -> tuple[int, str]:
    done = call(*arguments)
    return done.exit_code, " ".join(done.output.split())


def test_the_command_compares_all_bytes(saved: Path, tmp_path: Path) -> None:
    run = shutil.copytree(saved / "1", tmp_path / "run")
    status, said = _call("checkpoints", str(run), "--verify")
    assert (status, said.count("whole")) == (0, 2)
    flip(at(run) / FILES[1], 0.5)
    assert _call("checkpoints", str(run))[0] == 0, "which compares sizes alone"
    for place in (run, at(run)):
        status, said = _call("checkpoints", str(place), "--verify")
        assert status == 1
        assert f"{FILES[1]} has other bytes than were saved; go on from an earlier" in said
    status, said = _call(
        "export", str(run), "--to", "safetensors", "--output", str(tmp_path / "weights")
    )
    assert status == 2
    assert f"{FILES[1]} has other bytes" in said
    assert not (tmp_path / "weights").exists()


def test_a_run_refuses_a_damaged_checkpoint_in_a_sentence(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    config = digits_config(num_iterations=4)
    first = tmp_path / "first"
    train(cluster, config, evaluations=QUICK, directory=first, checkpoints=2).result()
    before = shutil.copytree(first, tmp_path / "before")
    as_before(at(before / CHECKPOINTS, 2))
    zero_half(at(before / CHECKPOINTS, 2) / FILES[0])
    flip(at(first / CHECKPOINTS, 2) / FILES[0], 0.7)
    said = {
        first: f"{FILES[0]} has other bytes",
        before: "the random states for rank 0 are not those of gen",
    }
    for folder, sentence in said.items():
        resumed = train(cluster, config, directory=tmp_path / "again", resume=folder, from_step=2)
        with pytest.raises(DamagedCheckpointError, match=sentence) as error:
            resumed.result()
        assert len(str(error.value).splitlines()) == 1


FAILING = 6


def _damages_and_fails(folder: Path) -> Callable[[Any], Any]:
    """Return what lets a rank fail once in a step, and leaves checkpoints after step 2 damaged."""

    def make(original: Any) -> Any:
        steps = itertools.count()

        def step(self: Any) -> Any:
            failed = folder / "failed"
            if next(steps) == FAILING and not failed.exists():
                failed.touch()
                for saved_step, directory in steps_in(folder / CHECKPOINTS).items():
                    if saved_step > 2:
                        flip(directory / FILES[0], 0.7)
                raise ArithmeticError("planted")
            return original(self)

        return step

    return make


def test_a_restart_passes_over_what_ranks_find_damaged(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    config = digits_config(num_iterations=8)
    saves = CheckpointConfig(interval=2, keep=9)
    with planted(cluster, seams.STEP_GROUPS, _damages_and_fails(tmp_path), 1):
        run = train(
            cluster, config, evaluations=QUICK, directory=tmp_path, checkpoints=saves, restarts=1
        )
        with pytest.warns(RuntimeWarning, match=r"of step 4 in .*rank_00000_0.* has other bytes"):
            steps = run.result().steps
    assert [(one.step, one.resumed) for one in run.restarts] == [(FAILING, 2)]
    assert steps["iteration"].tolist() == [*range(8)], "every row once"
    assert list(verify_checkpoints(tmp_path).files.values()) == ["whole"] * 4
    assert list((tmp_path / CHECKPOINTS).glob("damaged-step-00000004-*"))


def test_files_and_markers_of_replicas_are_compared(cluster: EngineCluster, tmp_path: Path) -> None:
    config = digits_config(num_iterations=2)
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=2)
    for name in ("run", "other"):
        train(cluster, config, evaluations=QUICK, directory=tmp_path / name, checkpoints=2).result()
    run, other = (tmp_path / name / CHECKPOINTS for name in ("run", "other"))
    assert verify_checkpoints(run).files == {2: "whole"}
    replica = folder_of_replica(1)
    flip(at(run, 2) / replica / FILES[0], 0.7)
    assert f"of 2 files, {replica}/{FILES[0]} has other" in str(verify_checkpoints(run).found[2])
    shutil.rmtree(at(run, 2) / replica)
    shutil.copytree(at(other, 2) / replica, at(run, 2) / replica)
    said = f"{replica} is of another save, of step 2; go on"
    assert said in str(verify_checkpoints(run).found[2])
    longer = digits_config(num_iterations=3)
    longer.strategy = config.strategy
    with pytest.raises(DamagedCheckpointError, match=said):
        train(cluster, longer, directory=tmp_path / "again", resume=tmp_path / "run").result()
