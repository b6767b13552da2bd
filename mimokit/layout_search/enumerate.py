"""The candidates of all modules of a search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mimokit.architecture.modules import EncoderBranch, LanguageModel
from mimokit.config.errors import ConfigError, Problem
from mimokit.layout_search.candidates import Candidates, bounded, candidates, search_facts
from mimokit.layout_search.cost_tables import all_costs
from mimokit.layout_search.space import axes_of
from mimokit.layout_search.task import SearchTask

ALONE_TOO_LARGE = "more memory than may be planned on a GPU, without any encoder"


def enumerate_modules(
    task: SearchTask,
) -> tuple[Candidates, tuple[Candidates, ...], tuple[str, ...]]:
    """Return candidates of the language model and of the encoders, and sentences of what was cut.

    Raises:
        ConfigError: a module has no valid sizes at all.
    """
    cut: tuple[str, ...] = ()
    per_module: list[Candidates] = []
    modules: tuple[LanguageModel | EncoderBranch, ...] = (task.language, *task.branches)
    for module in modules:
        facts = search_facts(task, module)
        axes, shortened = axes_of(facts, task.constraints, task.hardware.domain_ranks)
        cut += shortened
        per_module.append(candidates(facts, axes))
        if not per_module[-1].count:
            raise _no_sizes(per_module[-1])
    language = fitting_alone(task, per_module[0], tuple(per_module[1:]))
    encoders, fewer = bounded(language, tuple(per_module[1:]))
    return language, encoders, cut + fewer


def fitting_alone(
    task: SearchTask, language: Candidates, encoders: tuple[Candidates, ...]
) -> Candidates:
    """Return language candidates without those that are too large without any encoder.

    They are dropped once for all combinations, unless that leaves none: then the leanest
    combination is still to be found.
    """
    anywhere = {encoder.facts.name: encoder.at(0) for encoder in encoders}
    costs, _ = all_costs(task, anywhere, language.sizes)
    fits = np.broadcast_to(costs.memory <= task.memory_limit, (language.count,))
    if fits.all() or not fits.any():
        return language
    dropped = {**language.dropped, ALONE_TOO_LARGE: int(np.count_nonzero(~fits))}
    return replace(language.take(fits), dropped=dropped)


def _no_sizes(module: Candidates) -> ConfigError:
    facts = module.facts
    reasons = sorted(module.dropped.items(), key=lambda item: -item[1])[:3]
    sentence = (
        f"Module '{facts.name}': none of the parallel sizes tried is valid on {facts.gpus} GPUs; "
        f"most were dropped because of: "
        f"{'; '.join(f'{reason} ({count:,} times)' for reason, count in reasons)}."
    )
    return ConfigError([Problem(facts.name, "sizes", None, sentence)])
