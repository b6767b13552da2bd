"""Layers of the language model add outputs of inner layers of an encoder, as in Qwen3-VL."""

import mimokit
from mimokit.architecture.from_config import branch_of_config
from mimokit.experiment import verify
from tests import seams
from tests.invariance import oracle_of
from tests.layouts_multimodal import LANGUAGE
from tests.planted import planted, replacing
from tests.whole_runs import inner_layers_on_stages


@replacing
def _left_out(original, self, *args, context=None, **options):
    """Plant: inner layers do not reach the language model."""
    return original(self, *args, context=context if self._inner else None, **options)


def test_one_process_adds_inner_layers_by_itself(cluster):
    """What the layers of a layout leave out, one process, which hooks its layers, has."""
    config = inner_layers_on_stages()
    oracle = oracle_of(cluster, config)
    with planted(cluster, seams.LAYER, _left_out, config.model.total_world_size):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] > 1e-5
    assert not report.passed


def test_rows_are_wider_by_the_projected_inner_layers() -> None:
    config = inner_layers_on_stages()
    plan, model = mimokit.plan(config), config.model
    network, language = model.get_architecture("images"), model.get_architecture(LANGUAGE)
    branch = branch_of_config("images", network, language)
    assert branch.projector.row_width == 3 * language.hidden_size
    network.projector = network.projector.model_copy(update={"deepstack_layers": None})
    (wide,), (plain,) = plan.bridges, mimokit.plan(config.finalize()).bridges
    assert wide.forward.bytes_between == 3 * plain.forward.bytes_between > 0


def test_one_layer_follows_the_other_as_in_qwen3_vl() -> None:
    """An inner layer is added behind the language layer of its place, at the rows of images."""
    import torch
    from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen

    from mimokit.engine.pipeline.packing import assemble

    generator = torch.Generator().manual_seed(3)
    ids = torch.tensor([[1, 9, 9, 2], [9, 3, 4, 9]])
    words, rows = (torch.randn(4, width, generator=generator) for width in (8, 24))
    wide = assemble(ids, {"images": 9}, words, {"images": rows}).hidden
    hidden, *inner = wide.split(8, dim=-1)
    for number, one in enumerate(inner):
        features = rows[:, 8 * (number + 1) : 8 * (number + 2)]
        given = hidden.transpose(0, 1).clone()
        added = qwen.Qwen3VLTextModel._deepstack_process(None, given, ids == 9, features)
        hidden = hidden + one
        assert torch.equal(hidden.transpose(0, 1), added)
