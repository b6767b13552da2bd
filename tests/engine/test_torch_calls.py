"""A torch that is older, or lacks a call."""

import pytest
import torch
import torch.distributed as dist

from mimokit.engine.torch_calls import collective


def test_a_torch_with_the_old_name_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "reduce_scatter_single")
    old = dist.reduce_scatter_tensor
    assert collective("reduce_scatter_single", "reduce_scatter_tensor") is old


def test_a_torch_without_a_call_is_told_where_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(dist, "all_gather_single")
    monkeypatch.delattr(dist, "all_gather_into_tensor")
    missing = collective("all_gather_single", "all_gather_into_tensor")
    with pytest.raises(RuntimeError) as raised:
        missing(torch.zeros(2), torch.zeros(1))
    assert str(raised.value) == (
        f"torch {torch.__version__} has neither torch.distributed.all_gather_single nor "
        "all_gather_into_tensor, which mimokit calls here; install torch 2.13 or newer."
    )
