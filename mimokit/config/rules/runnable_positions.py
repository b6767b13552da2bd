"""What of positions can be planned but cannot be run yet."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.layer_architecture import RopeScaling
from mimokit.config.messages import problem_at
from mimokit.config.rules.facts import a_fix, leave_out, module_problem, network_path
from mimokit.units import counted

_STRETCHED = ("linear", "dynamic", "llama3", "yarn", "longrope")


def unrunnable_positions(
    name: str, network: ModuleArchitecture, encodes: bool
) -> Iterator[Problem]:
    """Yield tables of positions that are too short, and rotary ones that do not run."""
    if network.has_learned_positions(by_default=encodes):
        yield from _table(name, network, encodes)
    elif not network.multi_latent_attention:
        yield from _rotary(name, network, axes=2 if encodes and network.modality == "vision" else 1)


def _table(name: str, network: ModuleArchitecture, encodes: bool) -> Iterator[Problem]:
    """Yield a table that has too few rows."""
    field, rows = "max_position_embeddings", network.max_position_embeddings
    if rows is None:
        return
    if encodes:
        if rows < network.positions - network.num_registers:
            yield leave_out(name, field, rows, network_path(name, field))
    elif rows < network.seq_length:
        sentence = (
            f"max_position_embeddings is {rows}, fewer than the "
            f"{counted(network.seq_length, 'token')} of its longest sequence (seq_length); shorten "
            "that."
        )
        yield module_problem(
            name, field, rows, sentence, a_fix(network_path(name, "seq_length"), rows)
        )


def _rotary(name: str, network: ModuleArchitecture, axes: int) -> Iterator[Problem]:
    """Yield heads that cannot turn; those of images turn with rows and with columns."""
    width = network.head_dim
    if width % (2 * axes):
        what = (
            "images rotate pairs of them with rows, and as many with columns; make it a multiple "
            "of 4."
        )
        sentence = (
            f"a head has {counted(width, 'dimension')} (kv_channels), and rotary positions "
            f"{'rotate pairs of them; make it even.' if axes == 1 else f'of {what}'}"
        )
        yield module_problem(name, "kv_channels", width, sentence)
    elif network.rope_scaling is not None:
        yield from _scaling(name, network.rope_scaling, width // axes // 2)


def _scaling(name: str, scaling: RopeScaling, pairs: int) -> Iterator[Problem]:
    """Yield a stretching that runs do not have, or that lacks numbers for the pairs of a head."""
    path = network_path(name, "rope_scaling")
    if scaling.rope_type not in _STRETCHED:
        sentence = (
            f"rope_scaling has the rope_type {scaling.rope_type}, which can be planned but not run "
            f"yet; {', '.join(_STRETCHED[:-1])} and {_STRETCHED[-1]} run."
        )
        yield problem_at(path, scaling.rope_type, sentence, None)
    if scaling.rope_type == "dynamic" and pairs == 1:
        sentence = "rope_scaling is dynamic, but a head has one pair that turns; leave it out."
        yield problem_at(path, scaling.rope_type, sentence, None)
    for field in ("short_factor", "long_factor") if scaling.rope_type == "longrope" else ():
        factors = getattr(scaling, field) or ()
        if len(factors) != pairs:
            sentence = (
                f"rope_scaling.{field} has {counted(len(factors), 'number')}, but a head has "
                f"{counted(pairs, 'pair')} that turn; give one for each."
            )
            yield problem_at(path, list(factors), sentence)
