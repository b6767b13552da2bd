"""Muon of matrices that ranks may share, against scalars and torch's in bf16."""

from __future__ import annotations

import pytest
import torch

from mimokit.engine.strategies.muon import COEFFICIENTS, LayerMuon, orthogonal


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_singular_values_go_through_the_polynomial(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm()
    a, b, c = COEFFICIENTS
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(orthogonal(matrix, 1e-7), left @ values.diag() @ right)


def test_a_small_matrix_is_divided_by_no_less_than_epsilon():
    matrix = 1e-3 * torch.eye(3)
    assert orthogonal(matrix, 1.0).diagonal().max() < 0.6
    assert not orthogonal(torch.zeros(3, 2), 1e-7).any()


@pytest.mark.parametrize("options", [{}, {"nesterov": False}, {"momentum": 0.5}])
def test_matrices_are_stepped_as_by_torch_and_the_rest_by_adamw(options):
    draws = torch.Generator().manual_seed(2)
    matrix, bias = (torch.nn.Parameter(torch.randn(n, generator=draws)) for n in ((8, 4), (4,)))
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in (matrix, bias)]
    shared = {"lr": 0.02, "weight_decay": 0.1, "eps": 1e-7}
    group = {"params": [matrix, bias], "matrices": {matrix: None}}
    ours = LayerMuon([group], **shared, **options)
    others = (
        torch.optim.Muon(theirs[:1], **shared, **options),
        torch.optim.AdamW(theirs[1:], **shared),
    )
    for _ in range(3):
        for own, their in zip((matrix, bias), theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=draws)
            their.grad = own.grad.clone()
        ours.step()
        for other in others:
            other.step()
    torch.testing.assert_close(matrix, theirs[0], rtol=0, atol=2e-3)  # torch rounds to bf16
    assert torch.equal(bias, theirs[1])
    assert ours.param_groups[0]["params"] == [matrix, bias]
