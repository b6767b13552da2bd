"""Multi-token prediction is that of Megatron's `GPTModel`, and the same in every layout."""

from functools import partial

import pytest
import torch

from mimokit.config import ConfigError
from mimokit.config.checked_code import checked_code
from mimokit.experiment import train, verify
from mimokit.experiment.reference import single_rank
from mimokit.planning import plan_layout
from mimokit.samples import MTP_LOSS
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, apart_multimodal_config
from tests.layouts_multimodal import LANGUAGE
from tests.whole_runs import _changed, predicting

LAYERS, WEIGHT = 2, 0.3


def _alone():
    """Return a language model without encoders, like Llama."""
    config = apart_multimodal_config({LANGUAGE: (1, 1, 1)}, 1)
    llama = {"num_query_groups": 2, "normalization": "RMSNorm", "gated_linear_unit": True}
    weight = {"mtp_loss_scaling_factor": WEIGHT}
    config = _changed(config, LANGUAGE, add_bias_linear=False, **llama, **weight)
    return single_rank(predicting(config, LAYERS))


def _of_megatron(network):
    """Return Megatron's model of the same network, in its global groups."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        get_gpt_layer_local_spec,
        get_gpt_mtp_block_spec,
    )

    from mimokit.engine.models.transformer import transformer_config
    from mimokit.planning.execution import ModuleExecution

    parallel_state.destroy_global_memory_buffer()  # it makes one of its own
    parallel_state.initialize_model_parallel()
    config = transformer_config(network, ModuleExecution())
    config.mtp_num_layers, config.mtp_loss_scaling_factor = LAYERS, WEIGHT
    layer = get_gpt_layer_local_spec(normalization="RMSNorm")
    return GPTModel(
        config, layer, vocab_size=network.vocab_size, max_sequence_length=network.seq_length,
        position_embedding_type="rope", mtp_block_spec=get_gpt_mtp_block_spec(config, layer, False),
    )  # fmt: skip


def _logged():
    """Return the mean losses of further tokens that Megatron has logged."""
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    tracker = MTPLossLoggingHelper.tracker
    losses = tracker.get("values", tracker.get("loss_values"))
    MTPLossLoggingHelper.tracker = {}
    return losses


def _both(config, plan):
    """Return losses and gradients of one process, and those of Megatron's model."""
    from mimokit.engine.run_of_rank import RunOfRank
    from mimokit.engine.verify.oracle import OracleStart, _build

    network = config.model.get_architecture(LANGUAGE)
    ours = _build(RunOfRank(plan, config), OracleStart())
    theirs = _of_megatron(network)
    named = dict(ours.language_model.named_parameters())
    for name, parameter in theirs.named_parameters():
        parameter.data.copy_(named[name.replace(".transformer_layer.", ".mtp_model_layer.")])
    words = torch.randint(0, network.vocab_size, (3, network.seq_length + 1))
    ids, labels = words[:, :-1], words[:, 1:]
    places = torch.arange(network.seq_length).expand_as(ids)
    counts = torch.rand(ids.shape) < 0.7
    counts[:, :LAYERS] = False  # as many are left further on: 0.19 divides by these
    counts = counts.float()
    batch = {"input_ids": ids, "position_ids": places, "labels": labels, "loss_mask": counts}
    loss, _ = ours.loss_sum(batch)
    (loss + ours.further_loss).backward()
    losses = theirs(ids, places, None, labels=labels, loss_mask=counts)
    (losses * counts).sum().backward()
    means = WEIGHT / LAYERS * _logged().sum() * counts.sum()
    found = {name: named[name].grad for name in named}
    wanted = {
        name.replace(".transformer_layer.", ".mtp_model_layer."): parameter.grad
        for name, parameter in theirs.named_parameters()
    }
    return (
        (loss.detach(), ours.further_loss.detach(), found),
        ((losses * counts).sum().detach(), means.detach(), wanted),
    )


def test_one_process_is_megatrons_own_model(cluster):
    config = _alone()
    ((found, wanted),) = cluster.run(_both, config, plan_layout(config), world_size=1)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    assert found[1] > 0.1 * found[0]


def test_a_run_reports_the_loss_of_further_tokens(cluster):
    """Untrained, it is that of a guess, as is the loss of the model itself."""
    config = predicting(apart_config((1, 1, 1), (1, 2, 1)), LAYERS)
    rows = train(cluster, config, evaluations=QUICK).result().steps
    assert abs(rows[MTP_LOSS].iloc[0] / rows["loss"].iloc[0] - 1) < 0.1
    assert rows[MTP_LOSS].iloc[-1] < rows[MTP_LOSS].iloc[0]


@pytest.mark.parametrize(
    "make", [partial(digits_config, (1, 2), (2, 1), 2), partial(apart_config, (1, 1, 1), (1, 2, 1))]
)
def test_a_forward_step_of_users_trains_them(cluster, make):
    config = predicting(make(), LAYERS)
    config.runtime.forward_step = "tests.experiment.own_forward_step:forward_step"
    report = verify(cluster, config, steps=2)
    assert report.passed, report.verdict


def test_a_language_model_of_users_has_none():
    config = predicting(apart_config((1, 1, 1), (1, 1, 1)))
    with pytest.raises(ConfigError, match="mtp_num_layers 1 is refused with builder"):
        checked_code(config, modules={LANGUAGE: lambda network, groups: None})
