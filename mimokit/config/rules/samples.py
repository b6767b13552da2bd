"""The samples of a data set fit the modules that read or write them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem
from mimokit.config.messages import problem_at
from mimokit.config.rules.context import ValidationContext
from mimokit.config.rules.facts import network_problem


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
