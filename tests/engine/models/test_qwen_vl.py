"""A whole Qwen-VL computes in any layout what Hugging Face does, and trains as it does there."""

import functools

from mimokit.experiment import compute_oracle, verify
from tests import seams
from tests.hugging_face_oracle import assert_is_hugging_face, of_hugging_face
from tests.planted import planted, replacing
from tests.qwen_vl import logits_of, model_of, qwen_config
from tests.whole_runs import whole_runs

STEPS = 2
ONE = {"data_parallel": 1}


@functools.cache
def _expected(cluster, kind):
    config = qwen_config(kind, "homogeneous", ONE, ONE)
    oracle = compute_oracle(cluster, config, steps=STEPS)
    return of_hugging_face(oracle, model_of(kind), logits_of, STEPS)


@whole_runs("a whole Qwen-VL")
def test_it_computes_and_trains_as_hugging_face_does(cluster, run):
    config = run.make()
    oracle, expected = _expected(cluster, run.make.args[0])
    assert_is_hugging_face(cluster, config, oracle, expected, run.steps)


@replacing
def _in_another_order(original, weights, kind, projector, file, ours):
    """Plant: the mergers of two inner layers are exchanged."""
    return original(weights, kind, projector, file.translate({48: "1", 49: "0"}), ours)


def test_mergers_in_another_order_are_found(cluster):
    config = qwen_config("qwen3_vl", "homogeneous", ONE, ONE)
    oracle, _ = _expected(cluster, "qwen3_vl")
    with planted(cluster, seams.ADD_MERGER, _in_another_order, 1):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] > 1e-4
    assert not report.passed
