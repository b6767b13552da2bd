"""Searches the sizes of a smaller layout, fewest ranks first."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from mimokit.axes import CONFIG_FIELDS, GRID_AXES, RANK_AXES, Axis
from mimokit.config import (
    ConfigError,
    ExperimentConfig,
    ModuleArchitecture,
    ModuleParallelismConfig,
    Problem,
)
from mimokit.extras.shrinking.kinds import kinds_of
from mimokit.extras.shrinking.networks import with_small_networks
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.units import counted

MOST_RANKS = 16

CHUNKS = CONFIG_FIELDS[Axis.VIRTUAL_PIPELINE]

FIELDS = (
    *(CONFIG_FIELDS[axis] for axis in (*RANK_AXES, Axis.EXPERT_TENSOR)),
    CHUNKS,
    "num_distributed_optimizer_instances",
)

Sizes = dict[str, int | None]


def shrunk(config: ConfigSource, most_ranks: int = MOST_RANKS) -> tuple[ExperimentConfig, ...]:
    """Return the smallest layout that has every kind of group, bridge and schedule pattern.

    An axis keeps several ranks if it has them, and one if it has one; `kinds_of` says what else is
    kept. Where no smaller one has all of it, a layout of so few ranks keeps its own; of one with
    more, several have it together.
    Networks, sequences and batches become as small as rules and kinds allow; weights are drawn.

    Args:
        config: of any number of ranks; it is not changed.

    Raises:
        ConfigError: the config is wrong, or no layouts of so few ranks have all its kinds.
    """
    checked = checked_config(config).model_copy(deep=True).finalize()
    wanted = kinds_of(plan_checked(checked))
    for smaller in _smaller(checked, most_ranks):
        if wanted <= _kinds(smaller):
            return (_made_small(smaller, wanted),)
    if checked.model.total_world_size <= most_ranks:
        return (_made_small(checked, wanted),)
    return tuple(_together(checked, most_ranks, wanted))


def _together(
    config: ExperimentConfig, most: int, wanted: frozenset[str]
) -> Iterator[ExperimentConfig]:
    tried, missing = list[tuple[ExperimentConfig, frozenset[str]]](), wanted
    for layouts in _parts(config, most):
        tried += [(layout, _kinds(layout) & wanted) for layout in layouts]
        missing = wanted.difference(*(kinds for _, kinds in tried))
        if not missing:
            break
    if missing:
        raise _no_layout(config, most, min(missing))
    while wanted:
        layout, kinds = max(tried, key=lambda pair: len(pair[1] & wanted))
        yield _made_small(layout, kinds)
        wanted -= kinds


def _made_small(config: ExperimentConfig, wanted: frozenset[str]) -> ExperimentConfig:
    return with_small_networks(config, lambda smaller: wanted <= _kinds(smaller))


def _kinds(config: ExperimentConfig) -> frozenset[str]:
    try:
        return kinds_of(plan_checked(checked_config(config.model_copy(deep=True).finalize())))
    except (ConfigError, ValueError):
        return frozenset()


def _no_layout(config: ExperimentConfig, most: int, missing: str) -> ConfigError:
    ranks = config.model.total_world_size
    sentence = (
        f"Section 'model': no layout of at most {counted(most, 'rank')} has {missing!r}, which the "
        f"{counted(ranks, 'rank')} of {config.name!r} have; allow more ranks."
    )
    return ConfigError([Problem("model", "module_parallelisms", ranks, sentence)])


def _smaller(config: ExperimentConfig, most: int) -> Iterator[ExperimentConfig]:
    """Yield layouts of at most so many ranks, fewest first, then fewest micro-batches."""
    for sizes in sorted(_layouts(config, most, fewest=2), key=_ranks_of(config)):
        for microbatches in range(1, _most_microbatches(config, sizes) + 1):
            for ahead in _ahead(config, microbatches):
                yield _with(config, sizes, microbatches, ahead)


def _parts(config: ExperimentConfig, most: int) -> Iterator[list[ExperimentConfig]]:
    """Yield layouts in which some axes have one rank.

    First those in which no other axis has room for several, then those of fewer ranks.
    """
    ranks = _ranks_of(config)
    layouts = sorted(_layouts(config, most, fewest=1), key=ranks)
    for full in (True, False):
        chosen = (sizes for sizes in layouts if (2 * ranks(sizes) > ranks(layouts[-1])) == full)
        yield [_with_most_microbatches(config, sizes) for sizes in chosen]


def _with_most_microbatches(
    config: ExperimentConfig, sizes: Mapping[str, Sizes]
) -> ExperimentConfig:
    microbatches = _most_microbatches(config, sizes)
    return _with(config, sizes, microbatches, _ahead(config, microbatches)[-1])


def _most_microbatches(config: ExperimentConfig, sizes: Mapping[str, Sizes]) -> int:
    pipeline = CONFIG_FIELDS[Axis.PIPELINE]
    chunks = ((module[pipeline] or 1) * (module[CHUNKS] or 1) for module in sizes.values())
    return min(config.data.num_microbatches, 2 * max(chunks) + 2)


def _layouts(config: ExperimentConfig, most: int, fewest: int) -> Iterator[dict[str, Sizes]]:
    model = config.model
    old = model.module_parallelisms
    if model.deployment_mode == "homogeneous":
        for sizes in _sizes(old[model.llm_module_name], most, fewest):
            yield dict.fromkeys(old, sizes)
        return
    choices = [list(_sizes(sizes, most, fewest)) for sizes in old.values()]
    apart = model.deployment_mode == "heterogeneous"
    for chosen in itertools.product(*choices):
        ranks = [_ranks(sizes) for sizes in chosen]
        if sum(ranks) <= most if apart else len(set(ranks)) == 1:
            yield dict(zip(old, chosen, strict=True))


def _sizes(old: ModuleParallelismConfig, most: int, fewest: int) -> Iterator[Sizes]:
    """Yield sizes of a module: an axis of one rank keeps it, others have at least so many."""
    tried = [_tried(field, getattr(old, field), most, fewest) for field in FIELDS]
    for values in itertools.product(*tried):
        sizes = dict(zip(FIELDS, values, strict=True))
        if _ranks(sizes) <= most:
            yield sizes


def _tried(field: str, size: int | None, most: int, fewest: int) -> Sequence[int | None]:
    if size is None or size == 1:
        return (size,)
    if field == CONFIG_FIELDS[Axis.PIPELINE]:
        return [stages for stages in (1, 2, 3, 4) if fewest <= stages <= size]
    return [n for n in range(fewest, min(size, most) + 1) if size % n == 0]


def _ranks(sizes: Mapping[str, int | None]) -> int:
    return math.prod(sizes[CONFIG_FIELDS[axis]] or 1 for axis in GRID_AXES)


def _ranks_of(config: ExperimentConfig) -> Callable[[Mapping[str, Sizes]], int]:
    apart = config.model.deployment_mode == "heterogeneous"

    def ranks(sizes: Mapping[str, Sizes]) -> int:
        each = [_ranks(module) for module in sizes.values()]
        return sum(each) if apart else max(each)

    return ranks


def _ahead(config: ExperimentConfig, microbatches: int) -> Sequence[int | None]:
    old = config.runtime.encoder_microbatches
    if old is None or old == 1:
        return (old,)
    if old == config.data.num_microbatches:
        return (microbatches,)
    return range(2, microbatches + 1)


def _with(
    config: ExperimentConfig, sizes: Mapping[str, Sizes], microbatches: int, ahead: int | None
) -> ExperimentConfig:
    smaller = config.model_copy(deep=True)
    model, start = smaller.model, 0
    apart = model.deployment_mode == "heterogeneous"
    networks = model.module_architectures.values()
    inner = max((len(each.inner_layers) for each in networks), default=0)
    by_rank = sorted(sizes, key=lambda name: model.module_parallelisms[name].rank_offset)
    for name in by_rank:
        old, network = model.module_parallelisms[name], model.module_architectures.get(name)
        new = old.model_copy(update={**sizes[name], "rank_offset": start})
        if new.tensor_parallel == 1:
            new.sequence_parallel = None
        model.module_parallelisms[name] = new
        start += _ranks(sizes[name]) if apart else 0
        if network is not None:
            added = inner if name == model.llm_module_name else 0
            layers = _layers(network, old, new, added)
            model.module_architectures[name] = network.model_copy(update={"num_layers": layers})
    smaller.data.num_microbatches = microbatches
    smaller.runtime.encoder_microbatches = ahead
    return smaller


def _layers(
    network: ModuleArchitecture,
    old: ModuleParallelismConfig,
    new: ModuleParallelismConfig,
    added: int,
) -> int:
    """Return how many layers give each chunk as few as there can be; ends may count as layers."""
    chunks, smaller = (
        sizes.pipeline_parallel * (getattr(sizes, CHUNKS) or 1) for sizes in (old, new)
    )
    layers = network.num_layers
    each = max(1, added, math.ceil(max(network.inner_layers, default=0) / smaller))
    if layers % chunks == 0:
        return min(layers, each * smaller)
    return min(layers, (each + 1) * smaller - 2)
