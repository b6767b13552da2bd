"""Projectors of encoders: the widths that ranks share, and the layers that add inner rows."""

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.layer_architecture import ProjectorArchitecture
from mimokit.config.rules.context import ValidationContext


def widths_on_ranks(context: ValidationContext, name: str) -> tuple[int, ...]:
    """Return the widths of outputs that ranks share, of the projectors of an encoder."""
    model = context.model
    if name not in model.encoder_module_names or name not in model.module_architectures:
        return ()
    stated = model.get_architecture(name).projector or ProjectorArchitecture()
    receivers = context.networks(model.receivers_of(name))
    return tuple(
        dict.fromkeys(w for _, taking in receivers for w in _column_widths(stated, taking))
    )


def most_inner_layers(context: ValidationContext) -> int:
    """Return the inner layers whose rows the first layers of the language model add."""
    encoders = context.networks(context.model.encoder_module_names)
    return max((len(network.inner_layers) for _, network in encoders), default=0)


def _column_widths(stated: ProjectorArchitecture, taking: ModuleArchitecture) -> list[int]:
    inside = stated.hidden_sizes
    inside = [taking.ffn] if inside is None else inside
    return [*inside, taking.hidden_size][::2]
