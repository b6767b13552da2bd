"""Plans and tables to draw, made without a cluster."""

import math

from mimokit.samples import EvaluationSample, ModuleSample, Sample, StepSample


def samples(iterations: int = 40, ranks: int = 8) -> list[Sample]:
    """Return what `ranks` ranks would send while they train, with an evaluation every 10."""
    made: list[Sample] = []
    for iteration in range(iterations):
        loss = 2.4 * math.exp(-iteration / 15) + 0.1
        made += [step(iteration, rank, loss) for rank in range(ranks)]
        if iteration % 10 == 9:
            made.append(_evaluation(iteration, 1 - loss / 2.5, loss))
    return made


def step(iteration: int, rank: int, loss: float) -> StepSample:
    slow = 1.0 + 0.1 * (rank % 3) + (2.0 if iteration == 0 else 0.0)
    total = (0.010 + 0.018 + 0.019 + 0.031 + 0.008 + 0.006 + 0.002) * slow + 0.004
    return StepSample(
        rank=rank,
        iteration=iteration,
        time=1_700_000_000 + 0.1 * iteration,
        total_time=total,
        forward_time=0.03 * slow,
        backward_time=0.05 * slow,
        communication_time=0.008 * slow,
        optimizer_time=0.006 * slow,
        data_time=0.002 * slow,
        tokens_per_sec=4096 / total,
        samples_per_sec=64 / total,
        memory_allocated=180_000_000 + rank,
        memory_reserved=200_000_000,
        loss=loss,
        grad_norm=loss * 2,
        collective_time=0.005 * slow,
        point_to_point_time=0.003 * slow,
        waiting_time=0.002 * slow,
        memory_peak=240_000_000 + rank,
        validation_loss=1.1 * loss if iteration % 5 == 4 else None,
        model_flop_utilisation=0.4 / slow,
        modules={
            "images": ModuleSample(
                forward_time=0.010 * slow, backward_time=0.019 * slow, tokens_per_sec=1024 / total
            ),
            "language_module": ModuleSample(
                forward_time=0.018 * slow, backward_time=0.031 * slow, tokens_per_sec=3072 / total
            ),
        },
    )


def _evaluation(iteration: int, right: float, loss: float) -> EvaluationSample:
    return EvaluationSample(
        iteration=iteration,
        time=1_700_000_000 + 0.1 * iteration,
        task="read",
        exact_match=right,
        digit_accuracy=right**0.5,
        loss=loss,
        chance=0.01,
        samples=64,
    )
