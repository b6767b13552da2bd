"""Samples in a row compute what they compute one by one, in one process."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimokit.config import DataConfig
from mimokit.experiment import Evaluations, train, verify
from tests.layouts_multimodal import LANGUAGE
from tests.rows import rows
from tests.whole_runs import in_rows, learned_positions_on_contexts

ONE = {"data_parallel": 1}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4))
def test_samples_are_laid_in_a_row_and_taken_apart(lengths, divisor):
    from mimokit.engine.parallel.row import SampleRow

    row = SampleRow.of(lengths, divisor)
    assert all(held % divisor == 0 for held in row.lengths)
    assert row.bounds.diff().tolist() == list(row.lengths)
    samples = torch.zeros(len(lengths), 9, 2)
    for sample, length in enumerate(lengths):
        samples[sample, :length] = torch.rand(length, 2)
    laid = row.lay(samples)
    assert len(laid) == sum(row.lengths)
    assert torch.equal(row.take_apart(laid, 9), samples)
    needed = torch.cat([own[:length] for own, length in zip(samples, lengths, strict=True)])
    assert torch.equal(row.lengthened(needed, lengths), laid)


def _with_bounds(config):
    """Return digits in batches that say how long samples are: by two tokens longer than needed."""
    from mimokit.engine.data.batch import sample_lengths
    from mimokit.engine.data.sources import DigitData
    from mimokit.engine.parallel.row import bounds_of

    data = DigitData()(config)

    def collate(samples):
        batch = data.collate_fn(samples)
        tokens = batch["input_ids"].shape[1]
        longer = [min(tokens, length + 2) for length in sample_lengths(batch, [])]
        return {**batch, "cu_seqlens": bounds_of(longer)}

    return replace(data, collate_fn=collate)


def test_a_batch_that_says_how_long_samples_are_is_compared(cluster):
    config = in_rows(learned_positions_on_contexts())
    report = verify(cluster, config, steps=1, data=_with_bounds)
    assert report.passed, report.verdict


def test_what_is_tested_on_held_out_samples_does_not_depend_on_it(cluster, tmp_path):
    tested = []
    for number, make in enumerate((in_rows, lambda plain: plain)):
        config = make(learned_positions_on_contexts())
        config.runtime.num_iterations = 1
        if number:
            config = config.with_layout("homogeneous", **dict.fromkeys(("images", LANGUAGE), ONE))
        run = train(cluster, config, evaluations=Evaluations(final_samples=12), directory=tmp_path)
        tested.append(run.result().evaluations.iloc[-1])
    shared, alone = tested
    assert shared["samples"] == alone["samples"] == 12
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert shared["digit_accuracy"] == alone["digit_accuracy"]


def _batch(**fields):
    tokens = torch.tensor([[1, 2, 3, 0], [4, 0, 0, 0]])
    batch = {
        "input_ids": tokens,
        "labels": tokens,
        "loss_mask": torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 0]]),
        "position_ids": torch.arange(4).expand(2, -1),
        "cu_seqlens": torch.tensor([0, 3, 4]),
    }
    return {**batch, **fields}


def _data(packed=True):
    return DataConfig(
        base_batch_size=2,
        seq_length=4,
        image_seq_length=1,
        vocab_size=8,
        image_special_token_id=8,
        pack_sequences_in_batch=packed,
    )


def test_bounds_are_those_of_the_batch_or_follow_from_its_labels():
    from mimokit.engine.data.batch import sample_lengths, slice_text
    from mimokit.engine.data.check import check_batch

    batch = _batch()
    check_batch(batch, 2, _data())
    assert sample_lengths(batch, []) == [3, 1]
    assert slice_text(batch, 1, 2)["cu_seqlens"].tolist() == [0, 1]
    assert sample_lengths(_batch(cu_seqlens=torch.tensor([0, 4, 8])), []) == [4, 4]
    del batch["cu_seqlens"]
    assert sample_lengths(batch, []) == [3, 1]
    assert sample_lengths(batch, [0]) == [4, 4], "the rows of a placeholder are needed"


@rows(
    "bounds, said",
    ([0, 3], r"cu_seqlens of \[0, 3\], but 2 samples; give 3 integers"),
    ([1, 3, 4], r"cu_seqlens of \[1, 3, 4\], but 2 samples"),
    ([0, 5, 6], "Sample 0 of the batch has 5 tokens by cu_seqlens, but its row in input_ids"),
    ([0, 3, 3], "Sample 1 of the batch has 0 tokens by cu_seqlens"),
    ([0, 2, 3], "Sample 0 of the batch has 2 tokens by cu_seqlens, but the label of its tok"),
)
def test_lengths_that_do_not_add_up_are_rejected(bounds, said):
    from mimokit.engine.data.check import check_batch

    with pytest.raises(ValueError, match=said):
        check_batch(_batch(cu_seqlens=torch.tensor(bounds)), 2, _data())


def test_bounds_of_samples_that_are_not_in_a_row_are_rejected():
    from mimokit.engine.data.check import check_batch

    with pytest.raises(ValueError, match="pack_sequences_in_batch is false"):
        check_batch(_batch(), 2, _data(packed=False))
