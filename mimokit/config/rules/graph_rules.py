"""Modules have one name in all sections, and their graph leads to or from the language module."""

import difflib
from collections.abc import Iterable, Iterator

from mimokit.config.errors import Problem
from mimokit.config.graph import downstream, find_cycle, names_of, upstream
from mimokit.config.messages import NO_FIX
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import PAINTER, SPEAKER
from mimokit.config.rules.rule import ConfigRule, Subject, problems_in
from mimokit.config.rules.writing import NET, SIZES
from mimokit.units import listed

_TOKENS = "model.special_token_ids"
_FED = "model.topology.{name}"


def name_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the names that are missing somewhere or known nowhere."""
    model = context.model
    yield from problems_in(context, [model.llm_module_name], OF_LANGUAGE_NAMES)
    if model.encoder_module_name is not None:
        yield from problems_in(context, [model.encoder_module_name], OF_ENCODER_NAMES)
    if context.data is not None or model.module_architectures:
        names = dict.fromkeys((*model.module_parallelisms, *model.module_architectures))
        yield from problems_in(context, names, OF_NAMES)
    yield from problems_in(context, model.special_token_ids, OF_TOKENS)
    # A model that was written for its ranks alone has no tokens.
    known = model.llm_module_name in model.module_parallelisms
    if known and (context.data is not None or model.special_token_ids):
        yield from problems_in(context, model.encoder_module_names, OF_ENCODERS_WITH_TOKENS)


def graph_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield what is wrong with a topology, and modules that do not fit their place in it."""
    model, graph = context.model, context.model.module_topology
    yield from problems_in(context, [model.llm_module_name], OF_MODELS)
    known = context.is_valid("model.module_parallelisms", "model.llm_module_name")
    if not known or model.llm_module_name not in model.module_parallelisms:
        return
    stray = [name for name in names_of(graph) if name not in model.module_parallelisms]
    yield from problems_in(context, stray, OF_STRAY_NAMES)
    yield from problems_in(context, () if stray else [model.llm_module_name], OF_GRAPHS)
    if context.graph_is_valid:
        yield from problems_in(context, graph, OF_EDGES)
        yield from problems_in(context, [name for name, _ in context.networks()], OF_MODALITIES)


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")


def _unknown(field: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        modules, encoders = m.model.module_parallelisms, m.model.encoder_module_names
        known = modules if field == "llm_module_name" else encoders
        return m.name not in modules and (_names(known) or "its modules", _nearest(m.name, known))

    return ConfigRule(
        f"model.{field}",
        finds,
        f"{field} is '{{name}}', which is not a module of module_parallelisms; choose one of "
        "{0}.",
        lambda _, nearest: nearest or NO_FIX,
        reads=(SIZES,),
    )


def _stray(path: str) -> ConfigRule:
    tokens = path.startswith(_TOKENS)

    def finds(m: Subject) -> object:
        modules, stated = m.model.module_parallelisms, m.context.value_at(path.format(name=m.name))
        if m.name in modules or stated is None or (tokens and m.name == m.language):
            return False
        nearest = _nearest(m.name, m.model.encoder_module_names if tokens else modules)
        return f"did you mean '{nearest}'?" if nearest else "add it there or remove it here."

    field = path.split(".")[1]
    says = f"{field} has it, but module_parallelisms has not; {{0}}"
    return ConfigRule(path, finds, says, reads=(SIZES,))


OF_LANGUAGE_NAMES = (_unknown("llm_module_name"),)
OF_ENCODER_NAMES = (
    _unknown("encoder_module_name"),
    ConfigRule(
        "model.encoder_module_name",
        lambda m: m.name == m.language and m.name in m.model.module_parallelisms
        and (_names(m.model.encoder_module_names),),
        "encoder_module_name is '{name}', which is the language module; name one of the encoders "
        "({0}) or leave it out.",
        reads=(SIZES,),
    ),
)  # fmt: skip
OF_NAMES = (
    ConfigRule(
        NET,
        lambda m: m.name not in m.model.module_architectures,
        "it is in module_parallelisms but missing from module_architectures; give its num_layers, "
        "hidden_size, num_attention_heads, seq_length and vocab_size there.",
        reads=(SIZES,),
    ),
    _stray(NET),
)
OF_TOKENS = (
    ConfigRule(
        f"{_TOKENS}.{{name}}",
        lambda m: m.name == m.language and (m.model.special_token_ids[m.name],),
        "special_token_ids gives it {0}, but it is the language module, whose tokens hold no place "
        "for another; remove the entry.",
    ),
    _stray(f"{_TOKENS}.{{name}}"),
)
OF_ENCODERS_WITH_TOKENS = (
    ConfigRule(
        f"{_TOKENS}.{{name}}",
        # The output of others takes no places among the tokens.
        lambda m: m.language in m.feeds and m.name not in m.model.special_token_ids,
        "it has no entry in special_token_ids; give it a token id that no text has.",
    ),
)
OF_STRAY_NAMES = (
    ConfigRule(
        "model.topology",
        lambda m: (_names(m.model.module_parallelisms),),
        "topology names '{name}', which is not a module of module_parallelisms; choose one of {0}.",
    ),
)
OF_GRAPHS = (
    ConfigRule(
        "model.topology",
        lambda m: " -> ".join(find_cycle(m.model.module_topology)),
        "topology has a cycle, {0}, in which every module waits for itself; remove one of these "
        "edges.",
    ),
)


def _is_alone(m: Subject) -> object:
    graph = m.model.module_topology
    if m.name in {m.language} | upstream(graph, m.language) | downstream(graph, m.language):
        return False
    feeding = [source for source, targets in graph.items() if m.name in targets]
    return (f"only {' and '.join(feeding)} feeds it" if feeding else "no module feeds it",)


def _takes_rows(m: Subject) -> object:
    behind = downstream(m.model.module_topology, m.language)
    taking = listed([target for target in m.feeds if target in behind])
    gives = (
        f"comes behind '{m.language}' and ends in logits, which no module takes"
        if m.name in behind
        else "has rows of items, not of the tokens"
    )
    return m.name != m.language and taking and (taking, gives)


OF_EDGES = (
    ConfigRule(
        _FED,
        _is_alone,
        "by the topology {0} and it does not lead to '{language}'; let it feed '{language}', or be "
        "fed by it.",
    ),
    ConfigRule(
        _FED,
        _takes_rows,
        "by the topology it feeds {0}, which takes a row of every token of '{language}', but it "
        "{1}; let '{language}' alone feed {0}.",
    ),
)


def _feeders(m: Subject) -> list[str]:
    graph = m.model.module_topology
    return [name for name, fed in graph.items() if m.name in fed and name != m.language]


def _unclear_items(m: Subject) -> object:
    """Return what a decoder makes of no encoder that is clear, which one, and what is right."""
    if m.role not in (PAINTER, SPEAKER) or m.model.reconstructed_by(m.net) is not None:
        return False
    reading, named = m.model.reading(m.net.modality), m.net.reconstructs
    items = "images" if m.role == PAINTER else "sound"
    if not reading:
        right = "write modal_type: text for a decoder of tokens, or remove it"
        return items, f"no encoder reads {items}", right
    right = f"write one of {listed([*map(repr, reading)])} as reconstructs"
    if named is None:
        return items, f"several encoders read {items} ({listed(reading)})", right
    return items, f"'{named}' does not read {items}", right


OF_MODELS = (
    ConfigRule(
        "model.frozen",
        lambda m: m.model.module_parallelisms
        and m.model.frozen_modules.issuperset(m.model.module_parallelisms)
        and (next(iter(m.model.module_parallelisms)), _names(m.model.module_parallelisms)),
        "every module is frozen, so that nothing is trained; set frozen to false for one of {1}.",
        False,
        mends="model.module_architectures.{0}.frozen",
        reads=("model.module_parallelisms", "model.module_architectures"),
    ),
)  # fmt: skip
OF_MODALITIES = (
    ConfigRule(
        f"{NET}.modal_type",
        lambda m: m.encodes and m.net.modality != "rows" and listed(_feeders(m)),
        ", but {0} feeds it; write rows for an encoder that another one feeds, and for no other.",
        "rows",
    ),
    ConfigRule(
        f"{NET}.modal_type",
        lambda m: m.encodes and m.net.modality == "rows" and not _feeders(m),
        ", but no module feeds it; write rows for an encoder that another one feeds, and for no "
        "other.",
    ),
    ConfigRule(
        f"{NET}.modal_type",
        lambda m: m.name in m.model.decoder_module_names and m.net.modality == "rows",
        ", but it comes behind '{language}', where rows have no target; write text, or leave it "
        "out for a decoder of images or sound.",
        None,
    ),
    ConfigRule(
        f"{NET}.projector.deepstack_layers",
        lambda m: m.encodes and m.net.inner_layers and m.language not in m.feeds
        and listed(m.feeds),
        ", whose rows layers of '{language}' add, but it feeds {0} alone; leave it out, or let it "
        "feed '{language}'.",
        None,
    ),
    ConfigRule(
        f"{NET}.reconstructs",
        _unclear_items,
        "it makes {0} behind '{language}', but {1}; {2}.",
    ),
)  # fmt: skip
