"""A MiMo trains in any layout as it does in plain torch, its layers of further tokens as well."""

import functools

from mimokit.experiment import compute_oracle, verify
from tests import seams
from tests.hugging_face_oracle import of_hugging_face
from tests.mimo import LANGUAGE, further_loss_of, logits_of, mimo_config, model_of
from tests.planted import planted
from tests.whole_runs import whole_runs

STEPS = 2
ONE = {"data_parallel": 1}


@functools.cache
def _expected(cluster, tied=False):
    config = mimo_config(ONE, tied)
    oracle = compute_oracle(cluster, config, steps=STEPS)
    trained, _ = of_hugging_face(oracle, model_of(config), logits_of, STEPS, further_loss_of)
    return trained


@whole_runs("a whole MiMo")
def test_it_trains_as_in_plain_torch(cluster, run):
    config = run.make()
    oracle = _expected(cluster, config.model.get_architecture(LANGUAGE).tied_embeddings)
    report = verify(cluster, config, steps=run.steps, oracle=oracle)
    assert report.passed, report.verdict


def _as_they_are(original):
    """Plant: the halves of the matrix that joins two vectors are not exchanged."""
    return lambda weights, name, tensor: weights.copy(name, tensor)


def test_halves_that_are_not_swapped_are_found(cluster):
    oracle = _expected(cluster)
    with planted(cluster, seams.SWAP_HALVES, _as_they_are, 1):
        report = verify(cluster, mimo_config(ONE), steps=1, oracle=oracle)
    assert report.loss_differences[0] < 1e-5, "the loss of the model itself is right"
    assert report.gradient_differences[0][LANGUAGE] > 1e-3
    assert not report.passed
