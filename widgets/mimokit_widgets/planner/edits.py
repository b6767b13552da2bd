"""What one edit in the planner does to a draft; every function returns a new draft."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from math import prod
from typing import Any

from mimokit.architecture.tokens import tokens_per_item
from mimokit.axes import CONFIG_FIELDS, GRID_AXES, Axis
from mimokit.config import Fix, ModuleArchitecture
from mimokit.config.architecture import OF_ITEMS
from mimokit_widgets.planner import paths
from mimokit_widgets.planner.draft import Draft
from mimokit_widgets.planner.networks import network_fields
from mimokit_widgets.planner.paths import Path

TEXT_FIELDS = (
    "name",
    "deployment_mode",
    "llm_module_name",
    "encoder_module_name",
    "recompute_granularity",
    "precision",
    "pipeline_schedule",
    "pipeline_order",
)
DECIMAL_FIELDS = ("price_per_gpu_hour",)
MOST_DIGITS = 40
_WHOLE = re.compile(r"[+-]?\d+")
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")


def parsed(text: str) -> object:
    """Return what a number field holds: a whole number, None for nothing or "auto", or the text."""
    plain = text.strip()
    if plain == "" or plain.lower() == "auto":
        return None
    digits = plain.replace(",", "").replace("_", "")
    if _WHOLE.fullmatch(digits) and len(digits) <= MOST_DIGITS:
        return int(digits)
    return plain


def parsed_decimal(text: str) -> object:
    """Return what a field for a decimal number holds: a number, None for nothing, or the text."""
    whole = parsed(text)
    if not isinstance(whole, str):
        return whole
    plain = whole.removeprefix("$").strip().replace(",", "")
    return float(plain) if _DECIMAL.fullmatch(plain) and len(plain) <= MOST_DIGITS else whole


def set_field(draft: Draft, path: Sequence[str], text: str) -> Draft:
    """Set the field at a path to what was typed; an empty field is left out."""
    field = path[-1]
    value = text.strip() or None if field in TEXT_FIELDS else parsed(text)
    if field in DECIMAL_FIELDS:
        value = parsed_decimal(text)
    if tuple(path) == ("model", "deployment_mode"):
        return set_mode(draft, text)
    return with_value(draft, tuple(path), value)


def with_value(draft: Draft, path: Path, value: object) -> Draft:
    """Return the draft with the field at a path set; None takes its entry out."""
    if path == ("world_size",):
        return replace(draft, world_size=value)
    if path == ("ranks_per_node",):
        return replace(draft, ranks_per_node=value)
    return draft.with_content(_content_with(draft, path, value))


def set_flag(draft: Draft, path: Sequence[str], on: bool) -> Draft:
    """Set the field at a path to true, or leave it out."""
    return with_value(draft, tuple(path), True if on else None)


def apply_fix(draft: Draft, fix: Fix) -> Draft:
    """Set what a fix says; a value of None takes the entry out."""
    path = tuple(fix["path"].split("."))
    if path == ("model", "deployment_mode"):
        return set_mode(draft, str(fix["value"]))
    if path[:2] == paths.SIZES and path[2:3] == (paths.ALL_MODULES,):
        for name in paths.mapping_at(draft.content, paths.SIZES):
            draft = with_value(draft, (*paths.SIZES, name, path[-1]), fix["value"])
        return draft
    return with_value(draft, path, fix["value"])


def set_mode(draft: Draft, mode: str) -> Draft:
    """Change the deployment mode and lay the modules out for it.

    On separate ranks, modules follow each other in the order in which they are listed; on
    shared ranks all begin at rank 0. The schedule follows the mode.
    """
    content = draft.copied()
    model, runtime = content.get("model"), content.get("runtime")
    if isinstance(runtime, dict):
        runtime.pop("pipeline_schedule", None)
    if not isinstance(model, dict):
        return draft
    model["deployment_mode"] = mode
    return end_to_end(draft.with_content(content))


def end_to_end(draft: Draft) -> Draft:
    """Set every rank offset as the deployment mode wants it; see `set_mode`."""
    content = draft.copied()
    apart = paths.value_at(content, ("model", "deployment_mode")) == "heterogeneous"
    begin = 0
    for sizes in paths.mapping_at(content, paths.SIZES).values():
        if not isinstance(sizes, dict):
            continue
        sizes["rank_offset"] = begin
        begin += _ranks(sizes) if apart else 0
    return draft.with_content(content)


def add_module(draft: Draft) -> Draft:
    """Add an encoder behind the others, before the language module if that is the last."""
    content = draft.copied()
    model = _section(content, "model")
    modules = _section(model, "module_parallelisms")
    language = model.get("llm_module_name")
    name = next(free for n in count(1) if (free := f"encoder_{n}") not in modules)
    sizes = _first_sizes(model, modules, language)
    model["module_parallelisms"] = _before(modules, language, name, sizes)
    _section(model, "module_architectures")[name] = network_fields("clip-vit-l-14-336", 1)
    if isinstance(model.get("topology"), dict):
        model["topology"][name] = [language]
    _section(model, "special_token_ids")[name] = _free_token(content)
    return draft.with_content(content)


def _first_sizes(
    model: Mapping[str, Any], modules: Mapping[str, Any], language: object
) -> dict[str, Any]:
    mode = model.get("deployment_mode")
    if mode == "homogeneous":
        return dict(paths.mapping_at(modules, (str(language),)))
    if mode == "heterogeneous":
        ends = [
            _begin(sizes) + _ranks(sizes) for sizes in modules.values() if isinstance(sizes, dict)
        ]
        one_rank = {CONFIG_FIELDS[axis]: 1 for axis in (Axis.TENSOR, Axis.DATA)}
        return {**one_rank, "rank_offset": max(ends, default=0)}
    return {CONFIG_FIELDS[Axis.TENSOR]: 1}


def _free_token(content: Mapping[str, Any]) -> int:
    used = paths.mapping_at(content, ("model", "special_token_ids")).values()
    vocabulary = paths.value_at(content, ("data", "vocab_size"))
    first = vocabulary if isinstance(vocabulary, int) else 0
    return max([first, *(token + 1 for token in used if isinstance(token, int))])


def _section(parent: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(parent.get(key), dict):
        parent[key] = {}
    section: dict[str, Any] = parent[key]
    return section


def remove_module(draft: Draft, name: str) -> Draft:
    """Take a module out of every section."""
    return rename_module(draft, name, None)


def rename_module(draft: Draft, old: str, new: str | None) -> Draft:
    """Rename a module in every section, or take it out of each for None; its place stays."""
    content = draft.copied()
    model = content.get("model")
    if not isinstance(model, dict):
        return draft
    for section in _by_module(content):
        entries = [(new if name == old else name, value) for name, value in section.items()]
        section.clear()
        section.update((name, value) for name, value in entries if name is not None)
    for source, fed in paths.mapping_at(model, ("topology",)).items():
        if isinstance(fed, list) and old in fed:
            renamed = (new if name == old else name for name in fed)
            model["topology"][source] = [name for name in renamed if name is not None]
    for field in ("llm_module_name", "encoder_module_name"):
        if model.get(field) == old and new is not None:
            model[field] = new
    if model.get("encoder_module_name") == old:
        model.pop("encoder_module_name")
    return draft.with_content(content)


def _by_module(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path in (paths.SIZES, paths.NETWORKS, paths.TOKENS, ("model", "topology"), *paths.OF_DATA):
        section = paths.value_at(content, path)
        if isinstance(section, dict):
            yield section


def move_module(draft: Draft, name: str, by: int) -> Draft:
    """Move a module up or down in the list; its ranks stay."""
    content = draft.copied()
    modules = paths.value_at(content, ("model", "module_parallelisms"))
    if not isinstance(modules, dict) or name not in modules:
        return draft
    names = list(modules)
    place = names.index(name)
    names.insert(max(0, min(len(names) - 1, place + by)), names.pop(place))
    content["model"]["module_parallelisms"] = {each: modules[each] for each in names}
    return draft.with_content(content)


def set_feeds(draft: Draft, name: str, target: str, on: bool) -> Draft:
    """Let a module feed another, or no longer; the default graph is not written.

    An encoder that another one feeds becomes an adapter.
    """
    content = draft.copied()
    model = content.get("model")
    if not isinstance(model, dict):
        return draft
    graph = feeds_of(content)
    fed = [each for each in graph.get(name, []) if each != target] + ([target] if on else [])
    graph[name] = fed
    model["topology"] = graph
    if graph == _default_graph(model):
        model.pop("topology")
    if on and graph.get(target):
        _take_rows(paths.mapping_at(model, ("module_architectures",)), name, target)
    return draft.with_content(content)


def _take_rows(networks: Mapping[str, Any], feeder: str, adapter: str) -> None:
    network, before = networks.get(adapter), networks.get(feeder)
    if not isinstance(network, dict) or not isinstance(before, Mapping):
        return
    for field in OF_ITEMS:
        network.pop(field, None)
    network["modal_type"] = "rows"
    with suppress(ValueError):  # the feeder is not valid yet
        network["seq_length"] = tokens_per_item(ModuleArchitecture.model_validate(dict(before)))


def set_network(draft: Draft, name: str, published: str) -> Draft:
    """Give a module the network of a published model."""
    content = draft.copied()
    networks = _section(_section(content, "model"), "module_architectures")
    seq_length = paths.value_at(content, ("data", "seq_length"))
    whole = seq_length if isinstance(seq_length, int) else 1
    tensor = paths.value_at(content, ("model", "module_parallelisms", name, "tensor_parallel"))
    shared = tensor if isinstance(tensor, int) and tensor > 0 else 1
    networks[name] = network_fields(published, whole, shared)
    return draft.with_content(content)


def feeds_of(content: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return module -> the modules that it feeds, as far as the graph can be read."""
    model = paths.mapping_at(content, ("model",))
    written = model.get("topology")
    if not isinstance(written, Mapping):
        return _default_graph(model)
    names = dict.fromkeys((*paths.mapping_at(model, ("module_parallelisms",)), *written))
    return {
        str(name): [str(target) for target in fed] if isinstance(fed, list) else []
        for name in names
        for fed in [written.get(name, [])]
    }


def _default_graph(model: Mapping[str, Any]) -> dict[str, list[str]]:
    language = model.get("llm_module_name")
    names = paths.mapping_at(model, ("module_parallelisms",))
    return {str(name): [] if name == language else [str(language)] for name in names}


def _before(
    modules: Mapping[str, Any], language: Any, name: str, sizes: dict[str, Any]
) -> dict[str, Any]:
    entries = [*modules.items()]
    last = bool(entries) and entries[-1][0] == language
    entries.insert(len(entries) - last, (name, sizes))
    return dict(entries)


def _begin(sizes: Mapping[str, Any]) -> int:
    begin = sizes.get("rank_offset", 0)
    return begin if isinstance(begin, int) else 0


def _ranks(sizes: Mapping[str, Any]) -> int:
    values = (sizes.get(CONFIG_FIELDS[axis]) for axis in GRID_AXES)
    return prod(value if isinstance(value, int) and value > 0 else 1 for value in values)


def _content_with(draft: Draft, path: Path, value: object) -> dict[str, Any]:
    content = dict(draft.content)  # what the path does not lead through is shared
    current = content
    for key in path[:-1]:
        inner = current.get(key)
        current[key] = dict(inner) if isinstance(inner, dict) else {}
        current = current[key]
    if value is None:
        current.pop(path[-1], None)
        if not current and path[:-1] == paths.PREDICTION:
            content.pop(path[0])  # a section that says nothing
    else:
        current[path[-1]] = value
    return content
