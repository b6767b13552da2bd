"""How rules write sentences: templates, filled with the numbers that a rule has read."""

from collections.abc import Callable
from string import Formatter
from typing import Any

from mimokit.axes import SPELLINGS
from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at
from mimokit.units import counted

NET = "model.module_architectures.{name}"
SIZES = "model.module_parallelisms.{name}"
"""Where the values of a module are."""
NO_MULTIPLE = ", which {name} {0} does not divide; make it a multiple, {1} say, or change {name}."
"""Of a value that a number of some name does not divide."""
_SIZES = {str(spelling.config): str(spelling.size) for spelling in SPELLINGS.values()} | {
    "micro_batch_size": "micro_batch"
}
_FACTS = {
    "num_attention_heads": "heads",
    "num_query_groups": "kv_heads",
    "ffn_hidden_size": "ffn",
    "moe_shared_expert_intermediate_size": "shared_ffn",
    "vocab_size": "vocab",
    "num_layers": "layers",
    "num_moe_experts": "experts",
    "moe_ffn_hidden_size": "expert_ffn",
    "account_for_loss_in_pipeline_split": "ends",
}
"""Field of a config -> what a rule reads of it: sizes, and facts."""


class _Counting(Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        return counted(value, spec) if spec else str(value)


def told(says: str, *values: object, **named: object) -> str:
    """Return a sentence with its values: {0:rank} as `1 rank` or `2 ranks`, {name} as it is."""
    return _Counting().vformat(says, values, named)


def size_path(name: str, field: str) -> str:
    """Return the path of a field of a module's parallel sizes."""
    return f"{SIZES}.{field}".format(name=name)


def network_path(name: str, field: str) -> str:
    """Return the path of a field of a module's network."""
    return f"{NET}.{field}".format(name=name)


def nearest_multiple(value: int, divisor: int) -> int:
    """Return the multiple of a number that is nearest to a value, and at least that number."""
    return max(divisor, round(value / divisor) * divisor)


def tells(
    field: str,
    says: str,
    right: object = NO_FIX,
    mends: str = "",
    values: Callable[..., tuple[object, ...]] = lambda *read: (),
) -> Callable[..., Problem]:
    """Return what writes the problem of a rule of layouts.

    Args:
        field: of the network or of the sizes of the module, whose number the problem names.
        says: as in `ConfigRule`, with {sizes.tensor}, {other.data} and {facts.seq} of what is read.
        right: the value to write, or a function of what the rule reads; None to leave it out.
        mends: path of the value to write, where it is another one.
        values: a function of what the rule reads, of the numbers {0}, {1} and so on.
    """

    def problem(sizes: Any, *read: Any) -> Problem:
        facts = read[-1]
        named = {"name": facts.name, "sizes": sizes, "other": read[0], "facts": facts}
        number = getattr(facts, _FACTS[field]) if field in _FACTS else getattr(sizes, _SIZES[field])
        section = NET if field in ModuleArchitecture.model_fields else SIZES
        return problem_at(
            told(f"{section}.{field}", **named),
            number if isinstance(number, bool) else int(number),
            told(says, *values(sizes, *read), **named),
            right(sizes, *read) if callable(right) else right,
            told(mends, **named),
        )

    return problem


def no_multiple(field: str, of: str) -> Callable[..., Problem]:
    """Return what writes that a size does not divide a number of a network."""

    def numbers(sizes: Any, facts: Any) -> tuple[int, int]:
        divisor = int(getattr(sizes, _SIZES[of]))
        return divisor, nearest_multiple(getattr(facts, _FACTS[field]), divisor)

    says = NO_MULTIPLE.replace("{name}", of)
    return tells(field, says, lambda *read: numbers(*read)[1], values=numbers)
