"""Checks that writing an experiment and reading it back loses nothing a prediction depends on.

A new field of `ParallelSizes`, `Workload` or a model description that experiments cannot state is
refused here, instead of changing a prediction silently.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from mimokit.architecture import EncoderBranch, LanguageModel, Model, VisionEncoder
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ExperimentConfig
from mimokit.config.errors import Problem
from mimokit.prediction import Layout, Workload
from mimokit.prediction.from_config import layout_of_config, workload_of_config
from mimokit.prediction.layout import plain_name
from mimokit.prediction.workload import branches_of, language_of

STEP = "step"


def lost_of_layout(config: ExperimentConfig, layout: Layout) -> Iterator[Problem]:
    """Yield the sizes that change when a layout is read back."""
    back = layout_of_config(config).modules
    for name, sizes in layout.modules.items():
        plain = plain_name(name, layout)
        for field, value, kept in _differences(sizes, back[plain]):
            yield _lost(plain, field, value, kept)


def lost_of_workload(
    config: ExperimentConfig, layout: Layout, workload: Workload, model: Model
) -> Iterator[Problem]:
    """Yield what changes in a step when it is read back."""
    back = workload_of_config(config)
    for field in ("seq_length", "global_batch_size", "precision"):
        value, kept = getattr(workload, field), getattr(back, field)
        if value != kept:
            yield _lost(STEP, field, value, kept)
    frozen = {plain_name(name, layout) for name in workload.frozen}
    if frozen != back.frozen:
        yield _lost(STEP, "frozen", sorted(frozen), sorted(back.frozen))
    for branch in branches_of(model):
        plain = plain_name(branch.name, layout)
        for field, value, kept in _differences(workload.input_of(branch), back.inputs[plain]):
            yield _lost(plain, field, value, kept)


def lost_of_model(config: ExperimentConfig, model: Model) -> Iterator[Problem]:
    """Yield what changes in the networks when they are read back."""
    back = model_of_config(config.model)
    for field, value, kept in _differences(_plain(language_of(model)), _plain(back.language)):
        yield _lost(back.language.name, field, value, kept)
    for branch, other in zip(branches_of(model), back.branches, strict=True):
        for field, value, kept in _differences(_plain(branch), _plain(other)):
            yield _lost(other.name, field, value, kept)


def _plain(module: LanguageModel | EncoderBranch) -> LanguageModel | EncoderBranch:
    """Return a module without its names, its images cropped to whole patches."""
    if isinstance(module, LanguageModel):
        return replace(module, name="")
    encoder = replace(module.encoder, name="")
    if isinstance(encoder, VisionEncoder):
        cell = encoder.patch_size * encoder.merge
        encoder = replace(encoder, image_size=encoder.image_size // cell * cell)
    return replace(module, name="", encoder=encoder)


def _differences(written: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, its value in each) of every difference of two records, nested ones included."""
    for field in (field for field in fields(written) if field.compare):
        value, kept = getattr(written, field.name), getattr(other, field.name)
        if is_dataclass(value) and type(value) is type(kept):
            yield from _differences(value, kept)
        elif value != kept:
            yield field.name, value, kept


def _lost(module: str, field: str, value: object, kept: object) -> Problem:
    begin = "Step" if module == STEP else f"Module '{module}'"
    return Problem(
        module,
        field,
        value,
        f"{begin}: {field} is {value}, which an experiment of its layout cannot state (it "
        f"would be {kept}); change it, or export another form.",
    )
