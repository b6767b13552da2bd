"""Generates tokens with a key and value cache; logits are never gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mimokit.engine.tensor_parallel.exchange import gathered, rank_of, summed
from mimokit.engine.tensor_parallel.language import Batch, LanguageShard
from mimokit.engine.tensor_parallel.sampling import Sampling, sample


@dataclass(frozen=True)
class Request:
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
        log_probs: of these tokens, by the softmax of the logits as they come from the model.
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
    request: Request,
    on_tokens: OnTokens | None = None,
    stopping: Callable[[], bool] | None = None,
) -> Continuation:
    """Return the tokens that follow prompts. Collective.

    Args:
        model: all layers of this rank.
        request: what is generated.
        on_tokens: see `OnTokens`.
        stopping: whether this rank was asked to stop; all stop once one was.
    """
    prompts = [list(one) for one in request.prompts]
    batch = Batch.of(prompts, model.device)
    cache = model.new_cache(len(prompts), batch.ids.shape[1] + request.max_new_tokens)
    made = Continuation([[] for _ in prompts], [[] for _ in prompts])
    open_rows = set(range(len(prompts)))
    seen = torch.where(_real(batch), batch.ids, -1)
    while open_rows and made.steps < request.max_new_tokens:
        logits = model(batch, cache, last_only=True)[:, -1]
        ids = _next(model, request, logits, seen, made.steps)
        probs = _log_probs(model, logits, ids).tolist()
        new = ids.tolist()
        new_tokens = {}
        for row in sorted(open_rows):
            made.tokens[row].append(new[row])
            made.log_probs[row].append(probs[row])
            new_tokens[request.rows[row]] = new[row]
            if new[row] in request.stop:
                open_rows.discard(row)
        made.steps += 1
        if on_tokens is not None:
            on_tokens(new_tokens)
        if stopping is not None and _any(model, stopping()):
            break
        batch = Batch(ids[:, None], batch.padding)
        seen = torch.cat((seen, ids[:, None]), dim=1)
    return made


def _real(batch: Batch) -> torch.Tensor:
    places = torch.arange(batch.ids.shape[1], device=batch.ids.device)
    return places >= batch.padding[:, None]


def _next(
    model: LanguageShard, request: Request, logits: torch.Tensor, seen: torch.Tensor, step: int
) -> torch.Tensor:
    how = request.how
    return sample(
        logits,
        model.group,
        temperature=how.temperature,
        top_k=how.top_k,
        top_p=how.top_p,
        min_p=how.min_p,
        repetition_penalty=how.repetition_penalty,
        token_ids=seen,
        seed=request.seed,
        step=step,
        rows=request.rows,
        vocab_size=model.model.vocab,
    )


def _log_probs(model: LanguageShard, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the logarithm of the probability of each row's token: [rows], fp64.

    Every rank sends the logarithm of its share of the sum, and the logit of the token if it has it.
    """
    width, start = logits.shape[1], rank_of(model.group) * logits.shape[1]
    real = max(0, min(width, model.model.vocab - start))
    scores = logits.double()
    share = scores[:, :real].logsumexp(dim=1)
    local = ids - start
    mine = (local >= 0) & (local < width)
    chosen = scores.gather(1, local.where(mine, 0)[:, None])[:, 0].where(mine, -torch.inf)
    both = gathered(torch.stack((share, chosen)), model.group)
    return both[:, 1].amax(dim=0) - both[:, 0].logsumexp(dim=0)


def _any(model: LanguageShard, wanted: bool) -> bool:
    """Return whether one of the ranks wants to. Collective."""
    return bool(summed(torch.tensor([int(wanted)], device=model.device), model.group)[0])
