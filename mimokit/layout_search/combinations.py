"""What of a search's layouts is refused with what the modules and the run have."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimokit.architecture import Model
from mimokit.architecture.encoders import Described
from mimokit.axes import CONFIG_FIELDS, SIZE_FIELDS
from mimokit.config import ExperimentConfig
from mimokit.config.parallelism import LEFT_OUT
from mimokit.config.rules.combinations import Part, part_of, refusal
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import ENCODER_OF, LANGUAGE, WRITER, Role
from mimokit.config.sizes import RECOMPUTE_NAMES, ParallelSizes
from mimokit.layout_search.constraints import SEARCHED
from mimokit.prediction import Layout, Workload
from mimokit.prediction.workload import branches_of, decoders_of, language_of

FIELDS = {
    SIZE_FIELDS[choice]: CONFIG_FIELDS[choice] for choice in SEARCHED if choice in CONFIG_FIELDS
}
"""Field of `ParallelSizes` that a search varies -> field of a config."""


def parts_of(source: Model | ExperimentConfig, workload: Workload) -> dict[str, Part]:
    """Return the modules of what is searched, as the table of refused combinations reads them."""
    if isinstance(source, ExperimentConfig):
        context = ValidationContext.of(source, None)
        of_config = source.model.module_architectures
        return {name: part_of(context, name, network) for name, network in of_config.items()}
    language = language_of(source)
    run = {"precision": workload.precision, "pipeline_order": workload.pipeline_order}
    parts = {language.name: _part(language, LANGUAGE, run)}
    for branch in branches_of(source):
        role = ENCODER_OF[branch.network.modality]
        parts[branch.name] = _part(branch.encoder, role, run)
    return parts | {each.name: _part(each, WRITER, run) for each in decoders_of(source)}


def _part(module: Described, role: Role, run: Mapping[str, Any]) -> Part:
    return Part(module.network, {**dict(module.network), **run}, role)


def allowed(part: Part, mode: str, sizes: ParallelSizes) -> NDArray[np.bool_]:
    """Return which candidates have nothing that is refused."""
    columns = [np.minimum(np.asarray(getattr(sizes, field)), 2) for field in FIELDS]
    shape = (3,) * len(columns)
    kinds, which = np.unique(np.ravel_multi_index(columns, shape), return_inverse=True)
    each = zip(*np.unravel_index(kinds, shape), strict=True)
    of_kind = [_sized(part, mode, dict(zip(FIELDS, map(int, kind), strict=True))) for kind in each]
    return np.array([not any(kind.refused()) for kind in of_kind])[which]


def refused_sentences(parts: Mapping[str, Part], layout: Layout) -> Iterator[str]:
    """Yield a sentence for each combination of a layout that is refused, as a plan of it says."""
    for name, part in parts.items():
        follows = layout.mode == "homogeneous" and not part.is_language
        sizes = layout.modules[layout.language if part.is_language or follows else name]
        sized = _sized(part, layout.mode, {field: int(getattr(sizes, field)) for field in FIELDS})
        for what, other in sized.refused():
            yield refusal(sized, name, what, other).sentence


def _sized(part: Part, mode: str, sizes: Mapping[str, int]) -> Part:
    """Return a module with sizes; in homogeneous mode those of the language model."""
    stated: dict[str, Any] = {FIELDS[field]: size for field, size in sizes.items()}
    stated[FIELDS["recompute"]] = RECOMPUTE_NAMES[sizes["recompute"]]
    if mode == "homogeneous" and not part.is_language:
        stated |= {field: LEFT_OUT[field] for field in LEFT_OUT.keys() & stated.keys()}
    return replace(part, values={**part.values, **stated, "deployment_mode": mode})
