"""A vision tower (CLIP, SigLIP) on the ranks of a tensor parallel group, one stage or all."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mimokit.architecture.huggingface.functions import NetworkFunctions
from mimokit.architecture.modules import VisionEncoder
from mimokit.architecture.tensor_cut import Span
from mimokit.engine.inference.exchange import Group
from mimokit.engine.inference.layers import (
    ACTIVATIONS,
    FINAL_NORM,
    Layers,
    Parameters,
    Tokens,
    Watch,
    unwatched,
)
from mimokit.planning.weights.check_plan import EMBEDDING, OUTPUT


class TowerShard:
    """The part of a vision tower that one rank has.

    Args:
        parameters: of this rank, as `read_shard` returns them.
    """

    def __init__(
        self,
        parameters: Parameters,
        model: VisionEncoder,
        functions: NetworkFunctions,
        group: Group,
        layers: Span,
    ) -> None:
        self.parameters = parameters
        self.model = model
        self.layers = Layers(parameters, model.net, functions, group, layers)
        some = next(iter(parameters.values()))
        self.device, self.dtype = some.device, some.dtype

    @torch.no_grad()
    def __call__(
        self,
        images: torch.Tensor,
        hidden: torch.Tensor | None = None,
        watch: Watch = unwatched,
    ) -> torch.Tensor:
        """Return what the tower makes of each image, or the hidden states for the next stage.

        Collective.

        Args:
            images: [batch, channels, pixels, pixels].
            hidden: of the stage before; None on the first.

        Returns:
            CLIP: the class token, [batch, hidden]. SigLIP: the pooled patches likewise, or without
            its head all of them, [batch, patches, hidden].
        """
        hidden = self.hidden_states(images, hidden, watch)
        if self.layers.span[1] < self.model.net.layers:
            return hidden
        hidden = self.layers.norm(hidden[:, :1] if self.model.class_token else hidden, FINAL_NORM)
        watch(FINAL_NORM, hidden)
        made = hidden[:, 0] if self.model.class_token else hidden
        if self.model.head == "attention":
            made = self._pooled(hidden)
        watch(OUTPUT, made)
        return made

    @torch.no_grad()
    def hidden_states(
        self, images: torch.Tensor, hidden: torch.Tensor | None, watch: Watch
    ) -> torch.Tensor:
        """Return the output of the layers, the class token included; arguments as of a call.

        Collective.
        """
        if hidden is None:
            hidden = self._embedded(images.to(self.device, self.dtype))
            watch(EMBEDDING, hidden)
        return self.layers(hidden, Tokens(), None, watch)

    def _embedded(self, images: torch.Tensor) -> torch.Tensor:
        """Return patches with positions behind the class token, normed if there is such a norm."""
        held, size = self.parameters, self.model.patch_size
        patches = F.unfold(images, size, stride=size).transpose(1, 2)
        bias = held.get("patch_embedding.bias")
        hidden = F.linear(patches, held["patch_embedding.weight"], bias)
        if self.model.class_token:
            token = held["class_token"].expand(len(hidden), 1, -1)
            hidden = torch.cat((token, hidden), dim=1)
        hidden = hidden + held["position_embedding"]
        return self.layers.norm(hidden, "pre_layernorm") if self.model.norms > 1 else hidden

    def _pooled(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return SigLIP's pooling: a learned query attends to all patches, then a residual MLP."""
        held = {
            name.removeprefix("head."): value
            for name, value in self.parameters.items()
            if name.startswith("head.")
        }
        heads, probe = self.model.net.heads, held["probe"].expand(len(hidden), -1, -1)
        weights = held["attention.in_proj_weight"].chunk(3)
        biases = held["attention.in_proj_bias"].chunk(3)
        query, key, value = (
            F.linear(given, weight, bias).unflatten(-1, (heads, -1)).transpose(1, 2)  # type: ignore[no-untyped-call]
            for given, weight, bias in zip((probe, hidden, hidden), weights, biases, strict=True)
        )
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        pooled = F.linear(mixed, held["attention.out_proj.weight"], held["attention.out_proj.bias"])
        functions = self.layers.functions
        normed = F.layer_norm(
            pooled, pooled.shape[-1:], held["layernorm.weight"], held["layernorm.bias"],
            functions.epsilon,
        )  # fmt: skip
        inner = F.linear(normed, held["mlp.fc1.weight"], held["mlp.fc1.bias"])
        inner = ACTIVATIONS[functions.activation](inner)
        return (pooled + F.linear(inner, held["mlp.fc2.weight"], held["mlp.fc2.bias"]))[:, 0]
