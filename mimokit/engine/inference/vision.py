"""A vision tower (CLIP, SigLIP) on the ranks of a tensor parallel group, alone or in a LLaVA."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from mimokit.architecture.huggingface.families import ENCODER, LANGUAGE, PROJECTOR
from mimokit.architecture.huggingface.functions import NetworkFunctions
from mimokit.architecture.huggingface.llava import PROJECTOR_ACTIVATION
from mimokit.architecture.modules import MultimodalModel, VisionEncoder
from mimokit.architecture.tensor_cut import Span
from mimokit.engine.inference.exchange import Group
from mimokit.engine.inference.language import LanguageShard
from mimokit.engine.inference.layers import (
    ACTIVATIONS,
    FINAL_NORM,
    Layers,
    Parameters,
    StackShard,
    Tokens,
    Watch,
    unwatched,
)
from mimokit.planning.weights.running import EMBEDDING, OUTPUT


class TowerShard(StackShard):
    """The part of a vision tower that one rank has."""

    def __init__(
        self,
        parameters: Parameters,
        model: VisionEncoder,
        functions: NetworkFunctions,
        group: Group,
        span: Span,
    ) -> None:
        super().__init__(parameters, model.net, functions, group, span)
        self.model = model

    @torch.no_grad()
    def __call__(
        self,
        images: torch.Tensor,
        hidden: torch.Tensor | None = None,
        watch: Watch = unwatched,
    ) -> torch.Tensor:
        """Return the output for each image, or the hidden states for the next stage. Collective.

        Args:
            images: [batch, channels, pixels, pixels].
            hidden: of the stage before; None on the first.

        Returns:
            CLIP: the class token, [batch, hidden]. SigLIP: the pooled patches likewise, or without
            its head all of them, [batch, patches, hidden].
        """
        hidden = self.hidden_states(images, hidden, watch)
        if not self.is_last:
            return hidden
        hidden = self.layers.norm(hidden[:, :1] if self.model.class_token else hidden, FINAL_NORM)
        watch(FINAL_NORM, hidden)
        output = hidden[:, 0] if self.model.class_token else hidden
        if self.model.head == "attention":
            output = self._pooled(hidden)
        watch(OUTPUT, output)
        return output

    @torch.no_grad()
    def hidden_states(
        self, images: torch.Tensor, hidden: torch.Tensor | None, watch: Watch
    ) -> torch.Tensor:
        """Return the output of the layers, the class token included. Collective."""
        if hidden is None:
            hidden = self._embedded(images.to(self.device, self.dtype))
            watch(EMBEDDING, hidden)
        return self.layers(hidden, Tokens(), None, watch)

    def _embedded(self, images: torch.Tensor) -> torch.Tensor:
        """Return patches with positions behind the class token, normed if there is such a norm."""
        parameters, size = self.parameters, self.model.patch_size
        patches = F.unfold(images, size, stride=size).transpose(1, 2)
        bias = parameters.get("patch_embedding.bias")
        hidden = F.linear(patches, parameters["patch_embedding.weight"], bias)
        if self.model.class_token:
            token = parameters["class_token"].expand(len(hidden), 1, -1)
            hidden = torch.cat((token, hidden), dim=1)
        hidden = hidden + parameters["position_embedding"]
        return self.layers.norm(hidden, "pre_layernorm") if self.model.norms > 1 else hidden

    def _pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return SigLIP's pooling: a learned query attends to all patches, then a residual MLP."""
        head = _inside(self.parameters, "head.")
        heads, probe = self.model.net.heads, head["probe"].expand(len(hidden), -1, -1)
        weights = head["attention.in_proj_weight"].chunk(3)
        biases = head["attention.in_proj_bias"].chunk(3)
        query, key, value = (
            F.linear(tokens, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
            for tokens, weight, bias in zip((probe, hidden, hidden), weights, biases, strict=True)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        pooled = F.linear(mixed, head["attention.out_proj.weight"], head["attention.out_proj.bias"])
        functions = self.layers.functions
        normed = F.layer_norm(
            pooled, pooled.shape[-1:], head["layernorm.weight"], head["layernorm.bias"],
            functions.epsilon,
        )  # fmt: skip
        inner = F.linear(normed, head["mlp.fc1.weight"], head["mlp.fc1.bias"])
        inner = ACTIVATIONS[functions.activation](inner)
        return (pooled + F.linear(inner, head["mlp.fc2.weight"], head["mlp.fc2.bias"]))[:, 0]


PROJECTOR_PART = PROJECTOR.removesuffix(".")


class LlavaShard:
    """The part of a LLaVA that one rank has: of its language model, on the first stage of all.

    `functions` and `span` are those of the language model.
    """

    def __init__(
        self,
        parameters: Parameters,
        model: MultimodalModel,
        functions: NetworkFunctions,
        tower_functions: NetworkFunctions,
        group: Group,
        span: Span,
    ) -> None:
        self.parameters = parameters
        words = _inside(parameters, LANGUAGE)
        self.language = LanguageShard(words, model.language, functions, group, span)
        tower = model.branches[0].computed.encoder
        assert isinstance(tower, VisionEncoder)
        self.tower: TowerShard | None = None
        if self.language.is_first:
            pixels, layers = _inside(parameters, ENCODER), (0, tower.net.layers)
            self.tower = TowerShard(pixels, tower, tower_functions, group, layers)
        between = replace(tower_functions, activation=PROJECTOR_ACTIVATION)
        projector = _inside(parameters, PROJECTOR)
        self._projector = Layers(projector, tower.net, between, group, (0, 0))

    @torch.no_grad()
    def features(self, images: torch.Tensor, watch: Watch) -> torch.Tensor:
        """Return what replaces the placeholders of images; on the first stage. Collective.

        [batch, channels, pixels, pixels] -> [batch, tokens, hidden size of the language model].
        """
        assert self.tower is not None
        hidden = self.tower.hidden_states(images, None, under(ENCODER, watch))
        model = self.tower.model
        if model.class_token and not model.keeps_class_token:
            hidden = hidden[:, 1:]
        features = self._projector.feed_forward(hidden, "encoder")
        watch(PROJECTOR_PART, features)
        return features


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
