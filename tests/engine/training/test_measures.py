"""What a run measures: parts that add up, waiting, validation, FLOP/s, profiles, TensorBoard."""

import gzip
import json
import time
from typing import Any

import pandas as pd
import pytest

import mimokit
from mimokit.analysis import read_run
from mimokit.cluster import RankError
from mimokit.experiment import train
from mimokit.prediction.hardware import load_hardware
from tests import seams
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.planted import planted
from tests.rank_steps import state_of
from tests.rows import rows

SLEEP = 1.5
"""Long, so that a busy machine does not take as long for something else."""
COLOCATED = ((1, 4), (2, 2))
RUNTIME: dict[str, Any] = {
    "num_iterations": 4,
    "warmup_iterations": 1,
    "validation": {"interval": 2, "samples": 13},
}


def _config(encoder, language, **runtime):
    from mimokit.config.runtime import ValidationConfig

    validation = ValidationConfig(**RUNTIME["validation"])
    return digits_config(encoder, language, **{**RUNTIME, "validation": validation, **runtime})


@pytest.fixture(scope="module")
def run(shared_cluster, tmp_path_factory):
    """A run on four colocated ranks that measures everything, and its folder."""
    folder = tmp_path_factory.mktemp("measured")
    config = _config(
        *COLOCATED,
        hardware="h100",
        loggers=["tensorboard"],
        enable_profiling=True,
        use_pytorch_profiler=True,
        profile_start_step=1,
        profile_end_step=3,
    )
    train(shared_cluster.get(), config, evaluations=QUICK, directory=folder).result()
    return config, read_run(folder)


# Parts of a step.


def test_parts_of_a_step_add_up_on_every_rank(run):
    _, tables = run
    rows = tables.metrics_by_rank
    traffic = rows["collective_time"] + rows["point_to_point_time"]
    assert traffic.tolist() == pytest.approx(rows["communication_time"].tolist())
    phases = ("forward", "backward", "communication", "optimizer", "data", "report")
    known = sum(rows[f"{phase}_time"] for phase in phases)
    assert (known <= rows["total_time"]).all()
    assert (rows["waiting_time"] <= rows["communication_time"]).all()
    assert (rows["waiting_time"].groupby(rows["iteration"]).max() > 0).all(), "one rank is last"
    for phase in ("optimizer", "collective"):
        of_modules = sum(rows[f"{module}_{phase}_time"] for module in ("images", "language_module"))
        assert (of_modules > 0).all()
        assert (of_modules <= rows[f"{phase}_time"]).all()
    assert rows["warmup"].tolist() == [1.0] * 4 + [0.0] * 12
    assert (rows["memory_peak"] >= rows["memory_allocated"]).all()
    assert (rows["memory_allocated"] <= rows["memory_reserved"]).all()


def _slow_encoder(original):
    """Rank 0 takes long for its encoder, in the second iteration."""
    calls = []

    def slow(stage, given):
        import torch.distributed as dist

        if stage.name == "images":
            calls.append(None)
        if dist.get_rank() == 0 and stage.name == "images" and len(calls) == 2:
            time.sleep(SLEEP)
        return original(stage, given)

    return slow


def test_ranks_wait_for_a_slow_one_at_the_bridge_and_at_the_reduction(cluster, tmp_path):
    config = digits_config(*COLOCATED, num_iterations=2)
    with planted(cluster, seams.STAGE_FORWARD, _slow_encoder, 4):
        steps = train(cluster, config, evaluations=QUICK, directory=tmp_path).result().steps
    rows = steps[steps["iteration"] == 1].set_index("rank")
    waited, transferred = rows["waiting_time"], rows["collective_time"] - rows["waiting_time"]
    assert (waited[1:] > SLEEP / 2).all(), "rank 1 at the bridge, ranks 2 and 3 at the reduction"
    least = waited[1:].min()
    assert (transferred[1:] < least).all()
    assert waited[0] < least
    assert rows["images_waiting_time"][1] > SLEEP / 2
    assert rows["images_waiting_time"][2] < least


def _slow_stage(original):
    """The encoder's stage takes long to compute the first micro-batch of the second iteration."""
    calls = []

    def slow(stage, given):
        calls.append(None)
        if stage.name == "images" and len(calls) == 3:
            time.sleep(SLEEP)
        return original(stage, given)

    return slow


def test_a_stage_waits_for_a_slow_one_and_its_messages_take_no_longer(cluster, tmp_path):
    config = apart_config((1, 1, 1), (2, 1, 1), 2, num_iterations=2)
    with planted(cluster, seams.STAGE_FORWARD, _slow_stage, 3):
        steps = train(cluster, config, evaluations=QUICK, directory=tmp_path).result().steps
    rows = steps[steps["iteration"] == 1].set_index("rank")
    assert rows["forward_time"][0] > SLEEP
    for rank in (1, 2):
        own = rows.loc[rank]
        assert SLEEP / 2 < own["language_module_waiting_time"] <= own["waiting_time"]
        moved = own["point_to_point_time"] + own["collective_time"] - own["waiting_time"]
        assert moved < own["waiting_time"], "the messages themselves are quick"
        assert own["communication_time"] == pytest.approx(
            own["point_to_point_time"] + own["collective_time"]
        )
    assert rows["waiting_time"][0] < rows["waiting_time"][1:].min()


# Validation.


def _validation(cluster, config, folder) -> pd.Series:
    train(cluster, config, evaluations=QUICK, directory=folder).result()
    return read_run(folder).metrics["validation_loss"]


def test_the_validation_loss_is_that_of_one_process_in_every_layout(cluster, run, tmp_path):
    """13 samples are one whole micro-batch of 8 and a part of another."""
    one = _validation(cluster, _config((1, 1), (1, 1)), tmp_path / "one")
    assert one.notna().tolist() == [False, True, False, True]
    assert one[3] < one[1]
    apart = _config(*COLOCATED).with_layout(
        "heterogeneous",
        images={"tensor_parallel": 1, "data_parallel": 2},
        language_module={"tensor_parallel": 1, "data_parallel": 2},
    )
    separate = _validation(cluster, apart, tmp_path / "apart")
    colocated = run[1].metrics["validation_loss"]
    for found in (colocated, separate):
        assert found.tolist() == pytest.approx(one.tolist(), rel=1e-5, nan_ok=True)
    halves = _config((1, 1), (1, 1))
    halves.data.base_batch_size, halves.data.num_microbatches = 4, 2
    assert _validation(cluster, halves, tmp_path / "halves").tolist() == pytest.approx(
        one.tolist(), rel=1e-5, nan_ok=True
    )


def test_a_validation_without_held_out_samples_is_one_sentence(cluster, tmp_path):
    def without_test(config):
        from dataclasses import replace

        from mimokit.engine.data.sources import default_data

        return replace(default_data(config), test=None)

    config = _config((1, 1), (1, 1))
    with pytest.raises(RankError, match=r"has no held-out samples; give it a test set, or leave"):
        train(cluster, config, without_test, directory=tmp_path / "none").result()
    config.runtime.validation.samples = 100_000
    with pytest.raises(RankError, match=r"samples is 100000, but .* make it at most 10000"):
        train(cluster, config, directory=tmp_path / "many").result()


# FLOP/s.


def _counted_on_rank(plan, config) -> tuple[dict[str, int], float, float]:
    """Return (tokens of modules, FLOPs of the forward pass, FLOPs of a step) as torch counts."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from mimokit.engine.pipeline.steps import forward_backward_steps, forward_steps
    from mimokit.engine.steps import exhaust

    with state_of(plan, config) as state:
        batch = next(state.iterator)
        with FlopCounterMode(display=False) as ahead, torch.no_grad():
            (loss,) = exhaust(forward_steps(iter([batch]), state.model))
        with FlopCounterMode(display=False) as both:
            exhaust(forward_backward_steps(iter([batch]), state.model))
    return loss.module_tokens, ahead.get_total_flops(), both.get_total_flops()


def _summed_on_rank():
    import torch.distributed as dist

    from mimokit.engine.training.step_counts import sum_numbers

    return sum_numbers({"ones": [1.0, dist.get_rank()], "tenth": [0.1 * (dist.get_rank() == 1)]})


def test_numbers_of_all_ranks_are_summed_on_each(cluster):
    assert cluster.run(_summed_on_rank, world_size=3) == [{"ones": [3.0, 3.0], "tenth": [0.1]}] * 3


@pytest.mark.parametrize(
    ("tensor", "fields"),
    [(1, {}), (2, {"num_query_groups": 2, "gated_linear_unit": True, "add_bias_linear": False})],
)
def test_flops_are_those_that_torch_counts_on_the_real_modules(cluster, tensor, fields):
    from mimokit.architecture import model_of_config
    from mimokit.architecture.flops import forward_flops
    from mimokit.engine.training.flops import StepFlops

    config = digits_config((tensor, 1), (tensor, 1))
    networks = config.model.module_architectures
    networks["language_module"] = networks["language_module"].model_copy(update=fields)
    plan = mimokit.plan(config)
    tokens, ahead, both = cluster.run(_counted_on_rank, plan, config, world_size=tensor)[0]
    model = model_of_config(config.model)
    language = forward_flops(model.language, 42, tokens["language_module"] / 42)
    encoder = forward_flops(model.branches[0], 4, tokens["images"] / 4)
    # Megatron's unfused attention computes the masked half as well.
    sharded = encoder.total - encoder.first + language.total + language.core
    assert encoder.first + sharded / tensor == ahead
    # No gradient of the pixels is needed.
    assert 3 * ahead - encoder.first == both
    flops = StepFlops(config, plan, 0)
    assert flops.of_modules(tokens) == pytest.approx(
        {"images": 3 * encoder.total, "language_module": 3 * language.total}
    )
    assert flops.of_rank(tokens) == pytest.approx(3 * (encoder.total + language.total) / tensor)


@rows("config", digits_config(*COLOCATED), apart_config((2, 1, 2), (1, 3, 1), 2))
def test_the_ranks_together_do_what_the_modules_do(config):
    from mimokit.engine.training.flops import StepFlops

    plan, tokens = mimokit.plan(config), {"images": 640, "language_module": 4200}
    ranks = [StepFlops(config, plan, rank).of_rank(tokens) for rank in range(plan.world_size)]
    whole = StepFlops(config, plan, 0).of_modules(tokens)
    assert sum(ranks) == pytest.approx(sum(whole.values()))


def test_rates_and_utilisation_of_a_run(run):
    _, tables = run
    rows = tables.metrics_by_rank
    peak = load_hardware("h100").peak_flops["fp32"]
    modules = ("images", "language_module")
    whole = sum(rows[f"{module}_flops_per_sec"] for module in modules)
    assert rows["model_flop_utilisation"].tolist() == pytest.approx((whole / (4 * peak)).tolist())
    done = (rows["flops_per_sec"] * rows["total_time"]).groupby(rows["iteration"]).sum()
    counted = (whole * rows["total_time"]).groupby(rows["iteration"]).first()
    assert done.tolist() == pytest.approx(counted.tolist())
    for module in modules:
        assert rows[f"{module}_samples_per_sec"].tolist() == rows["samples_per_sec"].tolist()
    reduced = rows.groupby("iteration")["flops_per_sec"].mean()
    assert tables.metrics["flops_per_sec"].tolist() == pytest.approx(reduced.tolist())


# Files.


def test_every_rank_leaves_a_profile_in_the_run_s_folder(run):
    _, tables = run
    files = sorted((tables.directory / "profile").iterdir())
    assert [file.name.split(".")[0] for file in files] == [f"rank{rank}" for rank in range(4)]
    for file in files:
        assert file.name.endswith(".pt.trace.json.gz")
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        steps = {e["name"] for e in events if str(e.get("name")).startswith("ProfilerStep")}
        assert steps == {"ProfilerStep#1", "ProfilerStep#2"}


def test_tensorboard_has_all_scalars_in_groups(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, tables = run
    board = EventAccumulator(str(tables.directory / "tensorboard"))
    board.Reload()
    tags = board.Tags()["scalars"]
    written = {tag.split("/")[1] for tag in tags if not tag.startswith("evaluation/")}
    assert written == set(tables.metrics.columns) - {"iteration", "time"}
    expected = {
        "time/waiting_time",
        "memory/memory_peak",
        "throughput/model_flop_utilisation",
        "loss/validation_loss",
        "training/grad_norm",
        "images/images_forward_time",
        "evaluation/exact_match",
    }
    assert expected <= set(tags)
    losses = [event.value for event in board.Scalars("loss/loss")]
    assert losses == pytest.approx(tables.metrics["loss"].tolist())
    assert [event.step for event in board.Scalars("loss/validation_loss")] == [1, 3]
