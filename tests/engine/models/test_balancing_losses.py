"""Losses that balance experts are Megatron's, of the tokens that are no padding."""

import pytest
import torch

COEFFICIENT, TOPK = 0.3, 2


@pytest.mark.parametrize("by_sample", [False, True])
def test_a_loss_of_sums_is_megatrons_mean_times_the_tokens(
    monkeypatch: pytest.MonkeyPatch, by_sample: bool
) -> None:
    from megatron.core.transformer.moe.moe_utils import switch_load_balancing_loss_func

    from mimokit.engine.megatron import MoEAuxLossAutoScaler
    from mimokit.engine.models.experts import LayoutFreeRouter, _Tokens

    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor, group: None)
    monkeypatch.setattr(MoEAuxLossAutoScaler, "main_loss_backward_scale", torch.tensor(1.0))
    generator = torch.Generator().manual_seed(1)
    scores = torch.rand(12, 4, generator=generator).softmax(-1).requires_grad_()
    chosen = torch.zeros(12, 4, dtype=torch.bool)
    chosen.scatter_(1, scores.detach().topk(TOPK).indices, True)
    samples = torch.tensor([0] * 7 + [1] * 5)
    counted = torch.tensor([True] * 5 + [False] * 2 + [True] * 4 + [False])

    router = object.__new__(LayoutFreeRouter)
    torch.nn.Module.__init__(router)
    router.get_aux_loss_coeff = lambda kind: COEFFICIENT
    router.router_replay = router.tp_dp_cp_group = router.sequence_group = None
    router.num_experts, router.topk = scores.shape[1], TOPK
    router._tokens = _Tokens(samples, counted, 2)
    attach = router._apply_seq_aux_loss if by_sample else router._apply_aux_loss
    attach(torch.zeros(12, 4, requires_grad=True), scores, chosen).sum().backward()
    found, scores.grad = scores.grad, None

    parts = [samples == 0, samples == 1] if by_sample else [samples >= 0]
    for part in parts:
        own = part & counted
        tokens = int(own.sum())
        loss = switch_load_balancing_loss_func(
            probs=scores[own], tokens_per_expert=chosen[own].sum(0), total_num_tokens=tokens,
            topk=TOPK, num_experts=router.num_experts, moe_aux_loss_coeff=COEFFICIENT,
        )  # fmt: skip
        (tokens * loss).backward()
    torch.testing.assert_close(found, scores.grad)
    assert found[~counted].eq(0).all()
