"""`explain` names the first tensor that a layout computes wrongly, and what it is instead."""

from dataclasses import replace

import pytest

from mimokit.config import StrategyConfig
from mimokit.experiment import compute_reference, explain
from mimokit.experiment.tolerances import ALLOWED, allowed_of
from mimokit.planning.seams import Seam, SeamPhase
from mimokit_widgets import show_culprit
from tests import seams
from tests.experiment.culprit.faults import FAULTS
from tests.experiment.culprit.faults.fault import STEPS, reference_of
from tests.experiment.culprit.faults.layouts import fan_in, parts
from tests.experiment.culprit.reports import CULPRIT
from tests.layouts import digits_config
from tests.layouts_drawn import numbered_config
from tests.layouts_experts import experts_config
from tests.planted import planted, replacing
from tests.whole_runs import latent_config, samples_in_another_order, with_sizes

QUICK = (
    "attention of a wrong scale on one rank",
    "replicas that drop the same",
    "gradients are not reduced",
)
"""`python -m benchmarks.culprit` plants all of the list."""


def test_a_right_layout_has_no_culprit(cluster):
    config = fan_in()
    right = explain(cluster, config, steps=STEPS, reference=reference_of(cluster, config))
    assert right.passed, right.verdict
    assert right.not_compared == ()
    assert all(one.allowed == allowed_of(one.spread, ALLOWED) for one in right.compared)
    assert len(right.compared) > 200
    assert "a rounding of the weights changes it by" in right.verdict
    assert right.verdict.endswith(" is allowed.")


def test_two_right_layouts_are_compared_by_sketches(cluster):
    config = fan_in()
    reference = reference_of(cluster, config)
    assert reference.recording.wholes == {}, "sketches alone travel"
    both = explain(cluster, config, against=parts(), steps=STEPS, reference=reference)
    assert both.passed, both.verdict
    assert both.against == parts().name


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_fault_is_named(cluster, name):
    (fault,) = (fault for fault in FAULTS if fault.name == name)
    found = fault.explained(cluster)
    assert not fault.wrong(found), fault.wrong(found)
    assert found.is_deterministic
    assert f" It is made at {found.divergence.code}." in found.verdict
    assert len(str(found).splitlines()) <= 20
    assert str(found).splitlines()[-1].strip()


def test_weights_that_begin_unlike_need_no_step(cluster):
    (fault,) = (fault for fault in FAULTS if fault.name == "weights of another seed")
    assert not fault.wrong(fault.explained(cluster))


INSIDE = (
    "tokens go to the experts of others", "tokens take all of an expert",
    "the gradient from the second matrix of experts is doubled",
    "activation of a projector is scaled",
)  # fmt: skip


def _recorders_left() -> int:
    import gc

    gc.collect()
    return sum(type(one).__name__ == "Recorder" for one in gc.get_objects())


def test_what_is_wrong_inside_of_experts_and_projectors_is_named(cluster):
    """Experts on two ranks that share sequences and compute layers again; then planted faults."""
    config = experts_config((1, 1, 2), (2, 1, 1))
    config = with_sizes(config, ("language_module",), recompute_granularity="full")
    right = explain(cluster, config, steps=STEPS)
    assert right.passed, right.verdict
    assert right.not_compared == ()
    assert cluster.run(_recorders_left, world_size=2) == [0, 0], "nothing keeps a model"
    inside = {one.seam.operation.rpartition(".")[2] for one in right.compared}
    assert inside >= {"logits", "routing", "dispatch", "activation", "combine", "linear_fc2"}
    for fault in (fault for fault in FAULTS if fault.name in INSIDE):
        found = fault.explained(cluster)
        assert not fault.wrong(found), f"{fault.name}: {fault.wrong(found)}"


def test_heads_of_latent_attention_are_compared_in_the_widths_of_queries_and_values(cluster):
    config = latent_config()
    right = explain(cluster, config, steps=STEPS, reference=reference_of(cluster, config))
    assert right.passed, right.verdict
    assert right.not_compared == ()
    (fault,) = (fault for fault in FAULTS if "queries of latent attention" in fault.name)
    found = fault.explained(cluster)
    assert not fault.wrong(found), fault.wrong(found)


def test_a_right_layout_whose_replicas_have_no_items_has_no_culprit(cluster):
    config = numbered_config(13)
    config.strategy = None
    report = explain(cluster, config.finalize(), steps=1)
    assert report.passed, report.verdict


def test_samples_in_a_row_are_compared_layer_by_layer(cluster):
    """Right experts on ranks that share a row and its stages; decoders; then a planted fault."""
    right = explain(cluster, numbered_config(197), steps=1)
    assert right.passed, right.verdict
    assert right.not_compared == ()
    (fault,) = (fault for fault in FAULTS if fault.name == "a sample of a row sees the one before")
    found = fault.explained(cluster)
    assert not fault.wrong(found), fault.wrong(found)


def test_right_decoders_of_packed_samples_have_no_culprit(cluster):
    config = numbered_config(92)
    model = config.model
    assert config.data.pack_sequences_in_batch
    assert model.topology["language_module"] == ["writer"]
    model.module_parallelisms["reader"] = model.module_parallelisms["writer"].model_copy(
        update={"rank_offset": model.total_world_size}
    )
    model.module_architectures["reader"] = model.module_architectures["writer"].model_copy()
    model.topology["language_module"] = ["writer", "reader"]
    report = explain(cluster, config.finalize(), steps=1)
    assert report.passed, report.verdict
    given = {one.seam.operation for one in report.compared if one.seam.module == "language_module"}
    assert given >= {"rows", "rows for writer", "rows for reader", "bridge"}


def test_the_step_of_the_first_wrong_tensor_opens_in_the_stepper(cluster, monkeypatch):
    shown = []
    monkeypatch.setattr(seams.DISPLAY_CULPRIT, shown.append)
    for seam, step in (
        (Seam(0, "images", "decoder.layers.0", SeamPhase.BACKWARD), "backward of images"),
        (Seam(1, "language_module", "weight", SeamPhase.REDUCED), "grad-sync"),
    ):
        first = replace(CULPRIT.divergence, found=replace(CULPRIT.divergence.found, seam=seam))
        view = show_culprit(cluster, fan_in(), replace(CULPRIT, divergence=first))
        now = view.stepper.now
        assert str(now.tick.steps[0]).startswith(step)
        assert now.iteration == seam.step
        assert view.selected == 1, "the rank that deviates"
        view.stepper.close()
    assert len(shown) == 6


def test_an_operation_that_is_not_deterministic_is_said_first(cluster):
    config = fan_in()
    with planted(cluster, seams.MEGATRON_ATTENTION, _noisy, 1):
        reference = compute_reference(cluster, config, steps=STEPS, nudges=())
    assert not reference.is_deterministic
    report = explain(cluster, config, steps=STEPS, reference=reference)
    assert report.verdict.startswith("Two runs of one process gave different numbers: an operation")


@replacing
def _noisy(original, *args, **named):
    import time

    return original(*args, **named) * (1 + 1e-3 * (time.perf_counter_ns() % 997) / 997)


def test_layouts_of_different_models_are_not_compared(cluster):
    other = digits_config((1, 1), (1, 1), seed=7)
    with pytest.raises(ValueError, match=r"do not compute the same .* differ in runtime\.seed"):
        explain(cluster, parts(), against=other)


def test_what_is_not_recorded_is_not_explained(cluster):
    replicas = digits_config((1, 1), (1, 1))
    replicas.strategy = StrategyConfig(name="diloco", replicas=2)
    for config, said in (
        (samples_in_another_order(), "sample_order balanced, by which ranks read samples in"),
        (replicas.finalize(), "the strategy 'diloco' between replicas, whose exchanges are not"),
    ):
        with pytest.raises(ValueError, match=said):
            explain(cluster, config)
