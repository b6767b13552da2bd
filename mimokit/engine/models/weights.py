"""The parameters of a rank by their names in the whole module, and the weights they start from."""

from collections.abc import Iterator
from typing import TypeVar

import torch

from mimokit.architecture.modules import EMBEDDING
from mimokit.architecture.tensor_cut import ShardPlace
from mimokit.config import ModuleArchitecture
from mimokit.engine.megatron import ProcessGroupCollection, TransformerBlock
from mimokit.engine.models.chunks import ModuleChunks, chunks_of
from mimokit.engine.models.experts import SeededExperts
from mimokit.engine.parallel.marks import is_tied_copy
from mimokit.engine.weights.files import opened
from mimokit.engine.weights.reading import fill
from mimokit.planning.weights import WeightPlanner
from mimokit.planning.weights.modules import module_planner

Named = TypeVar("Named")


def named_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return `parameters_of_whole`; the last stage's tied copy has the name of the embedding."""
    return {
        EMBEDDING if is_tied_copy(value) else name: value
        for name, value in parameters_of_whole(module).items()
    }


def parameters_of_whole(module: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Return the parameters of a module by their names in the whole module.

    A pipeline stage numbers its layers from 0, and a rank its experts; here they have their numbers
    in the whole module.
    """
    if isinstance(module, ModuleChunks):
        of_chunks = map(parameters_of_whole, chunks_of(module))
        return {name: value for own in of_chunks for name, value in own.items()}
    return _by_whole_name(module, dict(module.named_parameters()))


def modules_of_whole(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return the modules inside a module, which is no `ModuleChunks`, likewise."""
    return _by_whole_name(module, dict(module.named_modules()))


def _by_whole_name(module: torch.nn.Module, named: dict[str, Named]) -> dict[str, Named]:
    # From the inside out: the names of parts are those on this rank until their own turn.
    for path, part in reversed(list(module.named_modules())):
        prefix = f"{path}." if path else ""
        if isinstance(part, TransformerBlock) and len(part.layers):
            prefix, first = f"{prefix}layers.", part.layers[0].layer_number - 1
        elif isinstance(part, SeededExperts):
            prefix, first = f"{prefix}local_experts.", part.first
        else:
            continue
        named = {_renumbered(name, prefix, first): value for name, value in named.items()}
    return named


def _renumbered(name: str, prefix: str, first: int) -> str:
    if not name.startswith(prefix):
        return name
    number, dot, rest = name[len(prefix) :].partition(".")
    return f"{prefix}{int(number) + first}{dot}{rest}"


_PROJECTOR = "input_projections."
_OTHERS = "input_projections.0.others."


def load_weights(
    module: torch.nn.Module,
    network: ModuleArchitecture,
    language: bool,
    groups: ProcessGroupCollection,
    place: ShardPlace,
) -> None:
    """Fill a module's part that is not wrapped yet: it reads only what this rank holds.

    The projector of an encoder whose weights have none keeps its random ones, as do those for the
    other modules that an encoder feeds.

    Args:
        place: of this rank among those of its stage.

    Raises:
        ConfigError: the weights are damaged or of another network.
    """
    if network.weights is None:
        return
    with opened(network.weights) as (directory, source):
        planner = module_planner(
            directory,
            network,
            language=language,
            tensor_parallel=groups.tp.size(),
            pipeline_parallel=groups.pp.size() * len(chunks_of(module)),
        )
        stored = [parameter.row.name for parameter in planner.family.found.parameters]
        for number, part in numbered_stages(module, planner, groups):
            has_none = not any(name.startswith(_PROJECTOR) for name in stored)
            parameters = {
                name: value
                for name, value in parameters_of_whole(part).items()
                if not name.startswith(_PROJECTOR if has_none else _OTHERS)
            }
            fill(parameters, planner.rank(number, place), source)


def numbered_stages(
    module: torch.nn.Module, planner: WeightPlanner, groups: ProcessGroupCollection
) -> Iterator[tuple[int, torch.nn.Module]]:
    """Yield the stages of a module on this rank, each with the number of its place in a plan."""
    for chunk, part in enumerate(chunks_of(module)):
        stage = groups.pp.rank() + chunk * groups.pp.size()
        yield planner.grid.rank(tp=groups.tp.rank(), pp=stage), part
