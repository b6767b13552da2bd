"""Where results depend on choices between numbers that are equal but for rounding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mimokit.architecture.tensor_cut import TensorCut
from mimokit.config import StrategyConfig
from mimokit.engine.strategies.buckets import Shard
from mimokit.engine.strategies.codecs import LowBitMean
from mimokit.engine.strategies.demo import DeMoStrategy, _Blocks
from mimokit.engine.verify.strategies.halfway import AsOracle, Rounded
from mimokit.engine.verify.strategies.pieces import (
    PADDING,
    Choices,
    LowBits,
    blocks_of,
    cosine_transform,
    from_cosines,
    largest_of,
    positions_of,
)
from mimokit.experiment.verification_report import (
    MOST_HALFWAY,
    MOST_OPEN,
    VerificationReport,
)


@pytest.mark.parametrize(
    ("numbers", "close"),
    [
        ([4.0, 3.0, -2.0, 1.0], [False] * 4),
        ([4.0, 2.001, -2.0, 1.0], [False, True, True, False]),
        ([4.0, 2.001, -2.0, 2.0005], [False, True, True, True]),
        ([4.0, 0.0, 0.0, 0.0], [False] * 4),
    ],
)
def test_numbers_around_the_last_that_is_kept_are_open(numbers, close):
    chosen, found = largest_of(torch.tensor(numbers), 2, rounding=1e-3)
    assert found.tolist() == close
    assert chosen.tolist()[0]
    assert int(chosen.sum()) == 2


def _one_tensor(values: list[float], **arguments: object) -> tuple[Choices, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(len(values)))
    config = StrategyConfig(name="sparse_loco", density=1.0, **arguments)
    choices = Choices(config, [{"w": weight}], {"w": TensorCut((len(values),)).shards(1)})
    weight.data.copy_(torch.tensor(values))
    return choices, weight


@torch.no_grad()
def test_values_between_two_multiples_of_the_scale_are_open():
    choices, weight = _one_tensor([1.0, 0.5000001, 0.3, -0.7])
    assert choices.outer_step()["w"].tolist() == [False, True, False, False]
    assert weight.tolist() == [1.0, 1.0, 0.0, -1.0]
    assert choices.residuals[0]["w"][2:4].tolist() == pytest.approx([-0.3, -0.3])


@pytest.mark.parametrize(
    ("number", "oracle", "taken"),
    [
        (2.4999999, 3, True),
        (2.500001, 2, True),
        (-2.4999999, -3, True),
        (2.4, 3, False),
        (2.4999999, 2, False),
        (2.4999999, 4, False),
        (3.499999, 2, False),
    ],
)
def test_a_number_halfway_between_two_multiples_becomes_that_of_the_oracle(number, oracle, taken):
    """The largest number of the block is 7, so that the scale is 1."""
    low_bits = LowBitMean(4, [2], torch.device("cpu"))
    there = [(torch.tensor([7, oracle]), torch.tensor([7, oracle]))]
    rounded = Rounded()
    rounding = AsOracle(low_bits, [torch.zeros(2)], there, rounded)
    block = torch.nn.functional.pad(torch.tensor([[7.0, number]]), (0, 254))
    for found in (
        rounding.of_own(block, torch.ones(1, 1)),
        rounding.of_sums(0, block, torch.ones(1, 1)),
    ):
        assert found[0, :2].tolist() == [7, oracle if taken else round(number)]
    assert (rounded.numbers, rounded.taken) == (512, 2 * taken)


@torch.no_grad()
@pytest.mark.parametrize("bits", [4, 8])
def test_low_bits_round_each_tensor_as_the_codec_does(bits):
    draws = torch.Generator().manual_seed(bits)
    sizes = {"a": 300, "b": 5, "c": 256}
    model = {name: torch.nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
    theirs = LowBitMean(bits, list(sizes.values()), torch.device("cpu"))
    shards = {name: TensorCut((size,)).shards(1) for name, size in sizes.items()}
    mine = LowBits(bits, [model], shards)
    for scale in (1.0, 0.1, 0.01):
        change = {name: scale * torch.randn(size, generator=draws) for name, size in sizes.items()}
        found = theirs.mean(torch.cat(list(change.values())), [0], 0)
        wanted = torch.cat([mine.mean(name, [one]) for name, one in change.items()])
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)


def test_positions_are_those_of_the_whole_tensor():
    """One process has a row of padding, four ranks have two."""
    shards = TensorCut((6, 2), 0, multiple=1).shards(4)
    positions = [positions_of(one, torch.Size((7, 2))).tolist() for one in shards]
    assert positions[1:] == [[[4, 5], [6, 7]], [[8, 9], [10, 11]], [[PADDING] * 2] * 2]


@pytest.mark.parametrize("shape", [(12,), (6, 10), (4, 3, 5)])
def test_blocks_and_their_transform_are_those_of_demo(shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(tensor.numel()).view(shape)
    mine = [cosine_transform(tensor.flatten()[one]) for one in blocks_of(positions, 4)]
    theirs = _Blocks(shape, 4).transform(tensor)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(one.flatten(), other, atol=1e-6)
    first = next(blocks_of(positions, 4))
    np.testing.assert_allclose(from_cosines(mine[0]), tensor.flatten()[first], atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("words", [131, 132])
def test_demo_steps_a_padded_vocabulary_as_one_process_does(words):
    """Blocks of the last rank hold a row of padding where two ranks share 131 words."""
    draws = torch.Generator().manual_seed(words)
    cut = TensorCut((words, 64), 0, multiple=1)
    weight = torch.nn.Parameter(torch.randn(cut.whole, generator=draws))
    ranks = [
        Shard({"w": torch.nn.Parameter(torch.from_numpy(shard.of(weight.numpy())))}, {"w": shard},
              {"w": cut.whole})
        for shard in cut.shards(2)
    ]  # fmt: skip
    for rank in ranks:
        rank.demo = DeMoStrategy(lr=1e-3)
        rank.demo._init_node(rank, 0, 1)
    choices = Choices(ranks[0].demo.config, [{"w": weight}], {"w": cut.shards(2)})
    for _ in range(3):
        weight.grad = torch.randn(cut.whole, generator=draws)
        opened = choices.step()["w"].view(cut.whole)
        for rank, shard in zip(ranks, cut.shards(2), strict=True):
            (part,) = rank.parameters()
            part.grad = torch.from_numpy(shard.of(weight.grad.numpy()))
            rank.demo.optim.step()
            (here,) = shard.rectangles
            rows = slice(here.whole[0], here.whole[0] + here.shape[0])
            closed = ~opened[rows]
            assert closed.float().mean() > 0.4  # a tie opens a whole block
            apart = (part[: here.shape[0]] - weight[rows])[closed].abs().max()
            assert apart < 1e-6
            assert not part[here.shape[0] :].any()
            assert not rank.demo.kept()["w"]["residual"][here.shape[0] :].any()


def test_a_check_that_leaves_too_much_open_fails():
    report = VerificationReport(
        "a", "digits", {}, 1e-5, (1.0,), (1.0,), ({},), ({},), {}, "2 replicas with demo", 0.01
    )
    assert report.passed
    assert "At most 1.00% of the entries of a step were not compared" in report.verdict
    assert not replace(report, open_share=2 * MOST_OPEN).passed
    halfway = replace(report, open_share=0.0, halfway_share=MOST_HALFWAY / 4)
    assert halfway.passed
    assert "At most 0.025% of the numbers of an exchange were rounded to the other" in (
        halfway.verdict
    )
    assert not replace(halfway, halfway_share=2 * MOST_HALFWAY).passed
