"""Generates tokens with a key and value cache; logits are never gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mimokit.engine.inference.exchange import gathered, rank_of
from mimokit.engine.inference.language import LanguageShard, PaddedTokens
from mimokit.engine.inference.sampling import Sampling, draw


@dataclass(frozen=True)
class GenerationRequest:
    """What is generated.

    Attributes:
        prompts: token ids.
        rows: numbers of the prompts among all that are asked for at once; draws depend on them.
        max_new_tokens: of every row.
        how: tokens are chosen.
        seed: of the draws.
        stop: a row ends with one of these tokens.
    """

    prompts: tuple[tuple[int, ...], ...]
    rows: tuple[int, ...]
    max_new_tokens: int
    how: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop: tuple[int, ...] = ()


@dataclass
class Continuation:
    """What has been generated.

    Attributes:
        tokens: new ids of every row, the stop token included.
        log_probs: of these tokens, by the softmax of the logits as they come from the model; known
            once all tokens are.
        steps: forward passes.
    """

    tokens: list[list[int]] = field(default_factory=list)
    log_probs: list[list[float]] = field(default_factory=list)
    steps: int = 0


OnTokens = Callable[[dict[int, int]], None]
"""Is given row -> new token after every step."""


@torch.no_grad()
def generate(
    model: LanguageShard,
    request: GenerationRequest,
    on_tokens: OnTokens | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Continuation:
    """Return the tokens that follow prompts. Collective.

    Args:
        model: all layers of this rank.
        request: what is generated.
        on_tokens: see `OnTokens`.
        stopping: whether this rank was asked to stop; all stop after the token of a step in which
            one was.
    """
    prompts = [list(one) for one in request.prompts]
    batch = PaddedTokens.of(prompts, model.device)
    cache = model.new_cache(len(prompts), batch.ids.shape[1] + request.max_new_tokens)
    made = Continuation([[] for _ in prompts])
    shares: list[torch.Tensor] = []
    open_rows = set(range(len(prompts)))
    seen = torch.where(_real(batch), batch.ids, -1)
    stopped = False
    while open_rows and made.steps < request.max_new_tokens and not stopped:
        logits = model(batch, cache, last_only=True)[:, -1]
        wanted = stopping is not None and stopping()
        ids, stopped = _next(model, request, logits, seen, made.steps, wanted)
        shares.append(_share(model, logits, ids))
        new = ids.tolist()
        new_tokens = {}
        for row in sorted(open_rows):
            made.tokens[row].append(new[row])
            new_tokens[request.rows[row]] = new[row]
            if new[row] in request.stop:
                open_rows.discard(row)
        made.steps += 1
        if on_tokens is not None:
            on_tokens(new_tokens)
        batch = batch.next(ids)
        if request.how.repetition_penalty is not None:
            seen = torch.cat((seen, ids[:, None]), dim=1)
    probs = _log_probs(model, shares)
    made.log_probs = [each[: len(row)] for each, row in zip(probs, made.tokens, strict=True)]
    return made


def _real(batch: PaddedTokens) -> torch.Tensor:
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return places >= batch.padding[:, None]


def _next(
    model: LanguageShard,
    request: GenerationRequest,
    logits: torch.Tensor,
    seen: torch.Tensor,
    step: int,
    stopping: bool,
) -> tuple[torch.Tensor, bool]:
    return draw(
        logits,
        model.group,
        request.how,
        token_ids=seen,
        seed=request.seed,
        step=step,
        rows=request.rows,
        vocab_size=model.model.vocab,
        raised=stopping,
    )


def _share(model: LanguageShard, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return what this rank adds to the log-probability of each row's token: [2, rows], fp64.

    They are the logarithm of its share of the sum, and the logit of the token if it has it.
    """
    width, start = logits.shape[1], rank_of(model.group) * logits.shape[1]
    real = max(0, min(width, model.model.vocab - start))
    scores = logits.double()
    share = scores[:, :real].logsumexp(dim=1)
    local = ids - start
    mine = (local >= 0) & (local < width)
    chosen = scores.gather(1, local.where(mine, 0)[:, None])[:, 0].where(mine, -torch.inf)
    return torch.stack((share, chosen))


def _log_probs(model: LanguageShard, shares: list[torch.Tensor]) -> list[list[float]]:
    """Return the log-probabilities of every row's tokens, exchanged for all steps at once."""
    both = gathered(torch.stack(shares, dim=2), model.group)  # [ranks, 2, rows, steps]
    made: list[list[float]] = (both[:, 1].amax(dim=0) - both[:, 0].logsumexp(dim=0)).tolist()
    return made
