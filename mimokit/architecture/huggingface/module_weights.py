"""The module of a run that starts from weights: its tensors in the files.

They may contain more than the module: a whole CLIP its tower, a LLaVA a language model and
an encoder with its projector.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from mimokit.architecture.encoders import ENCODER_NAMES, VisionEncoder
from mimokit.architecture.huggingface import from_hf
from mimokit.architecture.huggingface.families import (
    FAMILIES,
    PROJECTOR_WEIGHT,
    Family,
    language_family,
    prefix_of,
)
from mimokit.architecture.huggingface.networks import lacks_part
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
    """
    kind = config.get("model_type")
    check_readable("Weights", kind, (*FAMILIES, *MIXTURE_TYPES))
    part = _part_of(from_hf(config, "model"), language)
    if isinstance(part, LanguageModel):
        padded = 1 if network is None else network.vocabulary_multiple or 1
        further = network is None or network.next_token_layers > 0
        return language_family(config, part, names, vocab_multiple=padded, further=further)
    if kind in QWEN_VISION_TYPES:
        assert isinstance(part, EncoderBranch)
        return _qwen_family(str(kind), part, names)
    tower = part if isinstance(part, VisionEncoder) else part.encoder
    assert isinstance(tower, VisionEncoder)
    run, name = _run_tower(tower, network), ENCODER_NAMES[VisionEncoder]
    table = encoder_tensors(run, name)
    if isinstance(part, EncoderBranch):
        table = module_tensors(replace(part, encoder=run))
    weights = WeightTensors(by_name(table))
    prefix = prefix_of(names, "embeddings.patch_embedding.weight")
    add_tower(weights, run, prefix, name)
    weights.passed_over += [*([] if run.row_head else [f"{prefix}head."]), *OF_WHOLE_MODELS]
    if isinstance(part, EncoderBranch):
        near = any(f".{name}".endswith(f".{PROJECTOR_WEIGHT}") for name in names)
        prefix = prefix_of(names if near else others, PROJECTOR_WEIGHT)
        add_projector(weights, part.projector, prefix, PROJECTOR_NAME)
    return Family(str(kind), tower, weights)


def _part_of(model: Model, language: bool) -> LanguageModel | VisionEncoder | EncoderBranch:
    if isinstance(model, MultimodalModel):
        return model.language if language else model.branches[0].computed
    if not isinstance(model, LanguageModel if language else VisionEncoder):
        raise lacks_part(language)
    return model


def _qwen_family(kind: str, branch: EncoderBranch, names: Collection[str]) -> Family:
    weights, prefix = WeightTensors(by_name(module_tensors(branch))), prefix_of(names, PATCHES)
    add_qwen_tower(weights, kind, branch, prefix, ENCODER_NAMES[VisionEncoder], PROJECTOR_NAME)
    return Family(kind, branch.encoder, weights)


def _run_tower(tower: VisionEncoder, network: ModuleArchitecture | None) -> VisionEncoder:
    one_row = network is not None and network.one_row
    if one_row and tower.row_head is None:
        field = ModuleArchitecture.one_row.field
        what = f"{field} is true, but its weights have no {field.replace('_', ' ')}; leave it out."
        raise ConfigError([Problem("weights", field, True, what)])
    return replace(tower, images=replace(tower.images, one_row=one_row))
