"""What can be planned but cannot be run yet."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mimokit.config.architecture import ModuleArchitecture
from mimokit.config.base import RUNNABLE
from mimokit.config.data import DataConfig
from mimokit.config.errors import Problem, refuse_if_any
from mimokit.config.experiment import ExperimentConfig
from mimokit.config.messages import problem_at
from mimokit.config.model import MimoParallelismConfig
from mimokit.config.rules.facts import (
    ModuleFacts,
    ModuleSizes,
    a_fix,
    module_problem,
)
from mimokit.config.rules.message_tags import tag_problems
from mimokit.config.rules.module_rules import VOCABULARY, broken_rules
from mimokit.config.rules.runnable_networks import unrunnable_networks
from mimokit.config.runtime import (
    BLOCK_SCALED,
    FRAME_PARALLEL,
    RUNNABLE_PRECISIONS,
    TF32,
)
from mimokit.units import counted


def check_runnable(config: ExperimentConfig | MimoParallelismConfig) -> None:
    """Reject what can be planned but cannot be run yet.

    Raises:
        ConfigError: a size, field of a network, graph of modules, schedule or precision
            that runs do not have yet (the tables of this file and of
            `runnable_networks`), more micro-batches or edges than a message tag holds, a data set
            without one micro-batch, or no tokens for an encoder.
    """
    if isinstance(config, ExperimentConfig) and config.has_passed(RUNNABLE):
        return
    refuse_if_any(unrunnable(config))
    if isinstance(config, ExperimentConfig):
        config.mark_passed([RUNNABLE])


def unrunnable(config: ExperimentConfig | MimoParallelismConfig) -> list[Problem]:
    """Return the problems with which `check_runnable` rejects a config."""
    model = config.model if isinstance(config, ExperimentConfig) else config
    problems = list(unrunnable_networks(model))
    data = config.data if isinstance(config, ExperimentConfig) else None
    problems += _graph_problems(model, data)
    if isinstance(config, ExperimentConfig):
        problems += tag_problems(model, config.data)
        problems += _precision(config)
        problems += _samples(config)
        problems += _frame_parallel(config)
    return problems


def _precision(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield a precision that runs do not have."""
    value = config.runtime.precision
    if value in (None, TF32, *RUNNABLE_PRECISIONS):
        return
    blocks = "needs GPUs of compute capability 10.0 or more (Blackwell)"
    why = blocks if value in BLOCK_SCALED else "runs do not know"
    sentence = (
        f"precision is {value}, which {why}; choose {', '.join(RUNNABLE_PRECISIONS)}, or leave it "
        "out to run in fp32."
    )
    yield problem_at("runtime.precision", value, sentence, None)


def _samples(config: ExperimentConfig) -> Iterator[Problem]:
    """Yield a data set without one micro-batch, and encoders without room for their tokens."""
    data, model = config.data, config.model
    replicas = model.get_parallelism(model.llm_module_name).data_parallel or 1
    needed = data.base_batch_size * replicas
    if data.dataset_size < needed:
        sentence = (
            f"dataset_size is {data.dataset_size:,}, less than the {needed:,} "
            f"samples of a micro-batch (base_batch_size {data.base_batch_size:,} for each of "
            f"{counted(replicas, 'replica')}); raise it, or lower base_batch_size."
        )
        yield problem_at("data.dataset_size", data.dataset_size, sentence, needed)
    for name in model.input_module_names:
        if name in model.module_architectures and not config.tokens_of(name):
            sentence = (
                f"image_seq_length is 0, which leaves no tokens to module "
                f"'{name}'; raise it, or give the module its own in modality_seq_lengths."
            )
            yield problem_at("data.image_seq_length", data.image_seq_length, sentence)


def _frame_parallel(config: ExperimentConfig) -> Iterator[Problem]:
    if FRAME_PARALLEL not in config.runtime.patch_type:
        return
    model = config.model
    encoders = [
        name
        for name in model.encoder_module_names
        if model.get_architecture(name).modality == "vision"
    ]
    if not encoders:
        sentence = f"patch_type has {FRAME_PARALLEL}, but no module encodes images; leave it out."
        yield problem_at("runtime.patch_type", FRAME_PARALLEL, sentence, [])


def _graph_problems(model: MimoParallelismConfig, data: DataConfig | None) -> Iterator[Problem]:
    """Yield what of the graph of modules can be planned but not run.

    Args:
        data: None: what decoders write is not known.
    """
    for name in model.decoder_module_names:
        network = model.module_architectures.get(name)
        if network is not None and network.modality == "text":
            yield from _text_decoder_problems(model, name, data)


def _rows_of_positions(network: ModuleArchitecture) -> float:
    """Return the positions that a decoder has; any number where they rotate."""
    learned = network.has_learned_positions(by_default=False)
    return (network.max_position_embeddings or network.seq_length) if learned else math.inf


def _text_decoder_problems(
    model: MimoParallelismConfig, name: str, data: DataConfig | None
) -> Iterator[Problem]:
    network, sizes = model.get_architecture(name), model.get_parallelism(name)
    path = f"model.module_architectures.{name}"
    if data is not None and network.vocab_size < data.vocab_size:
        sentence = (
            f"vocab_size is {network.vocab_size}, but it writes tokens of the "
            f"{data.vocab_size} of data.vocab_size; raise it."
        )
        yield module_problem(
            name,
            "vocab_size",
            network.vocab_size,
            sentence,
            {"path": f"{path}.vocab_size", "value": data.vocab_size},
        )
    elif data is not None and _rows_of_positions(network) < data.seq_length:
        field = "max_position_embeddings" if network.max_position_embeddings else "seq_length"
        sentence = (
            f"{field} is {getattr(network, field)}, but its samples have {data.seq_length} tokens "
            "(data.seq_length), and each has a learned position; raise it."
        )
        fix = a_fix(f"{path}.{field}", data.seq_length)
        yield module_problem(name, field, getattr(network, field), sentence, fix)
    else:
        facts = ModuleFacts(name, is_language=False, vocab=network.vocab_size)
        yield from broken_rules(ModuleSizes(sizes.tensor_parallel), facts, (VOCABULARY,))
