"""Turn what pydantic found into problems of ours: one sentence each."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from mimokit.config.errors import ConfigError, Fix, Problem

_MAPPINGS_OF_MODULES = (
    "module_parallelisms",
    "module_architectures",
    "special_token_ids",
    "topology",
    "modality_seq_lengths",
    "modality_presence",
    "modality_frames",
    "inputs",
)
_A_NAME = "letters, digits, underscores and hyphens only"

ALTERNATIVES = ("<whole>", "<parts>")
"""The tags of the alternatives of a field, which pydantic puts among the keys of a path."""
MOST = 100
"""Problems that are listed; a file with more of them is of another kind."""
NO_FIX = object()


def problems_of(error: ValidationError, model: type[BaseModel]) -> tuple[Problem, ...]:
    """Return one problem per value of `model` that pydantic rejected, for the first `MOST`."""
    details = error.errors(include_url=False)
    problems = tuple(
        problem for detail in details[:MOST] for problem in _problems_of_detail(detail, model)
    )
    if len(details) <= MOST:
        return problems
    further = f"Config: {len(details) - MOST:,} further values are wrong, behind these {MOST}."
    return (*problems, Problem("config", "problems", len(details), further))


def problem_at(
    path: str, value: object, sentence: str, right: object = NO_FIX, mends: str = ""
) -> Problem:
    """Return the problem of one value of a config.

    Args:
        path: of the value, with dots between the keys: runtime.precision.
        sentence: without its begin, which names the module or the section. It goes on after "FIELD
            is VALUE" where it begins with a comma.
        right: what to set there, None to leave it out; by default no single change rights it.
        mends: where to set it, if not there.
    """
    keys = tuple(path.split("."))
    module, begin = _owner_of(keys)
    field, named = _field_of(keys)
    if sentence.startswith(","):
        sentence = f"{named} is {_state(value)}{sentence}"
    fix: Fix | None = None if right is NO_FIX else {"path": mends or path, "value": right}
    return Problem(module, field, value, f"{begin}: {sentence}", fix)


def _state(value: object) -> str:
    if value is None:
        return "missing"
    numbers = isinstance(value, list) and all(isinstance(number, int) for number in value)
    return written(value) if numbers or isinstance(value, int | float | str) else "given"


def owner_of(path: tuple[str, ...], model: type[BaseModel]) -> tuple[str, str]:
    """Return (what Problem.module holds, how a sentence begins) for the value at `path`.

    Path is counted from `model`. A module's name where the path leads through a module, the
    section where it leads through one, the class name otherwise.
    """
    if len(path) > 1:
        return _owner_of(path)
    if "model" in model.model_fields:
        return "config", "Config"
    return model.__name__, model.__name__


def _owner_of(path: tuple[str, ...]) -> tuple[str, str]:
    for mapping in _MAPPINGS_OF_MODULES:
        if mapping in path[:-1]:
            name, *more = path[path.index(mapping) + 1 :]
            for key in more:
                if key.isidentifier() or key.isdigit():
                    break
                name += f".{key}"  # predictions call modules by their models, "qwen2.5-7b"
            return name, f"Module '{name}'"
    return path[0], f"Section '{path[0]}'"


def written(value: object) -> str:
    """Return a number, a word or a truth value as it stands in a file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(value: object) -> str:
    """Return a short description of a value that a user wrote."""
    match value:
        case None:
            return "empty"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text '{_shorten(value)}'"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case BaseModel():
            return f"a {type(value).__name__}"
        case int() if abs(value) > 10**60:
            return "a number of more than 60 digits"
        case _:
            return _shorten(str(value))


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else flat[:57] + "..."


def _problems_of_detail(detail: Any, model: type[BaseModel]) -> tuple[Problem, ...]:
    cause = detail.get("ctx", {}).get("error")
    return cause.problems if isinstance(cause, ConfigError) else (_problem(detail, model),)


def _problem(detail: Any, model: type[BaseModel]) -> Problem:
    # Tags of alternatives do not belong to the path in a file.
    path = tuple(str(key) for key in detail["loc"] if key not in ALTERNATIVES)
    if path and path[-1] == "[key]":
        return _key_problem(path[:-1], detail["type"], model)
    module, begin = owner_of(path, model)
    field, named = _field_of(path) if path else (model.__name__, model.__name__)
    value = detail["input"]
    if detail["type"] == "missing":
        return Problem(module, field, None, f"{begin}: {named} is missing; {_right(detail)}.")
    if detail["type"] == "extra_forbidden":
        return _unknown_key(path, value, model)
    sentence = f"{begin}: {named} is {describe(value)}; {_right(detail)}."
    return Problem(module, field, value, sentence, _number_fix(path, value, detail["type"]))


def _field_of(path: tuple[str, ...]) -> tuple[str, str]:
    """Return the field that a value is in, and what to call the value: an entry of a list by both.

    A value per module is in the field that has one for each; its key is the name of the module.
    """
    *before, last = path
    if before and before[0] == "strategy" and not last.isdigit():
        # Optimizers of a strategy have the same fields.
        return last, ".".join(path)
    if before and before[-1] in ("optimizer", "validation"):
        return last, f"{before[-1]}.{last}"
    if before and before[-1] == "projector":
        return f"projector.{last}", f"projector.{last}"
    if before and last.isdigit():
        field, named = _field_of(tuple(before))
        return field, f"entry {last} of {named}"
    field = before[-1] if before and before[-1] in _MAPPINGS_OF_MODULES else last
    return field, field


def _key_problem(path: tuple[str, ...], kind: str, model: type[BaseModel]) -> Problem:
    module, begin = owner_of(path[:-1], model) if len(path) > 1 else owner_of(path, model)
    wrong = f"is no name; write {_A_NAME}" if kind != "string_type" else "is not text; quote it"
    sentence = f"{begin}: the key {_shorten(path[-1])!r} {wrong}."
    return Problem(module, path[-2] if len(path) > 1 else path[-1], path[-1], sentence)


def _unknown_key(path: tuple[str, ...], value: object, model: type[BaseModel]) -> Problem:
    module, begin = owner_of(path, model)
    owner = model_at(path[:-1], model)
    _, named = _field_of(path)
    known = [] if owner is None else list(owner.model_fields)
    nearest = difflib.get_close_matches(_shorten(path[-1]), known, n=1, cutoff=0.6)
    homes = " and of ".join(_homes(path[-1], model))
    right = f"it is a key of {homes}." if homes else f"known are {', '.join(known)}."
    right = f"did you mean {nearest[0]}?" if nearest else right
    said = f" (its value is {describe(value)})"
    return Problem(
        module, path[-1], value, f"{begin}: unknown key {_shorten(named)}{said}; {right}"
    )


def _homes(key: str, model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the sections below `model` that have a key."""
    if key in model.model_fields and at:
        yield ".".join(at)
    for name, field in model.model_fields.items():
        for inner in _models_in(field.annotation):
            yield from _homes(key, inner, (*at, name))


def model_at(path: Iterable[str], model: type[BaseModel]) -> type[BaseModel] | None:
    """Return the config class of the mapping at `path` below `model`, None where it has none."""
    current: type[BaseModel] | None = model
    keys = iter(path)
    for key in keys:
        if current is None or key not in current.model_fields:
            return None
        annotation = current.model_fields[key].annotation
        current = next(_models_in(annotation), None)
        if _is_mapping(annotation):
            next(keys, None)  # a dict of records: the next key is the name of one
    return current


def _is_mapping(annotation: Any) -> bool:
    return get_origin(annotation) is dict or any(map(_is_mapping, get_args(annotation)))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _number_fix(path: tuple[str, ...], value: object, kind: str) -> Fix | None:
    readers: dict[str, Callable[[str], object]] = {"int_type": int, "float_type": float}
    if kind not in readers or not isinstance(value, str):
        return None
    try:
        return {"path": ".".join(path), "value": readers[kind](value)}
    except ValueError:
        return None


_RIGHT: Mapping[str, str] = {
    "missing": "give it a value",
    "int_type": "write a whole number, without quotes",
    "int_from_float": "write a whole number",
    "float_type": "write a number, without quotes",
    "finite_number": "write a finite number",
    "bool_type": "write true or false, without quotes",
    "string_type": "write text",
    "string_pattern_mismatch": f"write {_A_NAME}",
    "too_short": "give at least one entry",
    "too_long": "it may have at most {max_length:,} entries",
    "list_type": "write a list of names",
    **dict.fromkeys(
        ("dict_type", "model_type", "model_attributes_type"),
        "write a mapping of keys and values",
    ),
    "greater_than_equal": "it must be at least {ge}",
    "greater_than": "it must be greater than {gt}",
    "less_than_equal": "it must be at most {le}",
    "less_than": "it must be less than {lt}",
    "literal_error": "choose {expected}",
}
"""Type of pydantic's error -> what would have been right, as the end of a sentence."""


def _right(detail: Any) -> str:
    if detail["type"] in _RIGHT:
        return _RIGHT[detail["type"]].format(**detail.get("ctx", {}))
    return str(detail["msg"])[:1].lower() + str(detail["msg"])[1:]
