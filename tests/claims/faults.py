"""Faults that claims are broken by: what is replaced on the ranks, and by what.

Each is also in the list of those that `explain` must name, or is planted by claims alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tests import seams
from tests.experiment.culprit.faults import FAULTS
from tests.experiment.culprit.faults.routing import other_choice
from tests.planted import replacing

Make = Callable[[Any], Any]
"""Takes the original, returns what takes its place; runs on the rank."""


@dataclass(frozen=True)
class Plant:
    """A fault: the full name of a function or method, and what takes its place."""

    target: str
    make: Make


_NAMED = {fault.name: Plant(fault.target, fault.make) for fault in FAULTS}


def named(name: str) -> Plant:
    """Return a fault of the list that `explain` must name."""
    return _NAMED[name]


def _nothing(original: Any) -> Any:
    return lambda *args, **named: None


def _zeros_to_itself(original: Any) -> Any:
    """Let what a rank sends itself arrive as zeros."""

    return lambda self: [piece.new_zeros(piece.shape) for piece in original(self)]


@replacing
def _sent_by_factor(
    factor: float,
    original: Any,
    self: Any,
    message: Any,
    edge: Any,
    microbatch: int,
    direction: int,
) -> None:
    """Send other numbers between stages of the language model, rows of encoders as they are."""
    stages = self.pipeline.graph.stages
    if stages[edge.source].module == stages[edge.destination].module:
        message = replace(message, tensor=factor * message.tensor)
    original(self, message, edge, microbatch, direction)


@replacing
def _nothing_from_behind(
    original: Any, self: Any, message: Any, edge: Any, microbatch: int, direction: int
) -> None:
    """Let the language model go back from its own loss alone."""
    if direction and self.pipeline.graph.stages[edge.source].module == "language_module":
        message = replace(message, tensor=0 * message.tensor)
    original(self, message, edge, microbatch, direction)


@replacing
def _grids_turned(original: Any, self: Any, microbatch: int, edge: Any, message: Any) -> None:
    """Let grids arrive with rows and columns exchanged."""
    if message.samples is not None and message.sizes is not None:  # rows and grids
        message = replace(message, sizes=message.sizes[:, [0, 2, 1]])
    original(self, microbatch, edge, message)


def _one_sample(original: Any) -> Any:
    """Let attention cross from a sample of a row to those before it."""
    return lambda lengths, ranks, rank, causal: original((sum(lengths),), ranks, rank, causal)


@replacing
def _one_token_more(original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Let ranks that share a sequence look back one token further."""
    if self._windowed:
        self._before = 6
    return original(self, *args, **options)


@replacing
def _forgets(original: Any, self: Any, states: Any) -> None:
    """Restore the random states, but not whose samples are computed."""
    original(self, {**states, "": self._computed})


def _first_positions(original: Any) -> Any:
    """Let every rank drop what belongs to the first tokens of samples."""
    return lambda *given: tuple(replace(span, position=0) for span in original(*given))


@replacing
def _swapped(original: Any, self: Any, batch: Any) -> Any:
    """Exchange the pixels of the first two images."""
    import torch

    rows = original(self, batch)
    first, second, *others = rows.split(self.geometry.patches)
    return torch.cat([second, first, *others])


def _shifted(original: Any) -> Any:
    """Shift the frames of recordings by a token."""
    return lambda self, batch: original(self, batch).roll(1, 0)


@replacing
def _of_tensor_group(original: Any, self: Any, *given: Any, **options: Any) -> Any:
    """Let a replica balance its own tokens, and move biases by them."""
    self.tp_dp_cp_group = self.tp_group
    return original(self, *given, **options)


@replacing
def _padding_counts(original: Any, self: Any, *given: Any, **options: Any) -> Any:
    """Let padding choose experts as tokens do."""
    from mimokit.engine.models.rng import computing_lengths, row_computed

    with computing_lengths(None, row_computed()):
        return original(self, *given, **options)


@replacing
def _of_all_samples(original: Any, self: Any, scores: Any) -> Any:
    """Let an expert take its share of the tokens of a rank, not of each sample."""
    import torch

    together = torch.zeros_like(self._tokens.samples)
    self._tokens = replace(self._tokens, samples=together, number=1)
    return original(self, scores)


@replacing
def _as_slices(original: Any, self: Any, *args: Any, **options: Any) -> None:
    """Mark biases of experts as Megatron does: their gradient on a rank is that of a slice."""
    original(self, *args, **options)
    for expert in self.local_experts:
        expert.linear_fc2.bias.sequence_parallel = True


def _samples_of_the_rank(original: Any) -> Any:
    return lambda self, places: None


@replacing
def _side_by_side(original: Any, self: Any, batch: Any) -> Any:
    """Let the pixels of a row be those of its patches one after another."""
    merge, patch = self.any_size.merge_size, self.any_size.patch_size
    squares = original(self, batch).reshape(-1, merge, patch, merge, patch)
    return squares.transpose(2, 3).flatten(1)


@replacing
def _counted_by_each(original: Any, self: Any, output: Any, batch: Any) -> Any:
    """Let each of several replicas count the loss of its images once for all of them."""
    loss = original(self, output, batch)
    ranks = self.wrapped.ownership.groups.dp.size()
    return None if loss is None else type(loss)(ranks * loss.weighted, 0.0, 0.0)


@replacing
def _slices_summed(original: Any, hidden: Any, config: Any, tensor_group: Any) -> Any:
    """Add up the gradients of an encoder's ranks, each of which is whole."""
    from mimokit.engine.megatron import tensor_parallel

    return tensor_parallel.gather_from_sequence_parallel_region(hidden, group=tensor_group)


@replacing
def _half_of_the_rows(original: Any, whole: Any, sizes: Any, group: Any) -> None:
    """Lose the gradient of half of the rows on the way."""
    original(whole, sizes, group)
    whole[len(whole) // 2 :] = 0


NOT_REDUCED = named("gradients are not reduced")
KEPT_AND_LOST = Plant(seams.ROWS_KEPT, _zeros_to_itself)
DOUBLED_BETWEEN_STAGES = Plant(seams.SEND, partial(_sent_by_factor, 2.0))
GRIDS_TURNED = Plant(seams.TAKE, _grids_turned)
ACROSS_SAMPLES = Plant(seams.SPANS_OF_RANK, _one_sample)
LONGER_WINDOWS = Plant(seams.ATTENTION, _one_token_more)
OTHER_MASKS_AGAIN = Plant(seams.SET_RANDOM_STATES, _forgets)
FIRST_POSITIONS_DROPPED = Plant(seams.SPANS_OF_RANK, _first_positions)
NOTHING_FROM_DECODERS = Plant(seams.SEND, _nothing_from_behind)
TARGETS_SWAPPED = Plant(seams.RECONSTRUCTION_TARGETS, _swapped)
FRAMES_OF_ANOTHER_TOKEN = Plant(seams.RECONSTRUCTION_TARGETS, _shifted)
NOT_ROLLED = Plant(seams.ONE_FURTHER, lambda original: lambda values: values)
KEY_OF_ONE_RANK = Plant(seams.SHARE_KEY, lambda original: lambda self, layer, given, output: output)
TIED_APART = Plant(seams.SYNC_TIED_EMBEDDINGS, _nothing)
PADDING_COUNTS = Plant(
    seams.WITHOUT_PADDING, lambda original: lambda self, layer, given, output: output
)
BIASES_OF_A_REPLICA = Plant(seams.ROUTING, _of_tensor_group)
LOSS_OF_OWN_TOKENS = Plant(seams.ROUTING, _of_tensor_group)
ROOM_OF_ALL_SAMPLES = Plant(seams.HAVE_ROOM, _of_all_samples)
BIASES_AS_SLICES = Plant(seams.BUILD_EXPERTS, _as_slices)
OTHER_EXPERTS = Plant(seams.TOP_K, other_choice)
NORM_OF_WHOLE_BUFFERS = named("a norm of gradients that are not reduced")
NOT_FROZEN = Plant(seams.FREEZE, _nothing)
NO_SLICES_SUMMED = named("gradients of slices are not summed")
SAMPLES_OF_THE_RANK = Plant(seams.NUMBER_SAMPLES, _samples_of_the_rank)
IMAGES_OF_THE_RANK = Plant(
    seams.IMAGES_ENCODED, lambda original: lambda context: [(0, 0)] * len(original(context))
)
NOT_ROUNDED = Plant(seams.ROUND_MAIN_WEIGHTS, _nothing)
HALF_OF_THE_ROWS = Plant(seams.GATHER_ROWS, _half_of_the_rows)
ROWS_AS_ONE_SAMPLE = Plant(
    seams.LENGTHS_OF_STAGE,
    lambda original: (
        lambda module, rows, lengths, row: original(
            module, rows, lengths, row and type(row)((sum(row.lengths),))
        )
    ),
)
PATCHES_SIDE_BY_SIDE = Plant(seams.RECONSTRUCTION_TARGETS, _side_by_side)
LOSS_COUNTED_BY_EACH = Plant(seams.FURTHER_LOSS, _counted_by_each)
SLICES_SUMMED = Plant(seams.ALL_SLICES, _slices_summed)
PADDING_CHOOSES_EXPERTS = Plant(seams.ROUTING, _padding_counts)
NEVER_UPDATED = named("no update")


@replacing
def _shared(original: Any, self: Any, mix: float = 0.0) -> None:
    """Let the weights that train be the outer weights, not a copy of them."""
    for outer, inner in zip(self.outer, self.inner, strict=True):
        inner.data = outer.data


@replacing
def _rates_of_the_run(original: Any, config: Any, plan: Any, *others: Any) -> Any:
    """Step all modules by the rates of the run."""
    executions = {
        name: replace(execution, learning_rate=None, weight_decay=None)
        for name, execution in plan.executions.items()
    }
    return original(config, replace(plan, executions=executions), *others)


@replacing
def _rates_exchanged(original: Any, config: Any, plan: Any, *others: Any) -> Any:
    """Step each of two modules by the rates of the other."""
    names = list(plan.executions)
    executions = {
        name: replace(
            plan.executions[name],
            learning_rate=plan.executions[other].learning_rate,
            weight_decay=plan.executions[other].weight_decay,
        )
        for name, other in zip(names, reversed(names), strict=True)
    }
    return original(config, replace(plan, executions=executions), *others)


OUTER_WEIGHTS_SHARED = Plant(seams.OUTER_WEIGHTS, _shared)
EXCHANGED_LATE = Plant(
    seams.EXCHANGE_NUMBER, lambda original: lambda self, step: original(self, step - 1)
)
MASKS_OF_THE_NEXT_STEP = Plant(
    seams.MASK_INDICES,
    lambda original: (
        lambda self, tensor, entries, number: original(self, tensor, entries, number + 1)
    ),
)
LAST_BUCKET_LEFT = Plant(
    seams.GRADIENTS, lambda original: lambda self: iter(list(original(self))[:-1])
)
RATES_OF_THE_RUN = Plant(seams.UPDATE_OF_RUN, _rates_of_the_run)
RATES_EXCHANGED = Plant(seams.UPDATE_OF_RUN, _rates_exchanged)
OTHER_CONTEXT = named("attention over contexts of a wrong scale")


@replacing
def _no_biases(original: Any, self: Any, *args: Any, **options: Any) -> Any:
    """Leave the biases of queries and values out."""
    output, later = original(self, *args, **options)
    return output - output.detach().mean(), later


NO_BIASES = Plant(seams.KEY_BIAS, _no_biases)
