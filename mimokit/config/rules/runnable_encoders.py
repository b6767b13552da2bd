"""What of projectors can be planned but cannot be run yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import ProjectorArchitecture
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import (
    ModuleSizes,
    a_fix,
    leave_out,
    module_problem,
    network_path,
)
from mimokit.config.rules.module_rules import CHUNKS
from mimokit.units import counted


def unrunnable_projector(model: MimoParallelismConfig, name: str) -> Iterator[Problem]:
    """Yield projectors of inner layers, and widths that cannot be cut."""
    network = model.get_architecture(name)
    stated = network.projector or ProjectorArchitecture()
    homogeneous = model.deployment_mode == "homogeneous"
    ranks = model.get_parallelism(model.llm_module_name if homogeneous else name).tensor_parallel
    receivers = [n for n in model.receivers_of(name) if n in model.module_architectures]
    if not receivers:
        return
    widths = [_column_widths(stated, model.get_architecture(receiver)) for receiver in receivers]
    for width in dict.fromkeys(itertools.chain.from_iterable(widths)):
        if width % ranks:
            sentence = (
                f"projector.hidden_sizes has a matrix of {width} outputs, which tensor_parallel "
                f"{ranks} does not divide; choose other widths."
            )
            yield module_problem(name, "projector.hidden_sizes", stated.hidden_sizes, sentence)
    merged = network.merge_size ** (2 if network.modality == "vision" else 1)
    features = network.hidden_size * merged
    yield from _norm(name, "norm_size", stated.norm_size or network.hidden_size, features, stated)
    if network.inner_layers:
        piece = stated.deepstack_norm_size or features
        yield from _norm(name, "deepstack_norm_size", piece, features, stated)
        yield from _inner_layers(model, name)


def _column_widths(stated: ProjectorArchitecture, taking: ModuleArchitecture) -> list[int]:
    """Return the widths of outputs that ranks share, of a projector for one receiver."""
    inside = stated.hidden_sizes
    inside = [taking.feed_forward_size] if inside is None else inside
    return [*inside, taking.hidden_size][::2]


def _norm(
    name: str, field: str, piece: int, features: int, stated: ProjectorArchitecture
) -> Iterator[Problem]:
    """Yield a norm in front of a projector whose width does not divide that of a token."""
    kind = getattr(stated, field.replace("norm_size", "normalization"))
    if kind is not None and features % piece:
        sentence = (
            f"projector.{field} is {piece}, which does not divide the {features} features of a "
            "token; choose a divisor."
        )
        path = network_path(name, f"projector.{field}")
        yield module_problem(name, f"projector.{field}", piece, sentence, a_fix(path, None))


def _inner_layers(model: MimoParallelismConfig, name: str) -> Iterator[Problem]:
    """Yield projectors of inner layers whose rows would be added on several stages.

    The language model adds them where it takes the others in: in its first chunk of layers.
    """
    network, language = model.get_architecture(name), model.get_architecture(model.llm_module_name)
    field, given = "projector.deepstack_layers", list(network.inner_layers)
    path = network_path(name, field)
    if network.modality != "vision" or language.builder is not None:
        yield leave_out(name, field, given, path)
        return
    sizes = model.get_parallelism(model.llm_module_name)
    cut = ModuleSizes(pipeline=sizes.pipeline_parallel, virtual=sizes.in_runs(CHUNKS))
    layers, fewer = cut.layers_per_chunk(language.num_layers, language.mtp_num_layers or 0)
    first = int(layers - fewer)
    if len(given) > first:
        sentence = (
            f"{field} names {counted(len(given), 'layer')}, whose rows the first layers of "
            f"'{model.llm_module_name}' add, but its first stage has {counted(first, 'layer')} in "
            "its first chunk; lower its pipeline_parallel, or name fewer."
        )
        yield module_problem(name, field, given, sentence)
