"""Sequences of encoders and text decoders that ranks cannot share evenly in a run.

Predictions suppose that these are padded; the sequence of the language module has to divide for
both (`mimokit.config.rules.module_rules`).
"""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, module_problem, size_path


def uneven_sequences(model: MimoParallelismConfig, data: DataConfig | None) -> Iterator[Problem]:
    """Yield the encoders and text decoders whose positions sequence parallelism cannot share."""
    for name, network in model.module_architectures.items():
        if name == model.llm_module_name or network.builder is not None:
            continue
        homogeneous = model.deployment_mode == "homogeneous"
        cut_as = model.llm_module_name if homogeneous else name
        sizes = model.get_parallelism(cut_as)
        ranks = sizes.tensor_parallel
        decodes = name in model.decoder_module_names and data is not None
        positions = data.seq_length if decodes else network.positions
        if sizes.in_runs("sequence_parallel") and positions % ranks:
            sentence = (
                f"sequence_parallel is true, but tensor_parallel {ranks} does not divide its "
                f"{positions} positions; choose a divisor, or set sequence_parallel to false."
            )
            fix = a_fix(size_path(cut_as, "sequence_parallel"), False)
            yield module_problem(name, "sequence_parallel", True, sentence, fix)
