"""The section data fits the model: ids of tokens, and room for those of every module."""

import math
from collections.abc import Callable, Iterator

from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.roles import TEXT, WRITER
from mimokit.config.rules.rule import ConfigRule, Subject, problems_in
from mimokit.config.rules.writing import NET, SIZES
from mimokit.units import listed

_ENTRIES = {
    "modality_seq_lengths": "feeds '{language}'",
    "modality_presence": "reads items",
    "modality_frames": "reads items",
}
"""Field with an entry per encoder -> what those encoders do."""


def data_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the token ids with two meanings, and sequences without room."""
    model, data = context.model, context.data
    yield from problems_in(context, model.special_token_ids, OF_TOKENS)
    yield from problems_in(context, [model.llm_module_name], OF_DATA)
    if data is None or not context.graph_is_valid:
        return
    for field, rules in OF_ENTRIES.items():
        yield from problems_in(context, getattr(data, field), rules)
    names = [name for name, _ in context.networks()]
    yield from problems_in(context, names, OF_MODULES_WITH_DATA)


def _twice(m: Subject) -> object:
    """Return a token id, which module has it as well, and one that none has."""
    ids = m.model.special_token_ids
    token, names = ids[m.name], list(ids)
    before = names[: names.index(m.name)]
    first = next((name for name in before if ids[name] == token), None)
    again = len(before) - len({ids[name] for name in before})
    return first is not None and (token, first, max(ids.values()) + 1 + again)


OF_TOKENS = (
    ConfigRule(
        "model.special_token_ids.{name}",
        _twice,
        "its special token id {0} in special_token_ids is also that of '{1}'; give each its own, "
        "{2} say.",
        lambda _, first, free: free,
    ),
)


def _other_ids(m: Subject) -> object:
    """Return what ids stand for images, if the section data has none of them, and the only one."""
    ids, first = m.model.special_token_ids, m.model.encoder_module_name
    expected = {first: ids[first]} if first in ids else ids
    told = ", ".join(f"'{name}' has {token}" for name, token in expected.items())
    only = next(iter(expected.values())) if len(expected) == 1 else NO_FIX
    wrong = m.data.image_special_token_id not in expected.values()
    return bool(expected) and wrong and (told, only)


def _full(m: Subject) -> object:
    """Return the tokens of all encoders, those of each, and of a sample, which has no other."""
    data = m.data
    last = [n for n in m.model.encoder_module_names if m.language in m.model.module_topology[n]]
    lengths = {name: data.modality_seq_length(name) for name in last}
    told, total = ", ".join(f"{n} {length}" for n, length in lengths.items()), sum(lengths.values())
    full = data.image_seq_length < data.seq_length <= total and m.context.graph_is_valid
    return full and (total, told, data.seq_length)


def _within(field: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        net = m.model.module_architectures.get(m.name)
        most = getattr(net, field, math.inf)
        return getattr(m.data, field) > most and (most,)

    return ConfigRule(
        f"data.{field}",
        finds,
        ", more than the {0} of module '{name}' in module_architectures; lower it, or raise that.",
        lambda most: most or NO_FIX,
        reads=(NET,),
    )


OF_DATA = (
    ConfigRule(
        "data.image_special_token_id",
        _other_ids,
        ", but in model.special_token_ids {0}; write the same id in both.",
        lambda _, only: only,
        reads=("model.special_token_ids",),
    ),
    ConfigRule(
        "data.image_seq_length",
        lambda m: m.data.image_seq_length >= m.data.seq_length and m.data.seq_length,
        ", but a sample has {0:token} (data.seq_length), its image tokens among them; make it "
        "smaller, so that text has room.",
        reads=("data.seq_length",),
    ),
    ConfigRule(
        "data.modality_seq_lengths",
        _full,
        "modality_seq_lengths and image_seq_length add up to {0} ({1}), but a sample has {2:token} "
        "(data.seq_length), those of all encoders among them; make them smaller, so that text has "
        "room.",
        reads=("data.image_seq_length", "data.seq_length"),
    ),
    _within("seq_length"),
    _within("vocab_size"),
)


def _entry(field: str, does: str) -> ConfigRule:
    def finds(m: Subject) -> object:
        last = [n for n in m.model.encoder_module_names if m.language in m.model.module_topology[n]]
        known = last if field == "modality_seq_lengths" else list(m.model.input_module_names)
        return m.name not in known and (", ".join(known) or "none",)

    return ConfigRule(
        f"data.{field}.{{name}}",
        finds,
        f"data.{field} has it, but it is not an encoder that {does} (those are {{0}}); remove the "
        "entry or add the encoder.",
        reads=(SIZES,),
    )


def _entry_of(field: str, where: Callable[[Subject], object], why: str) -> ConfigRule:
    says = f"data.{field} has it, but {why}; remove the entry."
    return ConfigRule(
        f"data.{field}.{{name}}",
        lambda m: m.name in m.model.module_architectures and where(m),
        says,
        reads=(NET,),
    )


OF_ENTRIES: dict[str, tuple[ConfigRule, ...]] = {
    field: (_entry(field, does),) for field, does in _ENTRIES.items()
}
OF_ENTRIES["modality_presence"] += (
    _entry_of(
        "modality_presence", lambda m: m.role == TEXT, "it reads words, which every sample has"
    ),
)
OF_ENTRIES["modality_frames"] += (
    _entry_of(
        "modality_frames",
        lambda m: m.net.modality != "vision",
        "it is not a vision encoder, so it has no frames",
    ),
)


def _text_heads(m: Subject) -> list[str]:
    """Return the encoders that read words, if the module is among them."""
    if m.role != TEXT or not m.encodes:
        return []
    networks = m.context.networks(m.model.encoder_module_names)
    return [name for name, network in networks if network.modality == "text"]


def _positions(m: Subject) -> float:
    """Return the learned positions of a sequence; infinite where positions are computed."""
    learned = m.net.has_learned_positions(by_default=False)
    return (m.net.max_position_embeddings or m.net.seq_length) if learned else math.inf


def _short(field: str, where: Callable[[Subject], object]) -> ConfigRule:
    return ConfigRule(
        f"{NET}.{field}",
        lambda m: (
            m.role == WRITER
            and where(m)
            and _positions(m) < m.data.seq_length
            and m.data.seq_length
        ),
        ", but its samples have {0} tokens (data.seq_length), and each has a learned position; "
        "raise it.",
        lambda length: length,
        reads=("data.seq_length",),
    )


OF_MODULES_WITH_DATA = (
    ConfigRule(
        f"{NET}.modal_type",
        lambda m: m.name in _text_heads(m)[1:] and _text_heads(m)[0],
        ", but '{0}' reads the words already; leave it out of one of them.",
    ),
    ConfigRule(
        "model.topology.{name}",
        lambda m: _text_heads(m) and sum(m.model.ends_of(m.name).values()) > 1 and listed(m.feeds),
        "it feeds {0}, so that its rows reach '{language}' more than once, but they take the "
        "places of its words, one each; let it feed one module.",
    ),
    ConfigRule(
        "data.vocab_size",
        lambda m: _text_heads(m) and m.data.vocab_size > m.net.vocab_size > 0 and m.net.vocab_size,
        ", more than the {0} of module '{name}' in module_architectures; lower it, or raise that.",
    ),
    ConfigRule(
        "data.image_seq_length",
        lambda m: m.data.image_seq_length == 0 and m.name in m.model.input_module_names
        and not all(map(m.data.modality_seq_length, m.model.ends_of(m.name))),
        ", which leaves no tokens to module '{name}'; raise it, or give the module its own in "
        "modality_seq_lengths.",
        reads=("data.modality_seq_lengths",),
    ),
    ConfigRule(
        f"{NET}.vocab_size",
        lambda m: m.role == WRITER and m.net.vocab_size < m.data.vocab_size and m.data.vocab_size,
        ", but it writes tokens of the {0} of data.vocab_size; raise it.",
        lambda size: size,
        reads=("data.vocab_size",),
    ),
    _short("max_position_embeddings", lambda m: m.net.max_position_embeddings),
    _short("seq_length", lambda m: not m.net.max_position_embeddings),
)  # fmt: skip
