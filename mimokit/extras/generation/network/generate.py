"""Generates tokens with a key and value cache; logits are never gathered."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from mimokit.extras.generation.network.exchange import all_gathered, rank_of
from mimokit.extras.generation.network.language import LanguageShard, PaddedTokens
from mimokit.extras.generation.network.sampling import Sampling, draw


@dataclass(frozen=True)
class GenerationRequest:
    """What is generated.

    Attributes:
        rows: numbers of the prompts among all that are asked for at once; draws depend on them.
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
        log_probs: of these tokens, by the softmax of the unchanged logits; known once all tokens
            are.
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

    All ranks stop after the token of a step in which one was asked to (`stopping`).
    """
    rows = len(request.prompts)
    batch = PaddedTokens.of(request.prompts, model.device)
    cache = model.new_cache(rows, batch.ids.shape[1] + request.max_new_tokens)
    continuation = Continuation([[] for _ in range(rows)])
    shares: list[torch.Tensor] = []
    open_rows = set(range(rows))
    seen = torch.where(batch.places >= 0, batch.ids, -1)
    stopped = False
    while open_rows and continuation.steps < request.max_new_tokens and not stopped:
        logits = model(batch, cache, last_only=True)[:, -1]
        ids, stopped = draw(
            logits, model.group, request.how, token_ids=seen, seed=request.seed,
            step=continuation.steps, rows=request.rows, vocab_size=model.model.vocab,
            raised=stopping is not None and stopping(),
        )  # fmt: skip
        shares.append(_share(model, logits, ids))
        new = ids.tolist()
        new_tokens = {}
        for row in sorted(open_rows):
            continuation.tokens[row].append(new[row])
            new_tokens[request.rows[row]] = new[row]
            if new[row] in request.stop:
                open_rows.discard(row)
        continuation.steps += 1
        if on_tokens is not None:
            on_tokens(new_tokens)
        batch = batch.next(ids)
        if request.how.repetition_penalty is not None:
            seen = torch.cat((seen, ids[:, None]), dim=1)
    log_probs = zip(_log_probs(model, shares), continuation.tokens, strict=True)
    continuation.log_probs = [probs[: len(tokens)] for probs, tokens in log_probs]
    return continuation


def _share(model: LanguageShard, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return what this rank adds to the log-probability of each row's token: [2, rows], fp64.

    They are the logarithm of its share of the sum, and the logit of the token if it has it.
    """
    width, start = logits.shape[1], rank_of(model.group) * logits.shape[1]
    real = max(0, min(width, model.model.vocab - start))
    scores = logits.double()
    share = scores[:, :real].logsumexp(dim=1)
    local = ids - start
    here = (local >= 0) & (local < width)
    chosen = scores.gather(1, local.where(here, 0)[:, None])[:, 0].where(here, -torch.inf)
    return torch.stack((share, chosen))


def _log_probs(model: LanguageShard, shares: list[torch.Tensor]) -> list[list[float]]:
    both = all_gathered(torch.stack(shares, dim=2), model.group)  # [ranks, 2, rows, steps]
    probs: list[list[float]] = (both[:, 1].amax(dim=0) - both[:, 0].logsumexp(dim=0)).tolist()
    return probs
