"""A whole LLaVA computes in any layout what Hugging Face computes, and trains as it does there."""

import functools

import torch

from mimokit.experiment import compute_oracle, verify
from tests import seams
from tests.hugging_face_oracle import assert_is_hugging_face, of_hugging_face
from tests.llava import llava_checkpoint, llava_config, logits_of
from tests.planted import planted, replacing
from tests.whole_runs import whole_runs

STEPS = 2
ONE = {"data_parallel": 1}


@functools.cache
def _expected(cluster, variant):
    from transformers import LlavaForConditionalGeneration

    config = llava_config(variant, "homogeneous", ONE, ONE)
    oracle = compute_oracle(cluster, config, steps=STEPS)
    model = LlavaForConditionalGeneration.from_pretrained(
        llava_checkpoint(variant), dtype=torch.float32
    )
    return of_hugging_face(oracle, model, logits_of, STEPS)


@whole_runs("a whole LLaVA")
def test_it_computes_and_trains_as_hugging_face_does(cluster, run):
    config = run.make()
    oracle, expected = _expected(cluster, run.make.args[0])
    assert_is_hugging_face(cluster, config, oracle, expected, run.steps)


@replacing
def _with_the_class_token(original, self, hidden, sizes=None):
    """Keep the class token in place of the last patch."""
    return original(self, torch.cat([hidden[-1:], hidden[:-1]]), sizes)


def test_a_class_token_in_place_of_a_patch_is_found(cluster):
    config = llava_config("clip", "homogeneous", ONE, ONE)
    oracle, _ = _expected(cluster, "clip")
    with planted(cluster, seams.FINISH_IMAGES, _with_the_class_token, 1):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert not report.passed
