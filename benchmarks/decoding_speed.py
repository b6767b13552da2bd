"""Generating: `python -m benchmarks decoding_speed`.

On a Llama of 107 million random weights in fp32: 8 layers of width 1,024, heads of width 64, a
feed-forward layer of 2.75 times the width, as Llama has. Reading its weights takes most of the time
of a token, as in models that are used; in one of some million weights, which fit into the caches of
a core, the calls of its layers do, with the cache and without. Every process has as many threads as
stated. What is compared runs in turn, and the median of the pairs counts.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.table import show

NEW, PROMPT = 128, tuple(range(1, 17))
PROMPTS = {16: 3, 256: 1}
"""Length of a prompt -> pairs; without the cache 128 tokens take half a minute, or two."""
PAIRS, REPEATS = 3, 15
RANKS = (1, 2, 4)
SIZES: dict[str, Any] = {
    "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 8192,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Measure decoding with and without a cache, in layouts, and two ways of gate and up."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            directory = Path(folder) / "llama"
            theirs = _made(directory)
            caches = [_cache(directory, length, pairs) for length, pairs in PROMPTS.items()]
            return [*caches, *_in_layouts(directory, theirs), _fused()]
    finally:
        torch.set_num_threads(threads)


def _row(name: str, measured: float, unit: str, least: float | None = None) -> dict[str, Any]:
    target = None if least is None else f"at least {least:g} {unit}"
    good = least is None or measured >= least
    return {"name": name, "measured": measured, "target": target, "unit": unit, "ok": good}


def _made(directory: Path) -> Callable[[], Any]:
    """Write the checkpoint; returns Hugging Face's `generate` of it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=None)).eval()
    model.save_pretrained(directory)
    ids = torch.tensor([PROMPT])
    return lambda: model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)


def _cache(directory: Path, length: int, pairs: int) -> dict[str, Any]:
    """Decode in this process after a prompt, with the cache and without, in turn."""
    from mimokit.extras.generation import sample
    from mimokit.extras.generation.network.generate import GenerationRequest, generate
    from mimokit.extras.generation.network.language import PaddedTokens
    from mimokit.extras.generation.network.loading import load_language

    model, prompt = load_language(directory, None), tuple(range(1, 1 + length))

    def cached() -> None:
        generate(model, GenerationRequest((prompt,), (0,), NEW))

    def uncached() -> None:
        row = list(prompt)
        for _ in range(NEW):
            row.append(int(sample(model(PaddedTokens.of([row]), last_only=True)[:, -1], None)[0]))

    generate(model, GenerationRequest((prompt,), (0,), 4))
    ratios = [_seconds(uncached) / _seconds(cached) for _ in range(pairs)]
    name = f"decoding {NEW} tokens after {length} with the cache against without, 1 thread"
    return _row(name, statistics.median(ratios), "x", 4.0)


def _in_layouts(directory: Path, theirs: Callable[[], Any]) -> list[dict[str, Any]]:
    """Decode on engines of one thread each, and with Hugging Face in as many threads, in turn."""
    import torch

    from mimokit.cluster import EngineCluster
    from mimokit.experiment import ShardedModel

    found = []
    with EngineCluster(n=max(RANKS), progress=False) as cluster:
        speeds: dict[int, list[float]] = {}
        for ranks in RANKS:
            torch.set_num_threads(ranks)
            with ShardedModel(cluster, directory, tensor_parallel=ranks) as model:
                model.generate(PROMPT, 4, stop_tokens=[])
                theirs()
                ours, others = [], []
                for _ in range(PAIRS):
                    ours.append(model.generate(PROMPT, NEW, stop_tokens=[]).tokens_per_second)
                    others.append(NEW / _seconds(theirs))
            speeds[ranks] = ours
            what = f"of {ranks} thread{'s' if ranks > 1 else ''}"
            found += [
                _row(f"decoding, TP {ranks}", statistics.median(ours), "tokens/s"),
                _row(f"Hugging Face's generate {what}", statistics.median(others), "tokens/s"),
            ]
        torch.set_num_threads(1)
    alone = statistics.median(speeds[1])
    return found + [
        _row(f"decoding, TP {ranks} against TP 1", statistics.median(speeds[ranks]) / alone, "x")
        for ranks in RANKS[1:]
    ]


def _fused() -> dict[str, Any]:
    import torch
    import torch.nn.functional as F

    hidden, weight = torch.randn(64, 1024), torch.randn(2 * 2816, 1024)
    gate, up = weight.chunk(2)

    def one() -> None:
        F.linear(hidden, weight).chunk(2, dim=-1)

    def two() -> None:
        F.linear(hidden, gate)
        F.linear(hidden, up)

    one()
    two()
    ratios = [_seconds(one) / _seconds(two) for _ in range(REPEATS)]
    name = "gate and up as one matrix product against two, 64 tokens, 1024 x 2816, 1 thread"
    return _row(name, statistics.median(ratios), "of the time")


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    show("Generating", rows())
