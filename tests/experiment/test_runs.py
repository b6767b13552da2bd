"""Training runs on the cluster: results, stopping, failing, and what they leave behind."""

import time
from importlib.metadata import version

import pandas as pd
import pytest

from mimokit.analysis import read_run
from mimokit.cluster import RankError
from mimokit.config_files import load_experiment_config
from mimokit.engine import DigitStrips
from mimokit.experiment import Evaluations, train
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.processes import interrupt_in


def _wait_until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def test_a_run_streams_every_step_of_every_rank_and_leaves_its_folder(cluster, tmp_path):
    config = digits_config((1, 4), (2, 2), num_iterations=6)
    seen = []
    run = train(
        cluster,
        config,
        evaluations=Evaluations(interval=3, samples=16, final_samples=32),
        directory=tmp_path / "run",
    )
    run.on_sample(seen.append)
    result = run.result()
    pairs = {(row.iteration, row.rank) for row in result.steps.itertuples()}
    assert pairs == {(iteration, rank) for iteration in range(6) for rank in range(4)}
    assert len(seen) == len(run.samples) == 6 * 4 + 2
    assert result.evaluations["iteration"].tolist() == [2, 5]
    assert result.evaluations["samples"].tolist() == [16, 32]
    assert 0 <= result.evaluations["exact_match"].iloc[-1] <= 1
    assert result.steps.groupby("iteration")["loss"].nunique().tolist() == [1] * 6

    tables = read_run(result.directory)
    assert tables.metrics["iteration"].tolist() == list(range(6))
    assert len(tables.metrics_by_rank) == 24
    assert tables.info["world_size"] == 4
    assert tables.info["versions"]["megatron-core"] == version("megatron-core")
    again = load_experiment_config(tables.config_file)
    assert again.model.module_parallelisms == config.model.module_parallelisms
    header = (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]
    assert header.startswith(
        "iteration,total_time,forward_time,backward_time,optimizer_time,tokens_per_sec,"
        "samples_per_sec,memory_allocated,memory_reserved,loss"
    )
    first = pd.read_csv(tmp_path / "run" / "metrics.csv").iloc[0]
    assert first["samples_per_sec"] == pytest.approx(8 / first["total_time"], rel=0.05)
    assert first["tokens_per_sec"] == pytest.approx(8 * 42 / first["total_time"], rel=0.05)


def test_the_model_learns(cluster, tmp_path):
    config = digits_config((1, 2), (2, 1), num_iterations=60, learning_rate=3e-3)
    run = train(cluster, config, evaluations=QUICK, directory=tmp_path)
    result = run.result()
    losses = result.steps[result.steps["rank"] == 0]["loss"]
    assert losses.iloc[-5:].mean() < losses.iloc[0] - 0.3

    strips = DigitStrips("test")
    answers = [(strips[number]["answer"], read) for number, read in run.answers.items()]
    right = [
        said == told for answer, read in answers for said, told in zip(answer, read, strict=True)
    ]
    assert len(answers) == QUICK.final_samples
    assert sum(right) / len(right) == pytest.approx(result.evaluations["digit_accuracy"].iloc[-1])


def test_stop_ends_all_ranks_after_the_same_iteration_and_keeps_the_result(cluster, tmp_path):
    config = digits_config((1, 2), (2, 1), num_iterations=100_000)
    run = train(cluster, config, evaluations=QUICK, directory=tmp_path)
    _wait_until(lambda: len(run.samples) > 8, 180)
    run.stop()
    steps = run.result(timeout=300).steps
    last = steps.groupby("rank")["iteration"].max()
    assert last.nunique() == 1
    assert last.iloc[0] < 10_000
    assert run.done


def test_an_interrupted_run_ends_keeps_its_rows_and_the_next_one_trains(cluster, tmp_path):
    """What the notebook's stop button does: KeyboardInterrupt in the thread that waits."""
    config = digits_config((1, 2), (2, 1), num_iterations=100_000)
    run = train(cluster, config, evaluations=QUICK, directory=tmp_path)
    _wait_until(lambda: len(run.samples) > 4, 180)
    interrupt_in("result")
    with pytest.raises(KeyboardInterrupt):
        run.result(timeout=300)
    assert run.done
    assert len(run.result().steps) > 4
    _trains_again(cluster, tmp_path)


def test_a_user_brings_a_data_set_of_their_own(cluster, tmp_path):
    def source(config):
        """Samples of one blank image and the words 1, 2, 3."""
        import torch

        from mimokit.engine.data.sources import TrainingData

        class Blank(torch.utils.data.Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, index):
                return torch.full((8, 8), index / 64)

        def collate(images):
            image_tokens, words = [16] * 4, [1, 2, 3]
            row = torch.tensor(image_tokens + words)
            batch = row.expand(len(images), -1)
            return {
                "input_ids": batch[:, :-1].contiguous(),
                "labels": batch[:, 1:].clamp(max=15),
                "loss_mask": torch.tensor([[0.0, 0, 0, 0, 1, 1]]).expand(len(images), -1),
                "position_ids": torch.arange(6).expand(len(images), -1),
                "modality_inputs": {
                    "images": {
                        "items_per_sample": torch.ones(len(images), dtype=torch.int64),
                        "vit_encoder": {"pixel_values": torch.stack(images)},
                    }
                },
            }

        return TrainingData("blank pages", Blank(), collate, test=Blank(), chance=0.0)

    config = digits_config((1, 2), (2, 1), num_iterations=30, learning_rate=3e-3)
    config.data = config.data.model_copy(update={"dataset_size": 64})
    result = train(cluster, config, source, evaluations=QUICK, directory=tmp_path).result()
    final = result.evaluations.iloc[-1]
    assert final["task"] == "blank pages"
    assert final["exact_match"] == 1.0


class _Dropping:
    """Data of which rank 0 counts one image too many in the third batch."""

    def __call__(self, config):
        import torch.distributed as dist

        from mimokit.engine.data.sources import DigitData, TrainingData

        data = DigitData()(config)
        calls = [0]

        def collate(samples):
            calls[0] += 1
            batch = data.collate_fn(samples)
            if calls[0] == 3 and dist.get_rank() == 0:
                batch["modality_inputs"]["images"]["items_per_sample"][1] += 1
            return batch

        return TrainingData("faulty", data.train, collate)


def _trains_again(cluster, tmp_path):
    config = digits_config((1, 4), (2, 2), num_iterations=2)
    steps = train(cluster, config, evaluations=QUICK, directory=tmp_path / "after").result().steps
    assert len(steps) == 8


def test_images_that_do_not_match_their_tokens_are_refused(cluster, tmp_path):
    config = digits_config((1, 4), (2, 2), num_iterations=5)
    with pytest.raises(RankError, match="Sample 1 of the batch has"):
        train(cluster, config, _Dropping(), directory=tmp_path).result()
