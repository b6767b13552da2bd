"""Draws tokens from logits that are sharded over the vocabulary, without gathering them.

Penalty, temperature, top-k, top-p and min-p come in the order of Hugging Face's `generate`, and
keep the sets that its warpers keep; of equal logits at the threshold of top-p all are kept, where
Hugging Face keeps those that its sort happens to put in front.

Probabilities are whole numbers: exp(logit - maximum) in units of 2**-40. Their sums do not depend
on the order of summation, so that a draw is the same for any number of ranks.
"""

import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mimokit.config.errors import ConfigError, Problem
from mimokit.extras.generation.network.exchange import Group, all_gathered, rank_of, size_of, summed
from mimokit.units import counted, shown

UNIT = 2.0**40
"""Weight of the most likely token; the weights of 2**22 tokens add up within 63 bits."""

THRESHOLDS = 63
"""Thresholds of top-p that are tried at once: 6 of the 32 bits of a float in each round."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        temperature: logits are divided by it; None or 0 for the most likely token.
        top_k: number of the most likely tokens that can be drawn; None for all.
        top_p: only the most likely tokens that reach this probability together; None for all.
        min_p: only tokens with this share of the highest probability; None for all.
        repetition_penalty: logits of tokens that were seen are divided by it, or multiplied with it
            if they are negative; None for 1.

    Raises:
        ConfigError: a value is out of its range, or limits a draw where nothing is drawn.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        """Reject values that mean nothing."""
        self._check("temperature", lambda value: value >= 0, "a number of at least 0")
        self._check("top_k", lambda value: value >= 1, "a whole number of at least 1", whole=True)
        self._check("top_p", lambda value: 0 < value <= 1, "above 0 and at most 1")
        self._check("min_p", lambda value: 0 <= value <= 1, "from 0 to 1")
        self._check("repetition_penalty", lambda value: value > 0, "above 0")
        for name in ("top_k", "top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and self.greedy:
                what = f"{name} is {shown(value)}, but without a temperature the most likely token "
                what += f"is taken; give a temperature, or leave {name} out"
                raise _rejected(name, value, what)

    def _check(
        self, name: str, right: Callable[[float], bool], wanted: str, whole: bool = False
    ) -> None:
        value = getattr(self, name)
        if value is None:
            return
        kind = numbers.Integral if whole else numbers.Real
        if isinstance(value, bool) or not isinstance(value, kind) or not right(float(value)):
            raise _rejected(name, value, f"{name} is {shown(value)}; it must be {wanted}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return not self.temperature


def sample(
    logits_shard: torch.Tensor,
    group: Group,
    *,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    token_ids: torch.Tensor | None = None,
    seed: int = 0,
    step: int = 0,
    rows: Sequence[int] | None = None,
    vocab_size: int | None = None,
) -> torch.Tensor:
    """Return a token id per row, the same on every rank of a group. Collective.

    Args:
        logits_shard: [rows, vocabulary / ranks], this rank's part of the padded vocabulary.
        group: the ranks with the other parts, in the order of the parts; None for a single process.
        temperature, top_k, top_p, min_p, repetition_penalty: see `Sampling`.
        token_ids: [rows, seen], ids that the penalty is for; those below 0 are none.
        seed: a draw depends only on seed, step and row.
        rows: numbers of the rows, for a part of a batch; 0, 1, … by default.
        vocab_size: without padding; None where there is none.

    Returns:
        [rows], int64.

    Raises:
        ConfigError: an argument is out of its range.
        FloatingPointError: a rank has a NaN or an infinite logit, on all ranks; names the rank.
    """
    how = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty,
    )  # fmt: skip
    return draw(
        logits_shard, group, how, token_ids=token_ids, seed=seed, step=step, rows=rows,
        vocab_size=vocab_size,
    )[0]  # fmt: skip


def draw(
    logits_shard: torch.Tensor,
    group: Group,
    how: Sampling,
    *,
    token_ids: torch.Tensor | None = None,
    seed: int = 0,
    step: int = 0,
    rows: Sequence[int] | None = None,
    vocab_size: int | None = None,
    raised: bool = False,
) -> tuple[torch.Tensor, bool]:
    """Return a token id per row, and whether any rank has raised its flag. Collective.

    The arguments are those of `sample`; the flag of this rank is sent with its highest scores.
    """
    scores, best = warped(logits_shard, group, how, token_ids, vocab_size, raised)
    if how.greedy:
        return best.first, best.raised
    drawn_rows = range(len(scores)) if rows is None else rows
    if len(drawn_rows) != len(scores):
        what = (
            f"rows names {counted(len(drawn_rows), 'row')}, and there are "
            f"{counted(len(scores), 'row')} of logits"
        )
        raise _rejected("rows", len(drawn_rows), what)
    drawn = _drawn(weights(scores, best.highest), group, _uniform(seed, step, drawn_rows))
    return drawn, best.raised


@dataclass(frozen=True)
class Best:
    """The highest score of each row, the lowest id that has it, and whether a flag is raised."""

    highest: torch.Tensor
    first: torch.Tensor
    raised: bool


def warped(
    logits_shard: torch.Tensor,
    group: Group,
    how: Sampling,
    token_ids: torch.Tensor | None = None,
    vocab_size: int | None = None,
    raised: bool = False,
) -> tuple[torch.Tensor, Best]:
    """Return this rank's scores, and the best of all ranks before any was excluded; see `draw`.

    Scores are [rows, vocabulary / ranks] in fp32, -inf where a token cannot be drawn or is padding.
    """
    width = logits_shard.shape[-1]
    start, size = rank_of(group) * width, size_of(group)
    vocab = width * size if vocab_size is None else vocab_size
    if not 0 < vocab <= width * size:
        what = f"vocab_size is {vocab}, and there are {counted(width, 'column')} in each of "
        what += counted(size, "shard")
        raise _rejected("vocab_size", vocab, what)
    scores = logits_shard.detach().float().clone()
    scores[:, max(0, min(width, vocab - start)) :] = -torch.inf
    if how.repetition_penalty is not None and token_ids is not None:
        _penalize(scores, token_ids, how.repetition_penalty, start, vocab)
    if how.temperature:
        scores /= how.temperature
    best = _best(scores, start, group, raised)
    highest = best.highest
    if how.greedy:
        return scores, best
    if how.top_k is not None and how.top_k < vocab:
        scores.masked_fill_(scores < _kth(scores, how.top_k, group)[:, None], -torch.inf)
    if how.top_p is not None and how.top_p < 1:
        lowest = _lowest_of_top_p(scores, highest, how.top_p, group)
        scores.masked_fill_(_ordered(scores) < lowest[:, None], -torch.inf)
    if how.min_p is not None:
        share = (scores - highest[:, None]).exp()
        scores.masked_fill_(share < how.min_p, -torch.inf)
    return scores, best


def _rejected(field: str, value: object, what: str) -> ConfigError:
    return ConfigError([Problem("sampling", field, value, f"Sampling: {what}.")])


def _penalize(
    scores: torch.Tensor, token_ids: torch.Tensor, penalty: float, start: int, vocab: int
) -> None:
    if token_ids.numel() and int(token_ids.max()) >= vocab:
        highest = int(token_ids.max())
        what = f"token_ids has the id {highest}, and the vocabulary ends at {vocab - 1}"
        raise _rejected("token_ids", highest, what)
    local = token_ids.to(scores.device) - start
    inside = (local >= 0) & (local < scores.shape[1])
    # One more column takes the ids of other ranks.
    seen = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    seen.scatter_(1, torch.where(inside, local, scores.shape[1]), True)
    changed = torch.where(scores < 0, scores * penalty, scores / penalty)
    scores.copy_(torch.where(seen[:, :-1], changed, scores))


def _best(scores: torch.Tensor, start: int, group: Group, raised: bool) -> Best:
    """Raises FloatingPointError: a score of a rank is not a number, or a row has no finite one."""
    ids = torch.arange(start, start + scores.shape[1], device=scores.device)
    highest = scores.amax(dim=1)  # NaN if there is one
    first = torch.where(scores == highest[:, None], ids, torch.iinfo(torch.int64).max)
    lowest_id = first.amin(dim=1).clamp(max=2**53)  # of a NaN there is none
    flag = highest.new_full((2, 1), float(raised), dtype=torch.float64)
    message = torch.cat((torch.stack((highest.double(), lowest_id.double())), flag), dim=1)
    both = all_gathered(message, group)
    values, places = both[:, 0, :-1], both[:, 1, :-1]
    wrong = values.isnan() | (values == torch.inf)
    if bool(wrong.any()):
        rank, row = wrong.nonzero()[0].tolist()
        raise FloatingPointError(f"The logits of rank {rank} are not finite in row {row}.")
    most = values.amax(dim=0)
    if bool((most == -torch.inf).any()):
        row = int((most == -torch.inf).nonzero()[0])
        raise FloatingPointError(f"No logit of row {row} is finite on any rank.")
    lowest = torch.where(values == most, places, torch.inf).amin(dim=0)
    return Best(most.float(), lowest.long(), bool(both[:, 0, -1].any()))


def _kth(scores: torch.Tensor, k: int, group: Group) -> torch.Tensor:
    """Return the k-th highest score of each row, [rows]; every rank sends its k highest."""
    local = scores.topk(min(k, scores.shape[1]), dim=1).values
    everyone = all_gathered(local, group).transpose(0, 1).flatten(1)
    return everyone.topk(k, dim=1).values[:, -1]


def weights(scores: torch.Tensor, highest: torch.Tensor) -> torch.Tensor:
    """Return probabilities as whole numbers that the most likely token has 2**40 of."""
    share = (scores.double() - highest.double()[:, None]).exp()
    return (share * UNIT).round().long()


def _ordered(scores: torch.Tensor) -> torch.Tensor:
    bits = (scores + 0.0).contiguous().view(torch.int32)  # + 0.0: -0.0 and 0.0 are alike
    return torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()


def _lowest_of_top_p(
    scores: torch.Tensor, highest: torch.Tensor, top_p: float, group: Group
) -> torch.Tensor:
    """Return the lowest score that top-p keeps, as an ordered integer: [rows].

    A token is kept if those above it have less than `top_p` together. The threshold is found by
    trying some at once: every rank says what its scores above each weigh.
    """
    order, at = _ordered(scores).sort(dim=1, descending=True)
    reached = weights(scores, highest).gather(1, at).cumsum(dim=1)
    above = torch.cat((torch.zeros_like(reached[:, :1]), reached), dim=1)
    wanted = summed(above[:, -1].clone(), group).double() * top_p
    ascending = -order  # for searchsorted
    low = torch.full_like(wanted, -(2**31) - 1, dtype=torch.int64)  # keeps too much, or all
    high = _ordered(highest)  # keeps the most likely at least
    steps = torch.arange(1, THRESHOLDS + 1, device=scores.device)
    while int((high - low).max()) > 1:
        tried = low[:, None] + (high - low)[:, None] * steps // (THRESHOLDS + 1)
        count = torch.searchsorted(ascending, -tried.contiguous())  # scores above each threshold
        mass = summed(above.gather(1, count), group).double()
        enough = mass < wanted[:, None]
        high = torch.where(enough, tried, high[:, None]).amin(dim=1)
        low = torch.where(enough, low[:, None], tried).amax(dim=1)
    return high


def _uniform(seed: int, step: int, rows: Iterable[int]) -> list[float]:
    """Return a number in [0, 1) per row that depends only on seed, step and row."""
    key = np.array([seed % 2**64, 0], dtype=np.uint64)
    return [
        np.random.Generator(
            np.random.Philox(key=key, counter=np.array([0, step, row, 0], dtype=np.uint64))
        ).random()
        for row in rows
    ]


def _drawn(weight: torch.Tensor, group: Group, uniform: Sequence[float]) -> torch.Tensor:
    """Return the id whose interval contains the number: [rows].

    Intervals are in the order of ids. The rank that has it finds the id and sends it to the others.
    """
    reached = weight.cumsum(dim=1)
    totals = all_gathered(reached[:, -1].clone(), group)
    ends = totals.cumsum(dim=0)
    numbers = zip(uniform, ends[-1].tolist(), strict=True)
    targets = [min(int(number * total), total - 1) for number, total in numbers]
    rank = rank_of(group)
    offset = torch.tensor(targets, device=weight.device) - (ends[rank] - totals[rank])
    here = (offset >= 0) & (offset < totals[rank])
    column = torch.searchsorted(reached, offset[:, None], right=True)[:, 0]
    return summed(torch.where(here, column + rank * weight.shape[1], 0), group)
