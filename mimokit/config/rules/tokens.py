"""Tokens of samples: ids that mean one thing only, and room for them in the modules."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.messages import NO_FIX, problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import module_problem, network_problem
from mimokit.units import counted


def token_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield the token ids with two meanings, and sequences too long for their network."""
    yield from _shared_ids(context)
    if context.data is not None:
        yield from _placeholder(context, context.data)
        yield from _lengths(context, context.data)


def _shared_ids(context: ValidationContext) -> Iterator[Problem]:
    owners: dict[int, str] = {}
    used = set(context.model.special_token_ids.values())
    for name, token in context.model.special_token_ids.items():
        path = f"model.special_token_ids.{name}"
        if not context.is_valid(path):
            continue
        if token in owners:
            free = max(used) + 1
            used.add(free)
            sentence = (
                f"its special token id {token} in special_token_ids is also that "
                f"of '{owners[token]}'; give each its own, {free} say."
            )
            yield module_problem(
                name, "special_token_ids", token, sentence, {"path": path, "value": free}
            )
        owners.setdefault(token, name)


def _placeholder(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    ids, first = context.model.special_token_ids, context.model.encoder_module_name
    expected = {first: ids[first]} if first in ids else ids
    if not expected or not context.is_valid(
        "data.image_special_token_id", "model.special_token_ids"
    ):
        return
    if data.image_special_token_id not in expected.values():
        stated = ", ".join(f"'{name}' has {token}" for name, token in expected.items())
        token, right = data.image_special_token_id, [*expected.values()]
        sentence = (
            f"image_special_token_id is {token}, but in model.special_token_ids {stated}; write "
            "the same id in both."
        )
        path = "data.image_special_token_id"
        yield problem_at(path, token, sentence, right[0] if len(right) == 1 else NO_FIX)


def _lengths(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    if data.image_seq_length >= data.seq_length and context.is_valid(
        "data.image_seq_length", "data.seq_length"
    ):
        sentence = (
            f"image_seq_length is {data.image_seq_length}, but a sample has "
            f"{counted(data.seq_length, 'token')} (data.seq_length), its image tokens among them; "
            "make it smaller, so that text has room."
        )
        yield problem_at("data.image_seq_length", data.image_seq_length, sentence)
    language = context.model.llm_module_name
    network = context.model.module_architectures.get(language)
    if network is None or not context.is_valid(f"model.module_architectures.{language}"):
        return
    for field, value, limit_field in (
        ("seq_length", data.seq_length, network.seq_length),
        ("vocab_size", data.vocab_size, network.vocab_size),
    ):
        if value > limit_field and context.is_valid(f"data.{field}"):
            sentence = (
                f"{field} is {value}, more than the {limit_field} of module '{language}' in "
                "module_architectures; lower it, or raise that."
            )
            yield problem_at(f"data.{field}", value, sentence, limit_field or NO_FIX)


def sample_problems(context: ValidationContext) -> Iterator[Problem]:
    """Yield encoders without tokens in a sample, and decoders without room for one."""
    if context.data is not None and context.graph_is_valid:
        yield from _no_tokens(context, context.data)
        yield from _text_decoders(context, context.data)


def _no_tokens(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    model, path = context.model, "data.image_seq_length"
    if data.image_seq_length or not context.is_valid(path, "data.modality_seq_lengths"):
        return
    for name in model.input_module_names:
        if name not in model.module_architectures:
            continue
        if not all(data.modality_seq_length(last) for last in model.ends_of(name)):
            sentence = (
                f"image_seq_length is 0, which leaves no tokens to module "
                f"'{name}'; raise it, or give the module its own in modality_seq_lengths."
            )
            yield problem_at(path, data.image_seq_length, sentence)


def _text_decoders(context: ValidationContext, data: DataConfig) -> Iterator[Problem]:
    model = context.model
    for name, network in context.networks(model.decoder_module_names):
        if network.modality == "text" and name != model.llm_module_name:
            yield from _text_decoder(context, data, name, network)


def _text_decoder(
    context: ValidationContext, data: DataConfig, name: str, network: ModuleArchitecture
) -> Iterator[Problem]:
    field = "vocab_size"
    if network.vocab_size < data.vocab_size and context.is_valid("data.vocab_size"):
        what = f"but it writes tokens of the {data.vocab_size} of data.vocab_size; raise it."
        yield network_problem(name, field, network.vocab_size, what, data.vocab_size)
    if _rows_of_positions(network) < data.seq_length and context.is_valid("data.seq_length"):
        field = "max_position_embeddings" if network.max_position_embeddings else "seq_length"
        what = (
            f"but its samples have {data.seq_length} tokens (data.seq_length), and each has a "
            "learned position; raise it."
        )
        yield network_problem(name, field, getattr(network, field), what, data.seq_length)


def _rows_of_positions(network: ModuleArchitecture) -> float:
    learned = network.has_learned_positions(by_default=False)
    return (network.max_position_embeddings or network.seq_length) if learned else math.inf
