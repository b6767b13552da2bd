"""Gradients of bf16 weights are sums in fp32, where torch on a CPU has none."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from mimokit.engine.megatron import TransformerConfig
from mimokit.engine.megatron.sums import Functional, LayerNorm, embedding
from mimokit.engine.parallel.sequence import SliceNorm

ROWS, WIDTH = 3000, 16
ROUNDING = 2.0**-8
"""Relative, of a sum in bf16."""

Loss = Callable[[torch.Tensor], torch.Tensor]


def _torchs_norm(bias: torch.Tensor) -> torch.Tensor:
    given = torch.ones(ROWS, WIDTH, dtype=bias.dtype)
    return F.layer_norm(given, (WIDTH,), torch.ones_like(bias), bias)


def _row(row: torch.Tensor, look_up: Callable[..., torch.Tensor] = embedding) -> torch.Tensor:
    return look_up(torch.zeros(ROWS, dtype=torch.int64), row[None])


@pytest.mark.parametrize(
    ("compute", "is_exact"),
    [
        (_row, True),
        (lambda row: _row(row, Functional().embedding), True),
        (lambda row: _row(row, F.embedding), False),
        (_torchs_norm, False),
    ],
    ids=["embedding", "Megatron's embedding", "torch's embedding", "torch's norm"],
)
def test_a_gradient_of_many_rows_is_their_sum(compute: Loss, is_exact: bool) -> None:
    draw = torch.Generator().manual_seed(1)
    gradient = (0.1 * torch.randn(ROWS, WIDTH, generator=draw) + 0.005).bfloat16()
    weight = torch.zeros(WIDTH, dtype=torch.bfloat16, requires_grad=True)
    compute(weight).backward(gradient)
    right = gradient.float().sum(0)
    error = float((weight.grad.float() - right).norm() / right.norm())
    assert (error < ROUNDING) == is_exact, error


def test_the_norm_of_a_layer_sums_in_fp32() -> None:
    config = TransformerConfig(
        num_layers=1, hidden_size=WIDTH, num_attention_heads=1, params_dtype=torch.bfloat16
    )
    draw = torch.Generator().manual_seed(2)
    given = torch.randn(ROWS, WIDTH, generator=draw).bfloat16()
    gradient = (0.1 * torch.randn(ROWS, WIDTH, generator=draw) + 0.005).bfloat16()
    norm, exact = SliceNorm(config, WIDTH), torch.nn.LayerNorm(WIDTH)
    assert isinstance(norm, LayerNorm)
    output, right = norm(given), exact(given.float())
    assert output.dtype == torch.bfloat16
    output.backward(gradient)
    right.backward(gradient.float())
    for own, other in zip(norm.parameters(), exact.parameters(), strict=True):
        assert float((own.grad - other.grad).norm() / other.grad.norm()) < ROUNDING
