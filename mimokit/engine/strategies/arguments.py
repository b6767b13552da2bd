"""Arguments of strategies: unknown ones are rejected, with the name that is meant."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from mimokit.config.errors import ConfigError, Problem

MEANT: Mapping[str, str] = {
    "inner_optim": "optim_spec",
    "inner_optim_spec": "optim_spec",
    "inner_optimizer": "optim_spec",
    "optimizer": "optim_spec",
    "outer_optim": "outer_optim_spec",
    "outer_optimizer": "outer_optim_spec",
    "p": "p_sparta",
    "h": "H",
}
"""Other names for the same, as people write them."""


class UnknownArgumentError(ConfigError, TypeError):
    """A strategy has no such argument; names the right one."""


def reject_unknown(kind: type, unknown: Mapping[str, Any]) -> None:
    """Reject the arguments that no constructor of a class takes.

    Raises:
        UnknownArgumentError: if there is one.
    """
    if not unknown:
        return
    known = sorted(
        {
            name
            for base in kind.__mro__
            if "__init__" in vars(base) and base is not object
            for name, one in inspect.signature(base).parameters.items()
            if one.kind is not one.VAR_KEYWORD and name != "communication_modules"
        }
    )
    problems = []
    for name, value in unknown.items():
        meant = MEANT.get(name)
        nearest = (
            [meant] if meant in known else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        )
        right = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}."
        sentence = f"{kind.__name__}: unknown argument {name}; {right}"
        problems.append(Problem("strategy", name, value, sentence))
    raise UnknownArgumentError(problems)
