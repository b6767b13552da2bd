"""Attention in windows is that of brute force, and the same in every layout."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from mimokit.experiment import verify
from tests.invariance import assert_computes_the_same, oracle_of
from tests.planted import planted
from tests.whole_runs import whole_runs, windows_on_contexts

HEADS, GROUPS, WIDTH = 4, 2, 8


class _Alone:
    """In place of the process groups of one rank."""

    def __init__(self) -> None:
        self.cp = self.tp = self

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0


def _core(windowed):
    from mimokit.engine.megatron import AttnMaskType, TransformerConfig
    from mimokit.engine.models.attention import SequenceAttention

    config = TransformerConfig(
        num_layers=2, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS,
        num_query_groups=GROUPS, window_size=(2, 0), window_attn_skip_freq=[1, 0],
        attention_dropout=0.0, masked_softmax_fusion=False,
    )  # fmt: skip
    number = 1 if windowed else 2
    return SequenceAttention(
        config, number, AttnMaskType.causal, "self", pg_collection=_Alone()
    ).eval()


def _by_hand(query, key, value, lengths, windowed):
    """Return [positions, heads * width], one query after another."""
    outputs, begin = [], 0
    for length in lengths:
        for place in range(begin, begin + length):
            first = max(begin, place - 2) if windowed else begin
            seen = slice(first, place + 1)
            heads = []
            for head in range(HEADS):
                group = head // (HEADS // GROUPS)
                scores = key[seen, group] @ query[place, head] / WIDTH**0.5
                heads.append(scores.softmax(0) @ value[seen, group])
            outputs.append(torch.cat(heads))
        begin += length
    return torch.stack(outputs)


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.booleans())
def test_a_row_attends_to_windows_as_by_hand(lengths, windowed):
    from mimokit.engine.parallel.row import SampleRow

    total = sum(lengths)
    query, key, value = (torch.randn(total, heads, WIDTH) for heads in (HEADS, GROUPS, GROUPS))
    params = SampleRow(tuple(lengths)).params(torch.device("cpu"))
    found = _core(windowed)(query, key, value, None, packed_seq_params=params)
    torch.testing.assert_close(found, _by_hand(query, key, value, lengths, windowed))


@whole_runs("windows")
def test_windows_compute_what_one_process_computes(cluster, run):
    assert_computes_the_same(cluster, run.make())


def _one_token_more(original):
    """Plant: ranks that share a sequence look back one token further."""

    def forward(self, *args, **options):
        if self._before is not None:
            self._before = 6
        return original(self, *args, **options)

    return forward


def test_check_catches_a_window_that_is_one_token_too_long(cluster):
    config = windows_on_contexts()
    oracle = oracle_of(cluster, config)
    target = "mimokit.engine.models.attention.SequenceAttention.forward"
    with planted(cluster, target, _one_token_more, 4):
        report = verify(cluster, config, steps=1, oracle=oracle)
    assert report.loss_differences[0] > 1e-5
    assert not report.passed
