"""Generating and converting: `python -m tests.benchmarks.decoding_speed`.

On a Llama of 6 million random weights in fp32, 8 layers of width 256.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.table import show
from tests.engine.tensor_parallel.threads import on_threads

NEW, PROMPT = 128, tuple(range(1, 17))
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4096,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    """Measure decoding, two ways to multiply gate and up, and conversion there and back."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "llama"
        theirs = _made(directory)
        cached, uncached = _cached(directory), _uncached(directory)
        ratio = uncached / cached
        found = [
            _row(f"decoding {NEW} tokens with the cache against without", ratio, "x", 4.0),
            _row("decoding, one process", NEW / cached, "tokens/s"),
            _row("decoding, Hugging Face's generate in one process", NEW / theirs, "tokens/s"),
        ]
        for ranks in (2, 4):
            seconds = max(on_threads(ranks, lambda group: _cached(directory, group)))
            found.append(_row(f"decoding at TP {ranks} against TP 1", cached / seconds, "x"))
        found.append(_row("gate and up as one product against two", _fused(), "of the time"))
        return found + _conversion(directory)


def _row(name: str, measured: float, unit: str, least: float | None = None) -> dict[str, Any]:
    good = least is None or measured >= least
    return {"name": name, "measured": measured, "target": least, "unit": unit, "ok": good}


def _made(directory: Path) -> float:
    """Write the checkpoint; returns the seconds of Hugging Face's `generate`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, eos_token_id=None)).eval()
    model.save_pretrained(directory)
    ids = torch.tensor([PROMPT])

    def generate() -> None:
        model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)

    generate()
    return _seconds(generate)


def _cached(directory: Path, group: Any = None) -> float:
    from mimokit.engine.tensor_parallel.generation import Request, generate
    from mimokit.engine.tensor_parallel.loading import load_language

    model = load_language(directory, group)
    generate(model, Request((PROMPT,), (0,), 4))
    return _seconds(lambda: generate(model, Request((PROMPT,), (0,), NEW)))


def _uncached(directory: Path) -> float:
    from mimokit.engine.tensor_parallel import sample
    from mimokit.engine.tensor_parallel.language import Batch
    from mimokit.engine.tensor_parallel.loading import load_language

    model = load_language(directory, None)

    def generate() -> None:
        row = list(PROMPT)
        for _ in range(NEW):
            row.append(int(sample(model(Batch.of([row]), last_only=True)[:, -1], None)[0]))

    return _seconds(generate)


def _fused() -> float:
    import torch
    import torch.nn.functional as F

    hidden, weight = torch.randn(64, 1024), torch.randn(2 * 2816, 1024)
    gate, up = weight.chunk(2)

    def repeated(call: Callable[[], Any]) -> float:
        call()
        return min(_seconds(call) for _ in range(20))

    one = repeated(lambda: F.linear(hidden, weight).chunk(2, dim=-1))
    return one / repeated(lambda: (F.linear(hidden, gate), F.linear(hidden, up)))


def _conversion(directory: Path) -> list[dict[str, Any]]:
    from mimokit.engine.tensor_parallel import convert_to_hf, convert_to_layout

    size = sum(one.stat().st_size for one in directory.glob("*.safetensors"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    there = _seconds(lambda: convert_to_layout(directory, directory.with_name("layout"), 4))
    back = _seconds(lambda: convert_to_hf(directory.with_name("layout"), directory / "back"))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    return [
        _row("conversion into 4 rank files", size / there / 1e6, "MB/s"),
        _row("conversion back", size / back / 1e6, "MB/s"),
        _row("conversion: growth of the peak of resident memory", grown / size, "of the files"),
    ]


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


if __name__ == "__main__":
    show("Generating and converting", rows())
