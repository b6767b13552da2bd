"""What of encoders and their projectors can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import ProjectorArchitecture
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import a_fix, leave_out, module_problem, network_path
from mimokit.units import counted

_DEEPSTACK = ("deepstack_copies", "deepstack_normalization", "deepstack_norm_size")


def turning_positions(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    """Yield what rotary positions of encoders, those of images of two axes, do not have."""
    if network.modality != "vision" and network.head_dim % 2:
        sentence = (
            f"a head has {counted(network.head_dim, 'dimension')} (kv_channels), and rotary "
            "positions rotate pairs of them; make it even."
        )
        yield module_problem(name, "kv_channels", network.head_dim, sentence)
    if network.modality == "vision" and network.head_dim % 4:
        sentence = (
            f"a head has {counted(network.head_dim, 'dimension')} (kv_channels), and rotary "
            "positions of images rotate pairs of them with rows, and as many with columns; make it "
            "a multiple of 4."
        )
        yield module_problem(name, "kv_channels", network.head_dim, sentence)
    for field in ("rope_scaling", "max_position_embeddings"):
        if getattr(network, field) is not None:
            yield leave_out(name, field, getattr(network, field), network_path(name, field))


def learned_positions(name: str, network: ModuleArchitecture, table: int) -> Iterator[Problem]:
    """Yield a table of an encoder's positions that has too few rows."""
    field = "max_position_embeddings"
    if table < network.positions - network.num_registers:
        yield leave_out(name, field, table, network_path(name, field))


def unrunnable_pooling(name: str, network: ModuleArchitecture) -> Iterator[Problem]:
    """Yield what a head that makes one row of an image does not run with."""
    if network.pooling_head and network.any_image_size:
        sentence = "pooling_head is true, which does not run with any_image_size; leave it out."
        fix = a_fix(network_path(name, "pooling_head"), None)
        yield module_problem(name, "pooling_head", True, sentence, fix)


def unrunnable_projector(model: MimoParallelismConfig, name: str) -> Iterator[Problem]:
    """Yield projectors of inner layers, and widths that cannot be cut."""
    network, language = model.get_architecture(name), model.get_architecture(model.llm_module_name)
    stated = network.projector or ProjectorArchitecture()
    for field in _DEEPSTACK:
        value = getattr(stated, field)
        if value is not None:
            path = network_path(name, f"projector.{field}")
            yield leave_out(name, f"projector.{field}", value, path)
    homogeneous = model.deployment_mode == "homogeneous"
    ranks = model.get_parallelism(model.llm_module_name if homogeneous else name).tensor_parallel
    inside = stated.hidden_sizes
    inside = [language.feed_forward_size] if inside is None else inside
    for width in (*inside, language.hidden_size)[::2]:
        if width % ranks:
            sentence = (
                f"projector.hidden_sizes has a matrix of {width} outputs, which tensor_parallel "
                f"{ranks} does not divide; choose other widths."
            )
            yield module_problem(name, "projector.hidden_sizes", stated.hidden_sizes, sentence)
    merged = network.merge_size ** (2 if network.modality == "vision" else 1)
    piece = stated.norm_size or network.hidden_size
    if stated.normalization is not None and network.hidden_size * merged % piece:
        sentence = (
            f"projector.norm_size is {piece}, which does not divide the "
            f"{network.hidden_size * merged} features of a token; choose a divisor."
        )
        path = network_path(name, "projector.norm_size")
        yield module_problem(name, "projector.norm_size", piece, sentence, a_fix(path, None))
