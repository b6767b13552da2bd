"""What weights state of the module of a run that starts from them."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from mimokit.architecture.huggingface.reading import networks_of
from mimokit.config.architecture import ModuleArchitecture, network_of_fields
from mimokit.config.meaning import MEANINGS

_COMPARED = (
    "image_size", "patch_size", "num_channels", "merge_size", "max_position_embeddings",
    "projector",
)  # fmt: skip


def network_fields(directory: str | os.PathLike[str], *, language: bool) -> dict[str, Any]:
    """Return the fields of a module's architecture that its weights state, its length aside."""
    networks, _ = networks_of(directory)
    fields = network_of_fields(networks.part(language)).section()
    fields.pop(ModuleArchitecture.one_row.field, None)  # the output is that of a tower's layers
    del fields["seq_length"]
    return fields


def contradictions(
    network: ModuleArchitecture, fields_of_weights: Mapping[str, Any], *, language: bool
) -> list[tuple[str, Any, Any]]:
    """Return (field, value of the config, value of the weights) where the two differ.

    Layers of weights that predict further tokens may be left out.
    """
    theirs = ModuleArchitecture(**{"seq_length": 1, **fields_of_weights})
    differing = []
    for each in MEANINGS:
        ours, stored = (getattr(source, each.name) for source in (network, theirs))
        left_out = each.field == "mtp_num_layers" and not ours
        if each.read and ours != stored and not left_out:
            differing.append((each.field, ours, stored))
    open_fields = set(_chosen(theirs))
    for field in (name for name in _COMPARED if name not in open_fields):
        stated, other = getattr(network, field), getattr(theirs, field)
        if stated != other:
            differing.append((field, stated, other))
    return differing


def _chosen(theirs: ModuleArchitecture) -> Iterator[str]:
    if theirs.position_embedding_type in ("rope", "interpolated"):
        yield "image_size"
    if theirs.merge_size == 1:
        yield "merge_size"
