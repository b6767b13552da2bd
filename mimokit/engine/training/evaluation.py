"""Evaluates the model on held-out samples."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mimokit.config import DataConfig, ExperimentSections
from mimokit.engine.data.batch import Batch
from mimokit.engine.data.iterators import iterate_batches, permutation
from mimokit.engine.data.sources import TrainingData
from mimokit.engine.device import rank_device
from mimokit.engine.parallel.loss import vocab_parallel_cross_entropy
from mimokit.engine.pipeline.model import RankModel
from mimokit.engine.pipeline.steps import observe_logits
from mimokit.samples import AnswersSample, Emit, EvaluationSample
from mimokit.units import counted

EVALUATION_SEED = 0
"""Of the order of held-out samples."""


@dataclass(frozen=True)
class Evaluation:
    """Result over all ranks.

    Attributes:
        exact_match: share of samples in which every answer token is the most likely one, given the
            correct tokens before it; greedy decoding returns exactly these answers.
        token_accuracy: share of answer tokens that are the most likely ones.
        loss: mean over answer tokens.
        answers: (number of the sample in the test set, tokens), of the first `SHOWN_ANSWERS`
            samples: on one rank that has their logits; empty on others, for samples in a row and
            for sequences that ranks share.
    """

    exact_match: float
    token_accuracy: float
    loss: float
    samples: int
    answers: tuple[tuple[int, tuple[int, ...]], ...] = ()


SHOWN_ANSWERS = 64
"""Samples whose answers are sent; at most those that the first replica tests."""


def evaluate(
    model: RankModel, data: TrainingData, data_config: DataConfig, samples: int
) -> Evaluation:
    """Test the model in its layout. Collective.

    Args:
        samples: number of samples of the test set, the first in an order that no layout changes; at
            most as many as are `testable`.

    Raises:
        ValueError: if there is no test data.
    """
    if data.test is None:
        raise ValueError(f"The data {data.name!r} has no test set.")
    batch_size = model.plan.batch.samples_per_microbatch
    held_out = len(data.test)  # type: ignore[arg-type]
    samples = min(samples, testable(held_out, batch_size))
    batches = -(-samples // batch_size)
    sizes = data_config.model_copy(update={"dataset_size": held_out, "num_workers": 0})
    iterator = iterate_batches(
        model.plan, sizes, dist.get_rank(), data.test, data.collate_fn, seed=EVALUATION_SEED
    )
    language = model.pg_collections.get(model.language_module_name)
    computed = model.plan.batch.modules[model.language_module_name].samples
    start, _ = (0, 0) if language is None else computed[dist.get_rank()]
    totals, seen = torch.zeros(5, dtype=torch.float64, device=rank_device()), 0
    numbers = permutation(held_out, EVALUATION_SEED)
    answers: list[tuple[int, tuple[int, ...]]] = []

    def count(logits: torch.Tensor, batch: Batch) -> None:
        nonlocal totals, seen
        assert language is not None
        # The last micro-batch may have samples beyond those to be counted.
        left = samples - seen * batch_size - start
        counted = torch.arange(len(logits), device=logits.device) < left
        mask = batch["loss_mask"] * counted[:, None]
        predicted = most_likely(logits, language.tp)
        right = count_right(logits, predicted, batch["labels"], mask, language.tp)
        if model.modules()[model.language_module_name].ownership.counts_samples():
            totals += right
            whole = language.cp.size() == 1 and "cu_seqlens" not in batch
            if start == 0 and whole and len(answers) < SHOWN_ANSWERS:
                answers.extend(_answers(predicted, mask, numbers[seen * batch_size :]))
        seen += 1

    observe_logits(iterator, model, batches, count)
    dist.all_reduce(totals)
    exact, tested, right, tokens, loss = totals.tolist()
    return Evaluation(
        exact_match=exact / max(tested, 1),
        token_accuracy=right / max(tokens, 1),
        loss=loss / max(tokens, 1),
        samples=round(tested),
        answers=tuple(answers[:SHOWN_ANSWERS]),
    )


def testable(held_out: int, batch_size: int) -> int:
    """Return the held-out samples of whole micro-batches, or all if they are fewer than one has."""
    return held_out // batch_size * batch_size or held_out


def _answers(
    predicted: torch.Tensor, mask: torch.Tensor, numbers: Sequence[int]
) -> Iterator[tuple[int, tuple[int, ...]]]:
    for number, tokens, asked in zip(numbers, predicted, mask > 0, strict=False):
        if asked.any():
            yield number, tuple(tokens[asked].tolist())


def emit_evaluation(
    model: RankModel,
    data: TrainingData,
    data_config: DataConfig,
    samples: int,
    iteration: int,
    emit: Emit,
) -> None:
    """Test on held-out samples, if the data has any, and emit the result on rank 0. Collective."""
    if data.test is None:
        return
    result = evaluate(model, data, data_config, samples)
    if result.answers:
        emit(AnswersSample(rank=dist.get_rank(), iteration=iteration, answers=result.answers))
    if dist.get_rank() == 0:
        emit(
            EvaluationSample(
                iteration=iteration,
                time=time.time(),
                task=data.name,
                exact_match=result.exact_match,
                digit_accuracy=result.token_accuracy,
                loss=result.loss,
                chance=data.chance,
                samples=result.samples,
            )
        )


def most_likely(logits: torch.Tensor, tensor_group: dist.ProcessGroup) -> torch.Tensor:
    """Return the most likely tokens, [samples, tokens].

    Args:
        logits: [samples, tokens, vocabulary / TP].
    """
    parts = [torch.empty_like(logits) for _ in range(tensor_group.size())]
    dist.all_gather(parts, logits.contiguous(), group=tensor_group)
    return torch.cat(parts, dim=-1).argmax(dim=-1)


def count_right(
    logits: torch.Tensor,
    predicted: torch.Tensor,
    labels: torch.Tensor,
    loss_mask: torch.Tensor,
    tensor_group: dist.ProcessGroup,
) -> torch.Tensor:
    """Count correct tokens and samples.

    Args:
        logits: [samples, tokens, vocabulary / TP].
        predicted: [samples, tokens], of `most_likely`.
        labels: [samples, tokens].
        loss_mask: [samples, tokens], 1 where an answer is expected.

    Returns:
        [correct samples, samples, correct tokens, tokens, summed loss]; samples without an answer
        are not counted.
    """
    losses = vocab_parallel_cross_entropy(logits, labels, tensor_group)
    expected = loss_mask > 0
    right = (predicted == labels) & expected
    answered = expected.any(dim=1)
    exact = (answered & (right.sum(dim=1) == expected.sum(dim=1))).sum()
    samples = answered.sum()
    counts = [exact, samples, right.sum(), expected.sum(), (losses * loss_mask).sum()]
    return torch.stack([count.to(torch.float64) for count in counts])


def check_validation(config: ExperimentSections, data: TrainingData, batch_size: int) -> None:
    """Reject a validation without enough held-out samples.

    Args:
        batch_size: samples of a micro-batch over all replicas.

    Raises:
        ValueError: the test data is missing, or fewer samples of it are `testable`.
    """
    validation = config.runtime.validation
    if validation is None:
        return
    if data.test is None:
        raise ValueError(
            f"The config asks for runtime.validation, but the data {data.name!r} has no held-out "
            "samples; give it a test set, or leave runtime.validation out."
        )
    whole = testable(len(data.test), batch_size)  # type: ignore[arg-type]
    if validation.samples > whole:
        raise ValueError(
            f"runtime.validation.samples is {validation.samples}, but the data {data.name!r} has "
            f"{counted(whole, 'held-out sample')} in micro-batches of {batch_size}; make it at "
            f"most {whole}."
        )
