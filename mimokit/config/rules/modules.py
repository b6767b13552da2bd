"""Modules have one name in all sections, and their graph leads to or from the language module."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator

from mimokit.config.errors import Problem
from mimokit.config.graph import Topology, downstream, find_cycle, upstream
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import module_problem
from mimokit.units import listed


def name_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the names that are missing somewhere or known nowhere."""
    model = context.model
    modules = model.module_parallelisms
    language_is_valid = context.is_valid("model.llm_module_name")
    if (
        model.llm_module_name not in modules
        and language_is_valid
        and context.has_valid_sizes(model.llm_module_name)
    ):
        yield _unknown("llm_module_name", model.llm_module_name, modules)
    yield from _encoder_name(context)
    yield from _architectures(context)
    yield from _special_tokens(context)


def _encoder_name(context: ValidationContext) -> Iterator[Problem]:
    model, name = context.model, context.model.encoder_module_name
    if name is None:
        return
    if not context.has_valid_sizes(name):
        return
    if name not in model.module_parallelisms:
        yield _unknown("encoder_module_name", name, model.encoder_module_names)
    elif name == model.llm_module_name:
        encoders = ", ".join(model.encoder_module_names) or "none"
        sentence = (
            f"encoder_module_name is '{name}', which is the language module; "
            f"name one of the encoders ({encoders}) or leave it out."
        )
        yield problem_at("model.encoder_module_name", name, sentence)


def _architectures(context: ValidationContext) -> Iterator[Problem]:
    model = context.model
    if context.data is None and not model.module_architectures:
        return  # a model that was written for its ranks only
    for name in model.module_parallelisms:
        if name not in model.module_architectures and _readable(context, name):
            sentence = (
                "it is in module_parallelisms but missing from module_architectures; give its "
                "num_layers, hidden_size, num_attention_heads, seq_length and vocab_size there."
            )
            yield module_problem(name, "module_architectures", None, sentence)
    for name in model.module_architectures:
        if name not in model.module_parallelisms and _readable(context, name):
            yield _stray(name, "module_architectures", model.module_parallelisms)


def _readable(context: ValidationContext, name: str) -> bool:
    """Return whether no entry of the module was rejected: a rejected one was not read."""
    return context.has_valid_sizes(name) and context.is_valid(f"model.module_architectures.{name}")


def _special_tokens(context: ValidationContext) -> Iterator[Problem]:
    model = context.model
    for name, token in model.special_token_ids.items():
        if name == model.llm_module_name:
            sentence = (
                f"special_token_ids gives it {token}, but it is the language "
                "module, whose tokens hold no place for another; remove the entry."
            )
            yield module_problem(name, "special_token_ids", token, sentence)
        elif name not in model.module_parallelisms and context.has_valid_sizes(name):
            yield _stray(name, "special_token_ids", model.encoder_module_names)
    if context.data is None and not model.special_token_ids:
        return  # a model that was written for its ranks only
    if model.llm_module_name not in model.module_parallelisms:
        return  # which modules are encoders is not known
    for name in model.encoder_module_names:
        if model.llm_module_name not in model.module_topology[name]:
            continue  # its output takes no places among the tokens
        path = f"model.special_token_ids.{name}"
        if name not in model.special_token_ids and context.is_valid(path):
            sentence = "it has no entry in special_token_ids; give it a token id that no text has."
            yield module_problem(name, "special_token_ids", None, sentence)


def _unknown(field: str, name: str, known: Iterable[str]) -> Problem:
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    fix = {"path": f"model.{field}", "value": nearest[0]} if nearest else None
    sentence = (
        f"Section 'model': {field} is '{name}', which is not a module of module_parallelisms; "
        f"choose one of {', '.join(names) or 'its modules'}."
    )
    return Problem("model", field, name, sentence, fix)  # type: ignore[arg-type]


def _stray(name: str, field: str, known: Iterable[str]) -> Problem:
    nearest = difflib.get_close_matches(name, list(known), n=1)
    right = f"did you mean '{nearest[0]}'?" if nearest else "add it there or remove it here."
    sentence = f"{field} has it, but module_parallelisms has not; {right}"
    return module_problem(name, field, name, sentence)


def topology_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong with a topology that was written; the default one is right."""
    model = context.model
    if model.topology is None or model.llm_module_name not in model.module_parallelisms:
        return
    if not context.is_valid("model.topology", "model.module_parallelisms", "model.llm_module_name"):
        return
    graph = model.module_topology
    unknown = tuple(_unknown_modules(context, graph))
    yield from unknown
    if unknown:
        return
    cycle = find_cycle(graph)
    if cycle:
        sentence = (
            f"topology has a cycle, {' -> '.join(cycle)}, in which every module "
            "waits for itself; remove one of these edges."
        )
        yield problem_at("model.topology", list(cycle), sentence)
        return
    yield from _disconnected(context, graph)
    yield from _behind(context, graph)


def _unknown_modules(context: ValidationContext, graph: Topology) -> Iterator[Problem]:
    modules = context.model.module_parallelisms
    for name in dict.fromkeys((*graph, *(target for fed in graph.values() for target in fed))):
        if name not in modules:
            sentence = (
                f"topology names '{name}', which is not a module of "
                f"module_parallelisms; choose one of {', '.join(modules)}."
            )
            yield problem_at("model.topology", name, sentence)


def _disconnected(context: ValidationContext, graph: Topology) -> Iterator[Problem]:
    language = context.model.llm_module_name
    joined = {language} | upstream(graph, language) | downstream(graph, language)
    for name in graph:
        if name in joined:
            continue
        fed = [source for source, targets in graph.items() if name in targets]
        by = f"only {' and '.join(fed)} feeds it" if fed else "no module feeds it"
        sentence = (
            f"by the topology {by} and it does not lead to '{language}'; let it "
            f"feed '{language}', or be fed by it."
        )
        yield module_problem(name, "topology", list(graph[name]), sentence)


def _behind(context: ValidationContext, graph: Topology) -> Iterator[Problem]:
    language = context.model.llm_module_name
    behind = downstream(graph, language)
    for name, fed in graph.items():
        taking = [target for target in fed if target in behind]
        if name == language or not taking:
            continue
        gives = (
            f"comes behind '{language}' and ends in logits, which no module takes"
            if name in behind
            else "has rows of items, not of the tokens"
        )
        sentence = (
            f"by the topology it feeds {listed(taking)}, which takes a row of every token of "
            f"'{language}', but it {gives}; let '{language}' alone feed {listed(taking)}."
        )
        yield module_problem(name, "topology", list(fed), sentence)
