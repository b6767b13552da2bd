"""What fills the fullest rank of every module, number by number."""

from __future__ import annotations

from mimokit.architecture.modules import Model
from mimokit.prediction.deployment_modes import encoder_alive
from mimokit.prediction.layout import Layout
from mimokit.prediction.memory import MemoryLine, memory_lines, total_bytes
from mimokit.prediction.module_costs import EncoderCost, LanguageCost
from mimokit.prediction.step_time import System
from mimokit.prediction.workload import Workload, branches_of, language_of

MemoryTable = dict[str, tuple[MemoryLine, ...]]


def memory_table(
    model: Model,
    layout: Layout,
    workload: Workload,
    system: System,
    language: LanguageCost,
    encoders: list[EncoderCost],
) -> MemoryTable:
    """Return module -> lines of its fullest rank, encoders first."""
    found: MemoryTable = {}
    encoder_bytes = 0.0
    for branch, cost in zip(branches_of(model), encoders, strict=True):
        seen = workload.input_of(branch)
        inside = (cost.repeated or cost) if layout.mode == "homogeneous" else cost
        alive = float(encoder_alive(layout.mode, language, inside, encoders))
        encoder_bytes += float(inside.memory(alive))
        found[branch.name] = memory_lines(
            branch,
            inside.sizes,
            seen.length,
            float(inside.micro_batches),
            0,
            samples=float(seen.count * inside.sizes.micro_batch * seen.imbalance),
            frozen=branch.name in workload.frozen,
            held_for=alive,
            storage=system.storage,
        )
    module = language_of(model)
    trained = any(name not in workload.frozen for name in found)
    found[layout.language] = memory_lines(
        module,
        language.sizes,
        workload.seq_length,
        float(language.micro_batches),
        _fullest_stage(layout, language, encoder_bytes),
        frozen=module.name in workload.frozen,
        passes_gradient=trained,
        storage=system.storage,
    )
    return found


def _fullest_stage(layout: Layout, language: LanguageCost, encoder_bytes: float) -> int:
    """Return the fullest stage of the language model; encoders may share its first."""
    shared = encoder_bytes if layout.mode == "homogeneous" else 0.0
    first = float(total_bytes(language.first)) + shared
    return 0 if first >= float(total_bytes(language.last)) else int(language.sizes.pipeline) - 1
