"""What the config says about encoders and decoders fits those of the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.data import DataConfig
from mimokit.config.errors import Fix, Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import a_fix, module_problem, network_path, network_problem
from mimokit.units import counted, listed

if TYPE_CHECKING:
    from mimokit.config.model import MimoParallelismConfig


def modality_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong about modalities, frozen modules and tied embeddings."""
    for name, network in context.networks():
        yield from _network_problems(context, name, network)
    yield from _all_frozen(context)
    if context.is_valid("model.topology", "model.module_parallelisms", "model.llm_module_name"):
        yield from _rows(context)
    if context.data is not None and context.graph_is_valid:
        yield from _unknown_encoders(context, context.data)
        yield from _no_room(context, context.data)
        yield from _text_heads(context, context.data)
        yield from _no_frames(context, context.data)


def _network_problems(
    context: ValidationContext, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    if name == context.model.llm_module_name:
        yield from _section_problem(name, network)
        return
    if network.any_image_size and network.image_size is None and network.modality == "vision":
        what = "but image_size is missing; give the longest side of an image, and patch_size."
        yield network_problem(name, "any_image_size", True, what)
    if network.modality == "text" and network.vocab_size == 0:
        sentence = "modal_type is text, but vocab_size is 0; give the rows of its token embedding."
        yield module_problem(name, "vocab_size", 0, sentence)
    if network.modality == "audio" and network.seq_length % network.merge_size:
        positions = counted(network.seq_length, "position")
        what = f"which does not divide its {positions} (seq_length); choose a divisor of them."
        yield network_problem(name, "merge_size", network.merge_size, what)


def _rows(context: ValidationContext) -> Iterator[Problem]:
    model, graph = context.model, context.model.module_topology
    language = model.llm_module_name
    for name, network in context.networks(model.encoder_module_names):
        feeders = [n for n, fed in graph.items() if name in fed and n != language]
        if (network.modality == "rows") != bool(feeders):
            how = f"it is fed by {listed(feeders)}" if feeders else "no module feeds it"
            sentence = (
                f"{how}, but its modal_type is {network.modal_type or 'left out'}; write rows for "
                "an encoder that another one feeds, and for no other."
            )
            fix = a_fix(network_path(name, "modal_type"), "rows") if feeders else None
            yield module_problem(name, "modal_type", network.modal_type, sentence, fix)
        if network.inner_layers and language not in graph[name]:
            field = "projector.deepstack_layers"
            what = (
                f"whose rows layers of '{language}' add, but it feeds {listed(graph[name])} alone; "
                f"leave {field} out, or let it feed '{language}'."
            )
            yield network_problem(name, field, list(network.inner_layers), what, None)


def _section_problem(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    section, half = network.mrope_section, network.head_dim // 2
    # A width that heads do not divide is the problem of another rule.
    unknown = network.kv_channels is None and network.hidden_size % network.num_attention_heads
    if section is None or unknown:
        return
    if sum(section) == half:
        yield from _alternating(name, network, section, half)
        return
    what = (
        f"{sum(section)} together, but a head of {counted(network.head_dim, 'number')} has {half} "
        "frequencies; give each of them to one axis."
    )
    yield network_problem(name, "mrope_section", section, what)


def _alternating(
    name: str, network: ModuleArchitecture, section: list[int], half: int
) -> Iterator[Problem]:
    """Yield axes with more frequencies than every third one from their first on."""
    _, height, width = section
    most = [len(range(first, half, 3)) for first in (1, 2)]
    if network.mrope_interleaved and (height > most[0] or width > most[1]):
        what = (
            f"but of {half} frequencies that alternate (mrope_interleaved) height has at most "
            f"{most[0]} and width {most[1]}; give time more."
        )
        yield network_problem(name, "mrope_section", section, what)


def _all_frozen(context: ValidationContext) -> Iterator[Problem]:
    modules = context.model.module_parallelisms
    if not modules or not context.model.frozen_modules.issuperset(modules):
        return
    if context.is_valid("model.module_parallelisms", "model.module_architectures"):
        first = next(iter(modules))
        fix: Fix = {"path": f"model.module_architectures.{first}.frozen", "value": False}
        sentence = (
            "Section 'model': every module is frozen, so that nothing is trained; set frozen to "
            f"false for one of {', '.join(modules)}."
        )
        yield Problem("model", "frozen", True, sentence, fix)


def _unknown_encoders(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    """Yield what the data section says about modules that are not encoders.

    It says tokens of those whose rows are among the words, and items of those that read them.
    """
    model = context.model
    language = model.llm_module_name
    feeding = [
        name for name in model.encoder_module_names if language in model.module_topology[name]
    ]
    of_tokens = f"feeds '{language}'", feeding
    of_items = "reads items", list(model.input_module_names)
    for field, (does, encoders) in {
        "modality_seq_lengths": of_tokens,
        "modality_presence": of_items,
        "modality_frames": of_items,
    }.items():
        for name, value in getattr(data, field).items():
            if (
                name not in encoders
                and context.is_valid(f"data.{field}")
                and context.has_valid_sizes(name)
            ):
                sentence = (
                    f"data.{field} has it, but it is not an encoder that {does} (those are "
                    f"{', '.join(encoders) or 'none'}); remove the entry or add the encoder."
                )
                yield module_problem(name, field, value, sentence)


def _text_heads(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    model = context.model
    heads = {
        name: network
        for name, network in model.module_architectures.items()
        if name in model.encoder_module_names and network.modality == "text"
    }
    for name in list(heads)[1:]:
        sentence = (
            f"modal_type is text, but '{next(iter(heads))}' reads the words "
            "already; leave it out of one of them."
        )
        yield module_problem(name, "modal_type", "text", sentence)
    for name, network in heads.items():
        if sum(model.ends_of(name).values()) > 1:
            fed = listed(list(model.module_topology[name]))
            sentence = (
                f"it feeds {fed}, so that its rows reach '{model.llm_module_name}' more than once, "
                "but they take the places of its words, one each; let it feed one module."
            )
            yield module_problem(name, "topology", fed, sentence)
        if data.vocab_size > network.vocab_size > 0 and context.is_valid("data.vocab_size"):
            sentence = (
                f"vocab_size is {data.vocab_size}, more than the {network.vocab_size} of module "
                f"'{name}' in module_architectures; lower it, or raise that."
            )
            yield problem_at("data.vocab_size", data.vocab_size, sentence)
        if name in data.modality_presence:
            sentence = (
                "data.modality_presence has it, but it reads words, which every "
                "sample has; remove the entry."
            )
            yield module_problem(name, "modality_presence", data.modality_presence[name], sentence)


def _no_frames(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    for name in data.modality_frames:
        network = context.model.module_architectures.get(name)
        if network is not None and network.modality != "vision":
            sentence = (
                "data.modality_frames has it, but it is not a vision encoder, "
                "so it has no frames; remove the entry."
            )
            yield module_problem(name, "modality_frames", data.modality_frames[name], sentence)


def _no_room(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    paths = ("data.modality_seq_lengths", "data.image_seq_length", "data.seq_length")
    model = context.model
    graph, language = model.module_topology, model.llm_module_name
    last = [name for name in model.encoder_module_names if language in graph[name]]
    lengths = {name: data.modality_seq_length(name) for name in last}
    if data.image_seq_length < data.seq_length <= sum(lengths.values()) and context.is_valid(
        *paths
    ):
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        total, tokens = sum(lengths.values()), counted(data.seq_length, "token")
        sentence = (
            f"modality_seq_lengths and image_seq_length add up to {total} ({told}), but a sample "
            f"has {tokens} (data.seq_length), those of all encoders among them; make them smaller, "
            "so that text has room."
        )
        yield problem_at("data.modality_seq_lengths", dict(data.modality_seq_lengths), sentence)


def decoder_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield decoders whose output has no meaning."""
    model = context.model
    if not context.graph_is_valid:
        return
    for name, network in context.networks():
        if name in model.reconstructing_names:
            yield from _no_items(model, name, network)
        if name in model.decoder_module_names and network.modality == "rows":
            what = (
                f"but it comes behind '{model.llm_module_name}', where rows have no target; write "
                "text, or leave it out for a decoder of images or sound."
            )
            yield network_problem(name, "modal_type", "rows", what, None)


def _no_items(
    model: MimoParallelismConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    if model.reconstructed_by(network) is not None:
        return
    reading, named = model.reading(network.modality), network.reconstructs
    items = "images" if network.modality == "vision" else "sound"
    right = (
        f"write one of {listed([*map(repr, reading)])} as reconstructs"
        if reading
        else "write modal_type: text for a decoder of tokens, or remove it"
    )
    what = (
        f"several encoders read {items} ({listed([*reading])})" if named is None and reading
        else f"no encoder reads {items}" if not reading
        else f"'{named}' does not read {items}"
    )  # fmt: skip
    sentence = f"it makes {items} behind '{model.llm_module_name}', but {what}; {right}."
    yield module_problem(name, "reconstructs", named, sentence)
