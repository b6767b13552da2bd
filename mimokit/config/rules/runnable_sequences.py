"""Sequences that ranks cannot share evenly in a run.

Sequences of encoders are padded. Predictions suppose that those of text decoders are, too; that of
the language module has to divide for both (`mimokit.config.rules.module_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.parallelism import ModuleParallelismConfig
from mimokit.config.rules.facts import a_fix, module_problem, size_path


def uneven_sequences(model: MimoParallelismConfig, data: DataConfig | None) -> Iterator[Problem]:
    """Yield the text decoders whose tokens their ranks cannot share evenly."""
    for name in model.decoder_module_names:
        network = model.module_architectures.get(name)
        if network is None or network.builder is not None:
            continue
        sizes = model.get_parallelism(name)
        tokens = network.positions if data is None else data.seq_length
        yield from _context(name, sizes, tokens) or _slices(name, sizes, tokens)


def _context(name: str, sizes: ModuleParallelismConfig, tokens: int) -> list[Problem]:
    """Return what is wrong with the chunks of context-parallel ranks, two each."""
    ranks = sizes.context_parallel
    chunks = 2 * ranks if ranks > 1 else 1
    if tokens % chunks == 0:
        return []
    sentence = (
        f"context_parallel is {ranks}, which cuts its {tokens} tokens into {chunks} unequal "
        "pieces; choose one that divides them."
    )
    return [module_problem(name, "context_parallel", ranks, sentence)]


def _slices(name: str, sizes: ModuleParallelismConfig, tokens: int) -> list[Problem]:
    """Return what is wrong with the slices of tensor-parallel ranks."""
    ranks, held = sizes.tensor_parallel, tokens // sizes.context_parallel
    if not sizes.in_runs("sequence_parallel") or held % ranks == 0:
        return []
    sentence = (
        f"sequence_parallel is true, but tensor_parallel {ranks} does not divide the {held} "
        "tokens of a context-parallel rank; choose a divisor, or set sequence_parallel to false."
    )
    fix = a_fix(size_path(name, "sequence_parallel"), False)
    return [module_problem(name, "sequence_parallel", True, sentence, fix)]
