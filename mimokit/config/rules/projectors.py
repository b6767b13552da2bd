"""Projectors of encoders: their norms, inner layers, and the widths that ranks share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import ProjectorArchitecture
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, module_problem, network_path


def projector_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield norms whose width does not divide that of a token, and inner layers without images."""
    model = context.model
    if not context.is_valid("model.llm_module_name", "model.topology"):
        return
    for name in model.encoder_module_names:
        network = model.module_architectures.get(name)
        if network is None or not context.is_valid(f"model.module_architectures.{name}"):
            continue
        stated = network.projector or ProjectorArchitecture()
        features = network.hidden_size * network.merge_size ** (
            2 if network.modality == "vision" else 1
        )
        width = stated.norm_size or network.hidden_size
        yield from _norm(name, "norm_size", width, features, stated)
        if network.inner_layers:
            width = stated.deepstack_norm_size or features
            yield from _norm(name, "deepstack_norm_size", width, features, stated)
            yield from _inner_layers(name, network)


def widths_on_ranks(context: ValidationContext, name: str) -> tuple[int, ...]:
    """Return the widths of outputs that ranks share, of the projectors of an encoder."""
    model = context.model
    if name not in model.encoder_module_names or name not in model.module_architectures:
        return ()
    stated = model.get_architecture(name).projector or ProjectorArchitecture()
    receivers = [
        model.get_architecture(receiver)
        for receiver in model.receivers_of(name)
        if receiver in model.module_architectures
        and context.is_valid(f"model.module_architectures.{receiver}")
    ]
    widths = itertools.chain.from_iterable(_column_widths(stated, each) for each in receivers)
    return tuple(dict.fromkeys(widths))


def most_inner_layers(context: ValidationContext) -> int:
    """Return the inner layers whose rows the first layers of the language model add."""
    model = context.model
    return max(
        (
            len(network.inner_layers)
            for name, network in model.module_architectures.items()
            if name in model.encoder_module_names
            and context.is_valid(f"model.module_architectures.{name}")
        ),
        default=0,
    )


def _column_widths(stated: ProjectorArchitecture, taking: ModuleArchitecture) -> list[int]:
    inside = stated.hidden_sizes
    inside = [taking.feed_forward_size] if inside is None else inside
    return [*inside, taking.hidden_size][::2]


def _norm(
    name: str, field: str, piece: int, features: int, stated: ProjectorArchitecture
) -> Iterator[Problem]:
    kind = getattr(stated, field.replace("norm_size", "normalization"))
    if kind is not None and features % piece:
        sentence = (
            f"projector.{field} is {piece}, which does not divide the {features} features of a "
            "token; choose a divisor."
        )
        path = network_path(name, f"projector.{field}")
        yield module_problem(name, f"projector.{field}", piece, sentence, a_fix(path, None))


def _inner_layers(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    field = "projector.deepstack_layers"
    if network.modality == "vision":
        return
    given = list(network.inner_layers)
    sentence = (
        f"{field} is {given}, but it reads no images; write {field} for an encoder of images alone."
    )
    yield module_problem(name, field, given, sentence, a_fix(network_path(name, field), None))
