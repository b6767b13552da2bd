"""A whole LLaVA computes in any layout what Hugging Face computes, and trains as it does there."""

from __future__ import annotations

import functools

import torch

import mimokit
from mimokit.experiment import compute_oracle, verify
from tests.llava import VOCABULARY, llava_checkpoint, llava_config, of_hugging_face
from tests.planted import planted
from tests.whole_runs import whole_runs

STEPS = 2
ONE = {"data_parallel": 1}


def _logits(plan, config):
    """Return (data rank, tensor rank, logits) of one step of training; None on other ranks."""
    from mimokit.engine.data.sources import default_data
    from mimokit.engine.steps import exhaust
    from mimokit.engine.training.loop import prepared, training_step

    found = []
    with prepared(plan, config, default_data) as state:
        wrapped = state.model.modules().get("language_module")
        if wrapped is not None and wrapped.module.post_process:
            wrapped.module.output_layer.register_forward_hook(
                lambda layer, given, made: found.append(made[0].detach().clone())
            )
        exhaust(training_step(state))
        if not found:
            return None
        groups = state.model.pg_collections["language_module"]
        return groups.dp.rank(), groups.tp.rank(), torch.cat(found, dim=1)


@functools.cache
def _expected(cluster, variant):
    config = llava_config(variant, "homogeneous", ONE, ONE)
    oracle = compute_oracle(cluster, config, steps=STEPS)
    return of_hugging_face(oracle, llava_checkpoint(variant), STEPS)


@whole_runs("a whole LLaVA")
def test_it_computes_and_trains_as_hugging_face_does(cluster, run):
    config = run.make()
    oracle, expected = _expected(cluster, run.make.args[0])
    plan = mimokit.plan(config)
    parts = [one for one in cluster.run(_logits, plan, config, world_size=plan.world_size) if one]
    rows = [
        torch.cat(
            [part for data, _, part in sorted(parts, key=lambda one: one[:2]) if data == at], 2
        )
        for at in sorted({data for data, _, _ in parts})
    ]
    logits = torch.cat(rows, dim=1)[..., :VOCABULARY].transpose(0, 1)
    assert float((logits - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    report = verify(cluster, config, steps=run.steps, oracle=oracle)
    assert report.data.startswith("digits")
    assert report.passed, report.verdict


def _with_the_class_token(original):
    """Keep the class token in place of the last patch."""

    def finish(self, hidden, sizes=None):
        return original(self, torch.cat([hidden[-1:], hidden[:-1]]), sizes)

    return finish


def test_a_class_token_in_place_of_a_patch_is_found(cluster):
    config = llava_config("clip", "homogeneous", ONE, ONE)
    oracle, _ = _expected(cluster, "clip")
    fault = "mimokit.engine.models.vision.VisionTransformer.finish"
    with planted(cluster, fault, _with_the_class_token, 1):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert not report.passed
