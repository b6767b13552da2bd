"""Runs that go on from a checkpoint, and resumes with faults, each of which is named."""

from __future__ import annotations

from pathlib import Path

from mimokit.cluster import EngineCluster
from mimokit.config import ExperimentConfig
from mimokit.experiment import train
from mimokit.experiment.prepare import prepared
from mimokit.experiment.resume_proof import find_differences
from mimokit.planning import plan_layout
from tests.engine.checkpoints.resumes import resumes_with_faults
from tests.layouts import digits_config

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
    return prepared(config)


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


def _losses(cluster: EngineCluster, config: ExperimentConfig, **given: object) -> list[float]:
    steps = train(cluster, config, **given).result().steps  # type: ignore[arg-type]
    return steps.groupby("iteration").loss.first().tolist()
