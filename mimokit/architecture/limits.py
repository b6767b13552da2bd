"""How large a model may be, whatever it is read from."""

from mimokit.architecture.modules import Model
from mimokit.config.errors import ConfigError, Problem

MOST_PARAMETERS = 2**53
"""Parameters of the largest model that is accepted; larger numbers are not exact as floats."""


def check_parameters(model: Model, where: str, module: str) -> None:
    """Reject a model of more than `MOST_PARAMETERS` together."""
    if model.parameters > MOST_PARAMETERS:
        sentence = (
            f"{where}: the sizes give {model.parameters:.1e} parameters, more than the "
            f"{MOST_PARAMETERS:.1e} that can be planned; correct them."
        )
        raise ConfigError([Problem(module, "parameters", model.parameters, sentence)])
