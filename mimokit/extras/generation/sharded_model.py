"""A language model that stays loaded on the ranks of a cluster, and generates."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Self

from mimokit.cluster import ClusterError, EngineCluster, RankError
from mimokit.config.errors import ConfigError, Problem
from mimokit.extras.generation import on_ranks
from mimokit.extras.generation.on_ranks import Generation, ModelOnRanks, RankTokens, joined
from mimokit.extras.generation.prompts import PromptRules, check_whole
from mimokit.planning.weights import language_planner, stored_weights
from mimokit.units import counted

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from mimokit.cluster import ClusterRun
    from mimokit.extras.generation.network.generate import GenerationRequest

STOP_SECONDS = 30.0
"""How long ranks may take to finish the token they are at, when a call is interrupted."""

OnToken = Callable[[int, int], object]
"""Is given the number of a prompt and its new token."""


class ShardedModel:
    """A language model of Hugging Face on the ranks of a cluster.

    It stays loaded between calls, until the block ends or another world is formed on the engines;
    then the next call loads it again. Use it in a `with` block, or call `close`.

    Args:
        cluster: with at least tensor_parallel x replicas engines; the others stay idle.
        directory: of Hugging Face, or one that `mimokit convert` has written; of a LLaVA its
            language model is loaded, and prompts have no images.
        tensor_parallel: ranks that share every layer.
        replicas: copies of the model, which share the prompts of a call.
        dtype: torch's name of the dtype of loading; None: as in the files.

    Attributes:
        interrupted: what had been generated when the last call was interrupted, or None.

    Raises:
        ConfigError: as `plan_weights`, or the weights are not of a language model, or have what
            cannot run.
        ClusterError: the cluster has too few engines, or a rank fails.
    """

    def __init__(
        self,
        cluster: EngineCluster,
        directory: str | os.PathLike[str],
        tensor_parallel: int = 1,
        *,
        replicas: int = 1,
        dtype: str | None = None,
    ) -> None:
        check_whole("replicas", replicas, least=1)
        planner = language_planner(stored_weights(directory), tensor_parallel, dtype)
        self._rules = PromptRules.of(planner)
        self._plan = planner.plan()
        self._cluster = cluster
        self._replicas = replicas
        name = uuid.uuid4().hex
        self._model = ModelOnRanks(name, os.path.abspath(directory), tensor_parallel, dtype)
        self._closed = False
        self.interrupted: Generation | None = None
        self._run(on_ranks.open_model, self._model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"on {counted(self._ranks, 'rank')}"
        model = self._model
        return f"<ShardedModel {model.directory} TP {model.tensor_parallel}, {state}>"

    @property
    def _ranks(self) -> int:
        return self._model.tensor_parallel * self._replicas

    def logits(self, token_ids: Any) -> NDArray[np.float32]:
        """Return the logits of prompts, gathered for inspection: [batch, tokens, vocabulary].

        Args:
            token_ids: rows of ids; behind rows that are shorter than the longest are NaN.

        Raises:
            ConfigError: a prompt is empty or too long, or an id is not in the vocabulary.
            RankDied: the process of a rank died; the next call loads the model again.
        """
        rows = self._rules.rows(token_ids)
        of_ranks: list[NDArray[np.float32]] = self._run(on_ranks.logits_on_rank, self._model, rows)
        return of_ranks[0]

    def generate(
        self,
        token_ids: Any,
        max_new_tokens: int = 32,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        *,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
        stop_tokens: Sequence[int] | None = None,
        on_token: OnToken | None = None,
    ) -> Generation:
        """Return the tokens that follow prompts; the most likely ones without a temperature.

        Interrupting it (the stop button) ends all rows after the token they are at; the model stays
        loaded, and `interrupted` has what there was.

        Args:
            temperature: logits are divided by it; None or 0: the most likely token.
            top_p: only the most likely tokens that reach this probability together.
            seed: a draw depends on the seed, the number of the prompt and that of the token alone.
            min_p: only tokens with this share of the highest probability.
            repetition_penalty: makes tokens of the prompt and new ones less likely.
            stop_tokens: a row ends with one of them; None: the `eos_token_id` of the files.
            on_token: called with the number of the prompt and every new token as it comes, from
                another thread.

        Raises:
            ConfigError: an argument is out of its range; a prompt as for `logits`; logits that are
                not finite, with the rank.
            RankDied: as `logits`.
        """
        how = {
            "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "repetition_penalty": repetition_penalty,
        }  # fmt: skip
        request = self._rules.request(token_ids, max_new_tokens, how, seed, stop_tokens)
        requests = self._shared(request)
        run = self._submit(on_ranks.generate_on_rank, self._model, requests)
        try:
            if on_token is not None:
                run.on_sample(_streamer(on_token))
            made = self._result(run)
        except KeyboardInterrupt:
            self._interrupt(run)
            raise
        finally:
            if on_token is not None and run.done:
                run.drain()
        return joined([generation for generation in made if generation is not None])

    def head_map(self) -> pd.DataFrame:
        """Return which heads, groups and rows of the vocabulary every rank has: [start, stop)."""
        import pandas as pd

        rows = [
            {
                "rank": rank,
                "query_heads": shard.query_heads,
                "query_groups": shard.query_groups,
                "vocab": shard.vocab,
                "bytes": shard.bytes,
            }
            for rank, shard in enumerate(self._plan.ranks)
        ]
        return pd.DataFrame(rows).set_index("rank")

    def memory(self) -> pd.DataFrame:
        """Return the memory of every rank in bytes, and how far it is from the mean of all.

        A rank that is far off has another share of the model than planned, or keeps what others do
        not: compare with `head_map`.
        """
        import pandas as pd

        of_ranks: list[int] = self._run(on_ranks.memory_on_rank, self._model)
        table = pd.DataFrame({"bytes": of_ranks}).rename_axis("rank")
        return table.assign(share_from_mean=table["bytes"] / table["bytes"].mean() - 1)

    def close(self) -> None:
        """Forget the model on all ranks; may be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._cluster.world_size == self._ranks and self._cluster.current_run is None:
                self._cluster.run(on_ranks.close_model, self._model.name)
        except ClusterError:
            pass  # ranks that are gone keep nothing

    def _shared(self, request: GenerationRequest) -> tuple[GenerationRequest, ...]:
        rows = request.rows
        shares = min(self._replicas, len(rows))
        ends = [number * len(rows) // shares for number in range(shares + 1)]
        return tuple(
            replace(request, prompts=request.prompts[start:end], rows=rows[start:end])
            for start, end in pairwise(ends)
        )

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> ClusterRun:
        if self._closed:
            raise ClusterError("this model is closed; open it again with ShardedModel(...)")
        return self._cluster.submit(function, *arguments, world_size=self._ranks)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        run = self._submit(function, *arguments)
        try:
            return self._result(run)
        except KeyboardInterrupt:
            run.abort()
            run.wait_ended(STOP_SECONDS)
            raise

    def _result(self, run: ClusterRun) -> list[Any]:
        try:
            return run.result()
        except RankError as error:
            if error.type_name not in ("FloatingPointError", "ConfigError"):
                raise
            sentence = error.message
            if error.type_name == "FloatingPointError":
                sentence = f"{self._model.directory}: {sentence}"
        raise ConfigError([Problem("weights", "logits", None, sentence)])

    def _interrupt(self, run: ClusterRun) -> None:
        """End a run after the token it is at, or at once if that takes too long."""
        run.stop()
        try:
            made: list[RankTokens | None] = run.result(STOP_SECONDS)
        except (TimeoutError, ClusterError):
            run.abort()
            run.wait_ended(STOP_SECONDS)
            return
        self.interrupted = joined([generation for generation in made if generation is not None])


def _streamer(on_token: OnToken) -> Callable[[Any], None]:
    def hear(sample: Any) -> None:
        for row, token in sample["tokens"].items():
            on_token(row, token)

    return hear
