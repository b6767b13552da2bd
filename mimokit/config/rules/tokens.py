"""A special token id means one thing only."""

from __future__ import annotations

from collections.abc import Iterator

from mimokit.config.data import DataConfig
from mimokit.config.errors import Fix, Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import module_problem
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
        known = ", ".join(f"'{name}' has {token}" for name, token in expected.items())
        fix: Fix = {
            "path": "data.image_special_token_id",
            "value": next(iter(expected.values())),
        }
        sentence = (
            f"Section 'data': image_special_token_id is {data.image_special_token_id}, but in "
            f"model.special_token_ids {known}; write the same id in both."
        )
        yield Problem(
            "data",
            "image_special_token_id",
            data.image_special_token_id,
            sentence,
            fix if len(expected) == 1 else None,
        )


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
                f"Section 'data': {field} is {value}, more than the {limit_field} of module "
                f"'{language}' in module_architectures; lower it, or raise that."
            )
            yield Problem(
                "data",
                field,
                value,
                sentence,
                {"path": f"data.{field}", "value": limit_field} if limit_field else None,
            )
