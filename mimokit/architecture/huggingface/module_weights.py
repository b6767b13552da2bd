"""The module of a run that starts from weights: its fields, and its tensors in the files.

They may contain more than the module: a whole CLIP its tower, a LLaVA a language model and
an encoder with its projector.
"""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mimokit.architecture.encoders import ENCODER_NAMES, VisionEncoder
from mimokit.architecture.from_config import (
    encoder_network,
    language_network,
    lone_encoder_network,
)
from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.huggingface.families import (
    FAMILIES,
    PROJECTOR_WEIGHT,
    Family,
    language_family,
    prefix_of,
)
from mimokit.architecture.huggingface.qwen_vision_tensors import (
    PATCHES,
    QWEN_VISION_TYPES,
    add_qwen_tower,
)
from mimokit.architecture.huggingface.unreadable import check_readable
from mimokit.architecture.huggingface.weight_tensors import (
    MIXTURE_TYPES,
    OF_WHOLE_MODELS,
    WeightTensors,
    add_projector,
    add_tower,
)
from mimokit.architecture.modules import (
    PROJECTOR_NAME,
    EncoderBranch,
    LanguageModel,
    Model,
    MultimodalModel,
)
from mimokit.architecture.tensors import by_name, encoder_tensors, module_tensors
from mimokit.config import ModuleArchitecture
from mimokit.config.errors import ConfigError, Problem
from mimokit.config.meaning import MEANINGS

_NOT_COMPARED = (
    "init_std", "window_size", "make_vocab_size_divisible_by", "mtp_loss_scaling_factor",
    "num_registers", "pooling_head",
)  # fmt: skip
"""Fields that decide nothing about what is read, or that files do not have."""
_COMPARED = (
    "image_size", "patch_size", "num_channels", "merge_size", "max_position_embeddings",
    "projector",
)  # fmt: skip

Part = LanguageModel | VisionEncoder | EncoderBranch


def network_fields(directory: str | os.PathLike[str], *, language: bool) -> dict[str, Any]:
    """Return the fields of a module's architecture that its weights state, its length aside."""
    model = from_hf(directory)
    part = _part(model, language)
    if isinstance(part, LanguageModel):
        fields = language_network(part, 1)
    elif isinstance(part, EncoderBranch):
        assert isinstance(model, MultimodalModel)
        fields = encoder_network(part, model.language.net)
    else:
        fields = lone_encoder_network(part)
    fields.pop("pooling_head", None)  # a module's output is that of the tower's layers
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
        if each.field not in _NOT_COMPARED and ours != stored and not left_out:
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


def _part(model: Model, language: bool) -> Part:
    if isinstance(model, MultimodalModel):
        if language:
            return model.language
        return model.branches[0].computed
    wanted = LanguageModel if language else VisionEncoder
    if not isinstance(model, wanted):
        kinds = "a language model" if language else "a vision tower"
        sentence = f"Weights: config.json does not describe {kinds}; give the weights of one."
        raise ConfigError([Problem("weights", "model_type", None, sentence)])
    return model


def module_family(
    config: Mapping[str, Any],
    names: Collection[str],
    *,
    language: bool,
    network: ModuleArchitecture | None = None,
    others: Collection[str] = (),
) -> Family:
    """Return the tensors of a module in the files, under the names that it has in a run.

    Args:
        network: of the module, which leaves out what its config does; None: a whole language model.
        others: names among which an encoder's projector is if it is not among the former.

    Raises:
        ConfigError: as `family_of`, or the part does not exist.
    """
    kind = config.get("model_type")
    check_readable("Weights", kind, (*FAMILIES, *MIXTURE_TYPES))
    part = _part(from_hf(config, "model"), language)
    if isinstance(part, LanguageModel):
        padded = 1 if network is None else network.vocabulary_multiple or 1
        further = network is None or network.next_token_layers > 0
        return language_family(config, part, names, vocab_multiple=padded, further=further)
    if kind in QWEN_VISION_TYPES:
        assert isinstance(part, EncoderBranch)
        return _qwen_family(str(kind), part, names)
    tower = part if isinstance(part, VisionEncoder) else part.encoder
    assert isinstance(tower, VisionEncoder)
    pools = network is not None and network.pools
    run, name = _run_tower(tower, pools), ENCODER_NAMES[VisionEncoder]
    table = encoder_tensors(run, name)
    if isinstance(part, EncoderBranch):
        table = module_tensors(replace(part, encoder=run))
    weights = WeightTensors(by_name(table))
    prefix = prefix_of(names, "embeddings.patch_embedding.weight")
    add_tower(weights, run, prefix, name)
    weights.passed_over += [*([] if pools else [f"{prefix}head."]), *OF_WHOLE_MODELS]
    if isinstance(part, EncoderBranch):
        near = any(f".{name}".endswith(f".{PROJECTOR_WEIGHT}") for name in names)
        prefix = prefix_of(names if near else others, PROJECTOR_WEIGHT)
        add_projector(weights, part.projector, prefix, PROJECTOR_NAME)
    return Family(str(kind), tower, weights)


def _qwen_family(kind: str, branch: EncoderBranch, names: Collection[str]) -> Family:
    weights, prefix = WeightTensors(by_name(module_tensors(branch))), prefix_of(names, PATCHES)
    add_qwen_tower(weights, kind, branch, prefix, ENCODER_NAMES[VisionEncoder], PROJECTOR_NAME)
    return Family(kind, branch.encoder, weights)


def _run_tower(tower: VisionEncoder, pools: bool) -> VisionEncoder:
    if pools and not tower.pools:
        sentence = "pooling_head is true, but its weights have no pooling head; leave it out."
        raise ConfigError([Problem("weights", "pooling_head", True, sentence)])
    return replace(tower, pools=pools)
