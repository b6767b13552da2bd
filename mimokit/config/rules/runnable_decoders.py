"""What of decoders that write no text can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, module_problem, network_path


def unrunnable_decoder(model: MimoParallelismConfig, name: str) -> Iterator[Problem]:
    """Yield a decoder of sound."""
    network = model.get_architecture(name)
    if network.modality == "audio":
        sentence = (
            f"it comes behind '{model.llm_module_name}' and makes sound, which can be planned but "
            "not run yet; leave mel_bins out."
        )
        fix = a_fix(network_path(name, "mel_bins"), None)
        yield module_problem(name, "mel_bins", network.mel_bins, sentence, fix)
