"""Adapters between an encoder and the language model, on ranks of their own."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import mimokit
from mimokit.cluster import RankError
from mimokit.experiment import explain, verify
from mimokit.experiment.reference import single_rank
from mimokit.planning.layout import plan_checked
from tests import seams
from tests.invariance import assert_computes_the_same
from tests.layouts_apart import apart_config, apart_multimodal_config, with_adapter
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted, replacing
from tests.whole_runs import whole_runs


def _config(adapter=(1, 1, 1), *options, **fields):
    return with_adapter(apart_config((1, 1, 1), (1, 1, 1), *options), adapter, **fields)


@whole_runs("an adapter next to frozen modules")
def test_gradients_pass_as_far_back_as_something_is_trained(cluster, run):
    config = run.make()
    plan = mimokit.plan(config)
    back = {
        name
        for name, ranks in plan.modules.items()
        if "backward" in {action.kind for action in plan.pipeline.actions(ranks.rank_offset)}
    }
    frozen = config.model.frozen_modules
    assert back == {LANGUAGE, *({"images", "adapter"} - (frozen if "images" in frozen else set()))}
    report = assert_computes_the_same(cluster, config)
    assert {n for n, off in report.gradient_differences[0].items() if off > 0}.isdisjoint(frozen)


@replacing
def _items_miscounted(within, original, self, message, edge, microbatch, direction):
    """Plant: items have the rows of the one before, in the micro-batch or within their sample."""
    if self.pipeline.graph.stages[edge.destination].module == "adapter" and not direction:
        parts = message.sizes.split(message.items) if within else [message.sizes]
        message = replace(message, sizes=torch.cat([part.roll(1, 0) for part in parts]))
    original(self, message, edge, microbatch, direction)


def test_rows_that_are_counted_as_those_of_another_item_are_found(cluster):
    config = apart_multimodal_config({"qwen": (1, 1, 1), LANGUAGE: (1, 1, 1)})
    config = with_adapter(config, (1, 1, 1), "qwen")
    with planted(cluster, seams.SEND, partial(_items_miscounted, True), 3):
        report = verify(cluster, config, steps=1)
    assert report.loss_differences[0] > 1e-4
    told = r"Sample 0 of the batch has . 'adapter' placeholder tokens but module 'adapter' sent"
    with (
        planted(cluster, seams.SEND, partial(_items_miscounted, False), 3),
        pytest.raises(RankError, match=told),
    ):
        verify(cluster, config, steps=1)


def _encode(plan, config, rows, grid):
    """Return the rows that an adapter makes."""
    import torch

    from mimokit.engine.models.specs import multimodal_provider

    model = multimodal_provider(config.model, plan, 7).provide(plan, wrap=False).model
    (encoder,) = model.modality_submodules["adapter"].encoders.values()
    with torch.no_grad():
        return encoder.eval()(rows=rows, grid_thw=grid)


@pytest.mark.parametrize("positions", ["learned_absolute", "rope"])
def test_an_item_becomes_its_own_rows_whatever_is_beside_it(cluster, positions):
    """The oracle is an adapter whose largest item is that one, which so has no padding."""
    each = [3, 6, 1, 2]
    parts = torch.rand(sum(each), 48, generator=torch.Generator().manual_seed(8)).split(each)

    def rows(parts, most):
        fields = {"max_position_embeddings": 6} if positions == "learned_absolute" else {}
        config = single_rank(_config(seq_length=4, position_embedding_type=positions, **fields))
        plan, grid = plan_checked(config), torch.tensor([[1, 1, len(part)] for part in parts])
        config.model.module_architectures["adapter"].seq_length = most
        given = plan, config, torch.cat(parts), grid
        return cluster.run(_encode, *given, world_size=1)[0]

    alone = [rows([part], len(part)) for part in parts]
    torch.testing.assert_close(rows(parts, 6), torch.cat(alone), atol=1e-6, rtol=0)
    with pytest.raises(RankError, match=r"The adapter takes up to 5 rows .* of items of \[3, 6, 1"):
        rows(parts, 5)


def _two_encoders():
    sizes = {"clip": (1, 1, 2), "dino": (1, 1, 1), LANGUAGE: (1, 1, 1)}
    return with_adapter(apart_multimodal_config(sizes), (2, 1, 2), "clip", others=("dino",))


@replacing
def _encoders_swapped(original, self, given):
    """Plant: of each sample the items of the second encoder come before those of the first."""
    if self.name == "adapter":
        self._incoming = sorted(self._incoming, reverse=True)
    return original(self, given)


def test_items_of_two_encoders_in_another_order_are_found(cluster):
    with planted(cluster, seams.STAGE_FORWARD, _encoders_swapped, 8):
        report = verify(cluster, _two_encoders(), steps=1)
    assert report.loss_differences[0] > 1e-4


def test_a_right_adapter_has_no_culprit(cluster):
    report = explain(cluster, _two_encoders(), steps=1)
    assert report.passed, report.verdict
    assert report.not_compared == ()
    compared = {one.seam.operation for one in report.compared if one.seam.module == "adapter"}
    assert compared >= {"rows", "bridge", "projector"}
