"""Every layout computes what one process computes, and the check of it catches faults."""

from __future__ import annotations

import pytest

from mimokit.cluster import RankError
from mimokit.experiment import verify
from tests.layouts import digits_config

# (encoder TP, DP), (language TP, DP)
LAYOUTS = [
    ((1, 4), (1, 4)),
    ((2, 2), (2, 2)),
    ((4, 1), (4, 1)),
    ((1, 4), (4, 1)),
    ((2, 2), (4, 1)),
    ((1, 4), (2, 2)),
    ((4, 1), (1, 4)),
    ((2, 2), (1, 4)),
    ((1, 8), (8, 1)),
    ((2, 4), (4, 2)),
]


def _name(layout):
    (encoder_tensor, encoder_data), (language_tensor, language_data) = layout
    return f"TP{encoder_tensor}DP{encoder_data}-TP{language_tensor}DP{language_data}"


@pytest.mark.parametrize("num_microbatches", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=_name)
def test_layout_computes_what_one_process_computes(cluster, layout, num_microbatches):
    report = verify(cluster, digits_config(*layout, num_microbatches=num_microbatches))
    assert len(report.losses) == 5
    assert report.data.startswith("digits")
    assert report.max_loss_difference <= 1e-5
    assert report.max_gradient_difference <= 1e-5
    assert report.max_weight_difference <= 1e-5
    assert report.passed


def test_the_oracle_takes_real_steps(cluster):
    report = verify(cluster, digits_config((1, 2), (2, 1)))
    assert report.losses[-1] < report.losses[0] - 0.05


def _zero_pad_the_gradient():
    """Plant: fan-out's backward leaves the siblings' rows zero, as if DDP would add them up."""
    from mimokit.engine.colocated import bridge

    def zero_padded(gradient, cuts, group):
        whole = gradient.new_zeros((cuts.total, *gradient.shape[1:]))
        start = cuts.starts[cuts.position]
        whole[start : start + cuts.sizes[cuts.position]] = gradient
        return whole

    bridge.gather_rows, bridge.kept_gather_rows = zero_padded, bridge.gather_rows


def _mend_the_gradient():
    from mimokit.engine.colocated import bridge

    bridge.gather_rows = bridge.kept_gather_rows


def test_check_catches_a_zero_padded_gradient(cluster):
    cluster.run(_zero_pad_the_gradient, world_size=4)
    try:
        report = verify(cluster, digits_config((4, 1), (1, 4)), steps=1)
        # One step later the encoder's replicas have drifted apart, and the bridge sees it.
        with pytest.raises(RankError, match="differs between its tensor-parallel ranks"):
            verify(cluster, digits_config((4, 1), (1, 4)), steps=2)
    finally:
        cluster.run(_mend_the_gradient, world_size=4)
    assert report.loss_differences[0] <= 1e-5, "the forward pass is right"
    assert report.gradient_differences[0]["images"] > 1e-2
    assert not report.passed
    assert "does NOT" in report.verdict


def _step_before_reducing():
    """Plant: the optimizer steps on what this rank alone has summed."""
    from mimokit.engine.training import loop as training

    def unreduced(modules):
        for module, _ in modules:
            module.scale_gradients(1.0 / 64)  # the same on all tensor-parallel ranks
        return 64

    training.finalize_model_grads, training.kept_finalize = (
        unreduced,
        training.finalize_model_grads,
    )


def _reduce_again():
    from mimokit.engine.training import loop as training

    training.finalize_model_grads = training.kept_finalize


def test_check_catches_a_step_on_unreduced_gradients(cluster):
    cluster.run(_step_before_reducing, world_size=4)
    try:
        report = verify(cluster, digits_config((2, 2), (2, 2)), steps=2)
    finally:
        cluster.run(_reduce_again, world_size=4)
    assert report.gradient_differences[0]["language_module"] > 1e-2
    assert report.weight_differences[0]["language_module"] > 1e-5
    assert not report.passed


def _forget_the_update():
    from mimokit.engine.parallel import optimizer

    optimizer.MainGradAdamW.kept_step = optimizer.MainGradAdamW.step
    optimizer.MainGradAdamW.step = lambda self, closure=None: None


def _update_again():
    from mimokit.engine.parallel import optimizer

    optimizer.MainGradAdamW.step = optimizer.MainGradAdamW.kept_step


def test_check_catches_an_optimizer_that_never_updates(cluster):
    cluster.run(_forget_the_update, world_size=4)
    try:
        report = verify(cluster, digits_config((1, 2), (1, 2)), steps=2)
    finally:
        cluster.run(_update_again, world_size=4)
    assert report.gradient_differences[0]["language_module"] <= 1e-5
    assert report.weight_differences[0]["language_module"] > 1e-2
    assert not report.passed
