"""What of decoders that write no text can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, module_problem, network_path


def unrunnable_decoder(model: MimoParallelismConfig, name: str) -> Iterator[Problem]:
    """Yield a decoder of sound, and one of images that differ in size."""
    network = model.get_architecture(name)
    if network.modality == "audio":
        sentence = (
            f"it comes behind '{model.llm_module_name}' and makes sound, which can be planned but "
            "not run yet; leave mel_bins out."
        )
        fix = a_fix(network_path(name, "mel_bins"), None)
        yield module_problem(name, "mel_bins", network.mel_bins, sentence, fix)
        return
    encoder = model.reconstructed_by(network)
    if encoder is not None and model.get_architecture(encoder).any_image_size:
        sentence = (
            f"it makes the images of '{encoder}', which may be of any size; that can be planned "
            "but not run yet."
        )
        yield module_problem(name, "reconstructs", network.reconstructs, sentence)
