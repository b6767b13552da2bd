"""Items that do not fit each other or have no room in a sample, and more messages than tags.

A prediction needs none of it, so that the rules of a config alone do not see it.
"""

from collections.abc import Iterator

from mimokit.architecture.tokens import ImageGeometry, image_geometry, row_features, tokens_per_item
from mimokit.config import DataConfig, ExperimentSections, ModelSection, ModuleArchitecture
from mimokit.config.errors import Fix, Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.writing import network_path, size_path
from mimokit.planning.message_tags import ROOM, slots_between_modules
from mimokit.units import counted

_CHUNKS = "virtual_pipeline_model_parallel_size"


def unplannable(config: ExperimentSections) -> Iterator[Problem]:
    """Yield messages without tags, items without room, adapters and decoders of other items."""
    yield from _tags(config.model, config.data)
    yield from _frames(config)
    yield from _adapters(config.model)
    yield from _reconstructions(config.model)
    yield from _room(config)


def vision_geometry(config: ExperimentSections, name: str) -> ImageGeometry | None:
    """Return how an encoder cuts its images; None if it takes none, or sizes contradict."""
    network = config.model.module_architectures.get(name)
    if network is None or network.modality != "vision":
        return None
    try:
        return image_geometry(network)
    except ValueError:
        return None  # runs say why


def _frames(config: ExperimentSections) -> Iterator[Problem]:
    for name, frames in config.data.modality_frames.items():
        geometry, room = vision_geometry(config, name), config.tokens_of(name)
        tokens = 0 if geometry is None else geometry.tokens
        if max(frames) * tokens > room:
            sentence = (
                f"a sample has {counted(max(frames), 'frame')} of {counted(tokens, 'token')} "
                f"(data.modality_frames), but data gives it {counted(room, 'token')} "
                "(modality_seq_lengths, or image_seq_length); raise that, or give fewer frames."
            )
            yield problem_at(f"data.modality_frames.{name}", list(frames), sentence)


def _adapters(model: ModelSection) -> Iterator[Problem]:
    graph = model.module_topology
    for name in model.adapter_module_names:
        feeding = [source for source, fed in graph.items() if name in fed]
        feeders = {source: tokens_per_item(model.get_architecture(source)) for source in feeding}
        largest = max(feeding, key=feeders.__getitem__)
        taken = model.get_architecture(name).seq_length
        if taken != feeders[largest]:
            what = (
                f", but '{largest}', which feeds it, makes up to "
                f"{counted(feeders[largest], 'token')} of an item; write that."
            )
            path = network_path(name, "seq_length")
            yield problem_at(path, taken, what, feeders[largest])


def _room(config: ExperimentSections) -> Iterator[Problem]:
    model, data = config.model, config.data
    for name in model.input_module_names:
        network = model.get_architecture(name)
        if network.modality != "vision" or network.any_image_size:
            continue
        tokens, room = image_geometry(network).tokens, config.tokens_of(name)
        if room >= tokens:
            continue
        last = next(iter(model.ends_of(name)))
        own = last in data.modality_seq_lengths
        field = f"modality_seq_lengths.{last}" if own else "image_seq_length"
        more = -(-tokens * model.paths_of_items(last) // model.paths_of_items(name))
        sentence = (
            f"Module '{name}': an image becomes {counted(tokens, 'token')}, but a sample has room "
            f"for {room} of them (data.{field}); make that at least {more}."
        )
        fix: Fix = {"path": f"data.{field}", "value": more}
        yield Problem(name, field, room, sentence, fix)


def _reconstructions(model: ModelSection) -> Iterator[Problem]:
    for name in model.reconstructing_names:
        network = model.get_architecture(name)
        encoder = model.reconstructed_by(network)
        if encoder is None:
            continue
        of = _other_sound if network.modality == "audio" else _other_images
        wrong = of(network, encoder, model.get_architecture(encoder))
        ranks, features = model.get_parallelism(name).tensor_parallel, row_features(network)
        if wrong is not None:
            field, what = wrong
            yield problem_at(network_path(name, field), getattr(network, field), what)
        elif features % ranks:
            what = f", which does not divide the {features} numbers of a row; choose another."
            yield problem_at(size_path(name, "tensor_parallel"), ranks, what)


def _other_images(
    network: ModuleArchitecture, encoder: str, reading: ModuleArchitecture
) -> tuple[str, str] | None:
    made, read = image_geometry(network), image_geometry(reading)
    sizes = [(of.height, of.width, of.num_channels) for of in (made, read)]
    if sizes[0] != sizes[1]:
        return "image_size", (
            f"it makes images of {_pixels(*sizes[0])}, but those of '{encoder}' have "
            f"{_pixels(*sizes[1])}; write the same image_size and num_channels for both."
        )
    if read.one_row and read.any_size:
        return "reconstructs", (
            f"'{encoder}' takes images of any size and pools them, so that no row has a number "
            f"of pixels; leave {ModuleArchitecture.one_row.field} or any_image_size out there."
        )
    if made.patches != read.tokens:
        return "patch_size", (
            f"it makes an image of {counted(made.patches, 'row')} of patch_size "
            f"{made.patch_size}, but an image of '{encoder}' has "
            f"{counted(read.tokens, 'token')} in a text; choose another patch_size."
        )
    return None


def _other_sound(
    network: ModuleArchitecture, encoder: str, reading: ModuleArchitecture
) -> tuple[str, str] | None:
    for field in ("seq_length", "mel_bins", "merge_size"):
        made, read = getattr(network, field), getattr(reading, field)
        if made != read:
            return field, f"its {field} is {made}, but that of '{encoder}' is {read}; write that."
    return None


def _pixels(height: int, width: int, channels: int) -> str:
    return f"{height} x {width} pixels with {counted(channels, 'channel')}"


def _tags(model: ModelSection, data: DataConfig) -> Iterator[Problem]:
    # Only stages of a pipeline, and modules on separate ranks, send messages with tags. An edge
    # leads from each stage to the next of its module, and from each module to those that it feeds;
    # on the ranks of a pipeline from each set of ranks that computes an encoder. Only a first stage
    # can have many slots: other modules feed it.
    language = model.get_parallelism(model.llm_module_name)
    mode, sets = model.deployment_mode, language.pipeline_parallel
    if mode != "heterogeneous" and sets == 1:
        return
    topology, sizes = model.module_topology, model.module_parallelisms
    cut = [language] if mode == "homogeneous" else sizes.values()
    within = sum(module.pipeline_parallel * module.in_runs(_CHUNKS) - 1 for module in cut)
    between = sum(
        len(fed) * (sets if mode == "colocated" and sizes[name].pipeline_parallel == 1 else 1)
        for name, fed in topology.items()
    )
    slots = max(first_stage_slots(model).values(), default=0)
    yield from _too_many("microbatch", data.num_microbatches, "data", "num_microbatches")
    yield from _too_many("edge", within + between, "model", "pipeline_parallel")
    yield from _too_many("slot", slots, "model", "topology")


def _too_many(field: str, count: int, section: str, name: str) -> Iterator[Problem]:
    if count > (room := ROOM[field]):
        sentence = (
            f"The pipeline has {counted(count, 'value')} of {field}, but a message tag holds "
            f"{room:,}; plan for at most as many."
        )
        fix: Fix = {"path": f"{section}.{name}", "value": room}
        yield Problem(section, name, count, sentence, fix if section == "data" else None)


def first_stage_slots(model: ModelSection) -> dict[str, int]:
    """Return module -> the slots of the tensors that other modules send its first stage."""
    slots = dict.fromkeys(model.module_parallelisms, 0)
    for source, fed in model.module_topology.items():
        if source not in model.module_architectures:
            continue
        with_grids = source in model.encoder_module_names and model.sends_grids(source)
        for target in fed:
            slots[target] += slots_between_modules(with_grids)
    return slots
