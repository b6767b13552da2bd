"""An encoder and a language model that the user builds; `docs/own_modules.md` has their rules."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from mimokit.architecture.tokens import RowGeometry, geometry_of
from mimokit.config import ModuleArchitecture
from mimokit.config.user_code import is_spec
from mimokit.engine.device import rank_device
from mimokit.engine.megatron import (
    GPTModel,
    ProcessGroupCollection,
    TopKRouter,
    TransformerConfig,
    build_module,
)
from mimokit.engine.models.adapter import no_rows
from mimokit.engine.models.audio import no_recordings
from mimokit.engine.models.dispatch import take_rows
from mimokit.engine.models.encoder import Encoder, EncoderKind
from mimokit.engine.models.experts import LayoutFreeRouter, count_items, tell_of_crossings
from mimokit.engine.models.patches import GRID, ITEM_TOKENS, no_images, no_patches, token_grids
from mimokit.engine.models.provider import inject_process_groups
from mimokit.engine.models.rng import computing_lengths, computing_other_rows
from mimokit.engine.models.text import no_texts
from mimokit.engine.models.transformer import WHOLE, ModuleBuild
from mimokit.engine.parallel.context import SequenceCut
from mimokit.engine.parallel.full_shards import dtype_computed_in
from mimokit.engine.parallel.marks import check_marks


class BuilderGroups(ProcessGroupCollection):  # type: ignore[misc]
    """The process groups that a builder of the user's is given, for `layer_config` to read."""

    build: ModuleBuild


def layer_config(
    architecture: ModuleArchitecture, groups: ProcessGroupCollection
) -> TransformerConfig:
    """Return Megatron's configuration for the layers of a module that the user builds.

    Raises:
        ValueError: they are other groups, which do not say how the module is executed.
    """
    if not isinstance(groups, BuilderGroups):
        raise ValueError(
            f"layer_config was given a {type(groups).__name__}; give it the process groups that "
            "the builder of the module is called with."
        )
    return replace(groups.build, architecture=architecture).config


def built_by_user(build: ModuleBuild, groups: ProcessGroupCollection) -> torch.nn.Module:
    """Build a module of the user's; parameters `pg_collection` and `tp_group` of a spec are filled.

    Raises:
        ValueError: it builds something that is not a module, or a parameter is marked as cut
            without saying how.
    """
    name, builder = build.name, build.builder
    assert builder is not None
    groups = BuilderGroups(**vars(groups))
    groups.build = build
    if is_spec(builder):
        module = build_module(inject_process_groups(builder, groups, build.execution.weights))
    else:
        module = builder(build.architecture, groups)
    if not isinstance(module, torch.nn.Module):
        raise ValueError(
            f"Module {name!r}: its builder returned a {type(module).__name__}; it must return a "
            "torch.nn.Module."
        )
    check_marks(name, dict(module.named_parameters()))
    return module


class OwnEncoder(Encoder):
    """The user's encoder on a rank that has all of it."""

    runs_whole = True

    def __init__(
        self, build: ModuleBuild, kind: EncoderKind, pg_collection: ProcessGroupCollection
    ) -> None:
        super().__init__(build.config, WHOLE)
        network, self._name = build.architecture, build.name
        self.module = built_by_user(build, pg_collection)
        if network.num_moe_experts is not None:
            self._take_experts(pg_collection)
        torch.manual_seed(build.seed + 1)
        self._network, self.input_size = network, network.hidden_size
        self.geometry = geometry_of(network)
        self._sizes = kind.sizes
        self._features = network.hidden_size * kind.merged(network)

    def forward(
        self, tokens_per_item: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> torch.Tensor:
        """Encode items: [tokens of all items, features], items in order.

        The user's encoder is not called without items, unless others wait for its weights or its
        experts: then it encodes a blank one, of which nothing is given and no token counts. It gets
        `tokens_per_item`, [items], where items differ in size and no other input says so.

        Raises:
            ValueError: the user's encoder returned something else.
        """
        if self._rows(tokens_per_item, inputs):
            return self._encoded(tokens_per_item, inputs)
        if not self.shares_layers:  # of images that replicas share it was given none
            return torch.zeros(0, self._features, device=rank_device())
        dtype = dtype_computed_in(next(self.parameters()))
        blank = blank_item(self.no_items(), self._network.merge_size, dtype)
        with computing_other_rows(pairs=[(-1, 0)]), computing_lengths([]):
            return self._encoded(blank.pop(ITEM_TOKENS, None), blank)[:0]

    def _take_experts(self, groups: ProcessGroupCollection) -> None:
        """Let experts take the tokens of items, of which each rank may have another number."""
        for part in self.module.modules():
            if isinstance(part, TopKRouter) and not isinstance(part, LayoutFreeRouter):
                raise ValueError(
                    f"Module {self._name!r}: its {type(self.module).__name__} has a "
                    f"{type(part).__name__}, which chooses by the tokens of a rank; build its "
                    "experts with experts_spec (mimokit.engine)."
                )
            take_rows(part, groups)
            tell_of_crossings(part)
        count_items(self.module, SequenceCut(self.config, groups, causal=False))

    def _encoded(
        self, tokens_per_item: torch.Tensor | None, inputs: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        rows = self._rows(tokens_per_item, inputs)
        sizes = {ITEM_TOKENS: tokens_per_item} if self._sizes == ITEM_TOKENS else {}
        return self._checked(self.module(**inputs, **sizes), rows)

    def no_items(self) -> dict[str, torch.Tensor]:
        """Return the inputs of 0 items."""
        return no_items_of(self._network, self._sizes)

    def token_grids(self, sizes: torch.Tensor) -> torch.Tensor:
        """Return frames, rows and columns of every item in tokens, from its size: [items, 3]."""
        if isinstance(self.geometry, RowGeometry):
            return sizes
        if self._sizes != GRID:
            return super().token_grids(sizes)
        return token_grids(sizes, self.geometry)

    def _rows(self, tokens_per_item: torch.Tensor | None, inputs: dict[str, torch.Tensor]) -> int:
        if GRID in inputs:
            return int(self.token_grids(inputs[GRID]).prod(1).sum())
        if tokens_per_item is not None:
            return int(tokens_per_item.sum())
        return len(next(iter(inputs.values()))) * int(self.geometry.tokens)

    def _checked(self, output: Any, rows: int) -> torch.Tensor:
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f"Module {self._name!r}: its {type(self.module).__name__} returned a "
                f"{type(output).__name__}; it must return a tensor {self._wanted(rows)}."
            )
        flat = output.flatten(0, 1) if output.dim() == 3 else output
        if tuple(flat.shape) != (rows, self._features):
            raise ValueError(
                f"Module {self._name!r}: its {type(self.module).__name__} returned a tensor of "
                f"{list(output.shape)}; it must be {self._wanted(rows)}."
            )
        return flat

    def _wanted(self, rows: int) -> str:
        return (
            f"of [{rows}, {self._features}]: one row per token of every item in order, and the "
            "width of the network's output (hidden_size, times what merge_size merges)"
        )


_NOTHING: Mapping[str, Callable[[Any, torch.device], dict[str, torch.Tensor]]] = {
    "vision": no_images,
    "audio": no_recordings,
    "text": no_texts,
}


def no_items_of(network: ModuleArchitecture, sizes: str | None) -> dict[str, torch.Tensor]:
    """Return the inputs of 0 items, as an encoder of the user's takes them.

    Args:
        sizes: of its items, see `EncoderKind`.
    """
    if network.modality == "rows":
        return no_rows(network.hidden_size, rank_device())
    geometry: Any = geometry_of(network)
    if sizes == GRID:
        return no_patches(geometry, rank_device())
    return _NOTHING[network.modality](geometry, rank_device())


def blank_item(tensors: Mapping[str, Any], merge_size: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the inputs of the smallest item, of zeros.

    Args:
        tensors: the inputs of any number of items; other entries stay unchanged.
        dtype: of inputs that are not integers.
    """
    patches = merge_size**2 if GRID in tensors else 1
    item = {name: _of_an_item(given, patches, dtype) for name, given in tensors.items()}
    if GRID in item:
        item[GRID] = item[GRID].new_tensor([[1, merge_size, merge_size]])
    return item


def _of_an_item(given: Any, rows: int, dtype: torch.dtype) -> Any:
    if not isinstance(given, torch.Tensor):
        return given
    if given.is_floating_point():
        return given.new_zeros(rows, *given.shape[1:], dtype=dtype)
    return given.new_ones(1, *given.shape[1:])


class OwnLanguageModel:
    """Builds the user's language model where Megatron builds a module of a spec."""

    def __new__(
        cls, config: TransformerConfig, build: ModuleBuild, pg_collection: ProcessGroupCollection
    ) -> Any:
        """Return what the user built.

        Args:
            config: for Megatron's `MimoModel`, which reads it in the spec.

        Raises:
            ValueError: it is not a `GPTModel`, or its sizes are not those of the architecture.
        """
        module, network = built_by_user(build, pg_collection), build.architecture
        if not isinstance(module, GPTModel):
            raise ValueError(
                f"Module {build.name!r}: its builder returned a {type(module).__name__}; the "
                "language model must be a GPTModel of Megatron, or of a class derived from it."
            )
        sizes = module.config.hidden_size, module.vocab_size
        wanted = network.hidden_size, network.vocab_size
        if sizes != wanted:
            raise ValueError(
                f"Module {build.name!r}: its builder returned a {type(module).__name__} with "
                f"hidden_size {sizes[0]} and vocab_size {sizes[1]}; in the config they are "
                f"{wanted[0]} and {wanted[1]}."
            )
        return module
