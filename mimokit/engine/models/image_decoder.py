"""An image decoder: layers over the tokens of an image behind the language model, and its pixels.

It takes what the language model has made of the placeholders of an image. All of these rows attend
to each other, as in an adapter, and a matrix makes each of them the pixels of its patch. A decoder
of sound does the same with a recording and the log-mel frames of its tokens.
"""

from __future__ import annotations

from dataclasses import replace

from mimokit.architecture.tokens import row_features
from mimokit.config import ProjectorArchitecture
from mimokit.engine.megatron import ModuleSpec
from mimokit.engine.models.adapter import ROWS
from mimokit.engine.models.transformer import ModuleBuild


def image_decoder_spec(build: ModuleBuild) -> ModuleSpec:
    """Return the spec of a decoder; the provider injects groups and stage.

    Raises:
        ValueError: if its sizes do not divide each other.
    """
    network, language = build.architecture, build.joined
    head = ProjectorArchitecture(hidden_sizes=[])
    layers = network.over_rows.model_copy(update={"projector": head})
    made = language.model_copy(update={"hidden_size": row_features(network)})
    spec = ROWS.spec(replace(build, architecture=layers, joined=made))
    spec.submodules["encoders"][ROWS.name].params["inputs"] = language.hidden_size
    return spec
