"""The graph of modules leads to the language module, or away from it, and never back."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.errors import Problem
from mimokit.config.graph import Topology, downstream, find_cycle, upstream
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import module_problem
from mimokit.units import listed


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
    known = context.model.module_parallelisms
    for name in dict.fromkeys((*graph, *(target for fed in graph.values() for target in fed))):
        if name not in known:
            sentence = (
                f"topology names '{name}', which is not a module of "
                f"module_parallelisms; choose one of {', '.join(known)}."
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
