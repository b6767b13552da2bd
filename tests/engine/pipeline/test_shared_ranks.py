"""Encoders on the ranks of a language model that is cut into stages: one process computes it."""

from __future__ import annotations

import pytest

from mimokit.config import ConfigError
from mimokit.config.user_code import checked_code
from tests.invariance import assert_computes_the_same
from tests.layouts_pipelines import shared_pipeline
from tests.whole_runs import AROUND, whole_runs


@whole_runs("pipelines on shared ranks")
def test_pipelines_on_shared_ranks(cluster, run):
    assert_computes_the_same(cluster, run.make())


@whole_runs("chunks and orders")
def test_chunks_and_orders(cluster, run):
    assert_computes_the_same(cluster, run.make())


def test_a_forward_step_does_not_know_encoders_beside_a_stage():
    config = shared_pipeline("homogeneous", (2, 2, 2), AROUND, 2)
    with pytest.raises(ConfigError, match="with forward_step in homogeneous mode; change"):
        checked_code(config, forward_step=lambda iterator, model: None)
