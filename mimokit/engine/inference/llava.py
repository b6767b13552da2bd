"""A LLaVA on the ranks of a tensor parallel group: its language model, and what makes features."""

from __future__ import annotations

from dataclasses import replace

import torch

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE, PROJECTOR
from mimokit.architecture.huggingface.functions import NetworkFunctions
from mimokit.architecture.huggingface.llava import PROJECTOR_ACTIVATION
from mimokit.architecture.modules import MultimodalModel, VisionEncoder
from mimokit.architecture.tensor_cut import Span
from mimokit.engine.inference.exchange import Group
from mimokit.engine.inference.language import LanguageShard
from mimokit.engine.inference.layers import Layers, Parameters, Watch
from mimokit.engine.inference.tower import TowerShard

PROJECTOR_PART = PROJECTOR.removesuffix(".")


class LlavaShard:
    """The part of a LLaVA that one rank has: of its language model, on the first stage of all.

    Args:
        parameters: of this rank, as `read_shard` returns them.
        functions: what lies between the matrices of the language model.
        layers: of the language model on this rank's stage.
    """

    def __init__(
        self,
        parameters: Parameters,
        model: MultimodalModel,
        functions: NetworkFunctions,
        tower_functions: NetworkFunctions,
        group: Group,
        layers: Span,
    ) -> None:
        self.parameters = parameters
        self.language = LanguageShard(
            _inside(parameters, LANGUAGE), model.language, functions, group, layers
        )
        tower = model.branches[0].computed.encoder
        assert isinstance(tower, VisionEncoder)
        self.tower: TowerShard | None = None
        if self.language.is_first:
            span = (0, tower.net.layers)
            held = _inside(parameters, ENCODER)
            self.tower = TowerShard(held, tower, tower_functions, group, span)
        self._projector = Layers(
            _inside(parameters, PROJECTOR),
            tower.net,
            replace(tower_functions, activation=PROJECTOR_ACTIVATION),
            group,
            (0, 0),
        )

    @torch.no_grad()
    def features(self, images: torch.Tensor, watch: Watch) -> torch.Tensor:
        """Return what replaces the placeholders of images; on the first stage. Collective.

        Args:
            images: [batch, channels, pixels, pixels].
            watch: is given the output of every part of tower and projector.

        Returns:
            [batch, tokens of an image, hidden size of the language model].
        """
        assert self.tower is not None
        hidden = self.tower.hidden_states(images, None, under(ENCODER, watch))
        model = self.tower.model
        if model.class_token and not model.keeps_class_token:
            hidden = hidden[:, 1:]
        made = self._projector.feed_forward(hidden, "encoder")
        watch(PROJECTOR_PART, made)
        return made


def under(prefix: str, watch: Watch) -> Watch:
    """Return a watch that puts a prefix in front of the names of parts."""

    def named(name: str, output: torch.Tensor) -> None:
        watch(f"{prefix}{name}", output)

    return named


def _inside(parameters: Parameters, prefix: str) -> Parameters:
    """Return the parameters of a part, under their names in it."""
    return {
        name.removeprefix(prefix): value
        for name, value in parameters.items()
        if name.startswith(prefix)
    }
