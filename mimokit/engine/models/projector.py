"""What is between an encoder and what it feeds: norm, matrices, an exact GELU between them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from mimokit.axes import Axis
from mimokit.config import ModelSection, ModuleArchitecture, ProjectorArchitecture
from mimokit.config.meaning import Normalization
from mimokit.engine import megatron
from mimokit.engine.models.transformer import ModuleBuild
from mimokit.engine.parallel.sequence import SliceNorm


def projector_spec(build: ModuleBuild, features: int) -> megatron.ModuleSpec:
    """Return the spec of a projector that ends in the receiver's width; groups are injected.

    Two matrices are Megatron's `MLP`, other numbers and those behind a norm a `ProjectorStack`. Of
    several receivers each has one.
    """
    stated = build.architecture.projector or ProjectorArchitecture()
    width = stated.norm_size or build.architecture.hidden_size
    params = _matrices(build, features, stated, stated.normalization, width)
    copies, inner = len(build.architecture.inner_layers), dict[str, Any]()
    if copies:
        piece = stated.deepstack_norm_size or features
        inner = _matrices(build, features, stated, stated.deepstack_normalization, piece)
    elif not build.others:
        return megatron.ModuleSpec(
            module=megatron.MultimodalProjector, params={**params, "tp_group": None}
        )
    others = [
        _matrices(replace(build, joined=receiver), features, stated, stated.normalization, width)
        for receiver in build.others
    ]
    params |= {"inner": inner, "copies": copies, "others": others, "tp_group": None}
    return megatron.ModuleSpec(module=ProjectorOfParts, params=params)


def _matrices(
    build: ModuleBuild,
    features: int,
    stated: ProjectorArchitecture,
    normalization: Normalization | None,
    width: int,
) -> dict[str, Any]:
    receiver, inside = build.joined, stated.hidden_sizes
    inside = [receiver.ffn] if inside is None else inside
    plain = len(inside) == 1 and normalization is None
    network = ModuleArchitecture(
        num_layers=receiver.num_layers,
        hidden_size=receiver.hidden_size,
        num_attention_heads=build.execution.size(Axis.TENSOR),  # there are none
        seq_length=receiver.seq_length,
        vocab_size=0,
        ffn_hidden_size=inside[0] if inside else None,
        add_bias_linear=stated.add_bias_linear,
        init_method=receiver.init_method,
        init_std=receiver.init_std,
        normalization=normalization,
        layernorm_epsilon=build.architecture.layernorm_epsilon,
    )
    # All of it is on the last stage, and its rows are not cut along the sequence.
    execution = build.execution.resized(pipeline=1, virtual=1, sequence_parallel=False)
    norm = None if normalization is None else width
    first = megatron.ColumnParallelLinear if plain else ProjectorStack.of(inside, norm)
    return {
        "config": replace(build, architecture=network, execution=execution).config,
        "submodules": megatron.MLPSubmodules(
            linear_fc1=first, linear_fc2=megatron.RowParallelLinear
        ),
        "projector_type": "mlp" if plain else "affine",
        "input_size": features,
    }


class ProjectorOfParts(megatron.MultimodalProjector):  # type: ignore[misc]
    """Megatron's projector, and others for inner layers and for further receivers of its rows."""

    def __init__(
        self,
        *,
        inner: Mapping[str, Any],
        copies: int,
        others: Sequence[Mapping[str, Any]],
        tp_group: dist.ProcessGroup,
        **options: Any,
    ) -> None:
        super().__init__(tp_group=tp_group, **options)
        self.inner = torch.nn.ModuleList(
            megatron.MultimodalProjector(tp_group=tp_group, **inner) for _ in range(copies)
        )
        self.others = torch.nn.ModuleList(
            megatron.MultimodalProjector(tp_group=tp_group, **other) for other in others
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return rows of [rows, (1 + copies) * features].

        They are [rows, (1 + copies) * width of the first receiver + widths of the others].
        """
        last, *parts = hidden_states.chunk(1 + len(self.inner), dim=-1)
        projected = [inner(part) for inner, part in zip(self.inner, parts, strict=True)]
        projected += [other(last) for other in self.others]
        return torch.cat([super().forward(last), *projected], dim=-1)


def row_width(projector: megatron.MultimodalProjector) -> int:
    """Return the numbers of a row that a projector makes, those for all receivers together."""
    first = int(projector.config.hidden_size) * (1 + len(getattr(projector, "inner", ())))
    return first + sum(map(row_width, getattr(projector, "others", ())))


def receiver_columns(config: ModelSection, encoder: str) -> dict[str, slice]:
    """Return module -> the columns of an encoder's rows for it; none where it feeds one alone.

    There are also none for a module other than an encoder: all receivers take its whole output.
    """
    receivers = config.receivers_of(encoder)
    if len(receivers) == 1 or encoder not in config.encoder_module_names:
        return {}
    widths = [config.get_architecture(name).hidden_size for name in receivers]
    widths[0] *= 1 + len(config.get_architecture(encoder).inner_layers)
    bounds = itertools.pairwise(itertools.accumulate(widths, initial=0))
    return {name: slice(*bound) for name, bound in zip(receivers, bounds, strict=True)}


class ProjectorStack(megatron.MegatronModule):  # type: ignore[misc]
    """Matrices one after another, in place of the one of Megatron's affine projector.

    Ranks share the outputs of the first, the inputs of the second, and so on; they gather the
    outputs of a last one that has no partner.

    Attributes:
        piece: width of the norm in front; a row is cut into pieces of that width, and each is
            normalized. None: nothing is normalized.
    """

    inside: tuple[int, ...] = ()
    piece: int | None = None

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        config: megatron.TransformerConfig,
        tp_group: dist.ProcessGroup,
        bias: bool,
        **options: Any,
    ) -> None:
        super().__init__(config=config)
        if self.piece is not None:
            self.norm = SliceNorm(config, self.piece, eps=config.layernorm_epsilon)
        self.matrices = torch.nn.ModuleList()
        given: dict[str, Any] = {"config": config, "bias": bias, "tp_group": tp_group}
        given |= {"skip_bias_add": False, "is_expert": False}
        widths = (input_size, *self.inside, output_size)
        for number, (inward, outward) in enumerate(itertools.pairwise(widths)):
            kind: dict[str, Any]
            if number % 2:
                kind = {"input_is_parallel": True, "init_method": config.output_layer_init_method}
                matrix = megatron.RowParallelLinear(inward, outward, **given, **kind)
            else:
                last = number == len(self.inside)
                kind = {"gather_output": last, "init_method": config.init_method}
                matrix = megatron.ColumnParallelLinear(inward, outward, **given, **kind)
            self.matrices.append(matrix)

    @classmethod
    def of(cls, inside: Sequence[int], piece: int | None) -> type[ProjectorStack]:
        """Return the class of those of some widths; Megatron passes none of them."""
        return type(cls.__name__, (cls,), {"inside": tuple(inside), "piece": piece})

    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return rows [rows, language width] of rows [rows, features], and no bias to be added."""
        if self.piece is not None:
            pieces = hidden.reshape(*hidden.shape[:-1], -1, self.piece)
            hidden = self.norm(pieces).flatten(-2)
        for number, matrix in enumerate(self.matrices):
            hidden = torch.nn.functional.gelu(hidden) if number else hidden
            hidden, _ = matrix(hidden)
        return hidden, None
