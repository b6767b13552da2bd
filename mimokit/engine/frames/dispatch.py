"""Redistributes the frames of a batch over a group before an encoder, and its outputs after it.

Every rank of the group calls both functions for every batch, also a rank without frames. Every rank
runs backward through what `output_dispatch` returns, or none: a rank whose loss does not depend on
an image adds `outputs[0].sum() * 0` to it.
"""

import functools
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from mimokit.engine.frames.messages import Rows, exchange_rows, gather_integers
from mimokit.planning.frames import FrameRoutes, FrameSettings, route_frames
from mimokit.units import counted, listed

logger = logging.getLogger(__name__)

ROWS_AHEAD = 256
"""Rows of a grid that travel with the rest of the metadata. A rank with more costs a second
gathering."""


class FrameDispatchError(RuntimeError):
    """Frames cannot be dispatched; raised on every rank of the group."""


@dataclass(frozen=True)
class FrameContext:
    """What `output_dispatch` needs to know of `input_dispatch`."""

    routes: FrameRoutes
    rank: int
    group: dist.ProcessGroup
    trained: bool


@dataclass(frozen=True)
class _Header:
    rows: int
    patches: int
    shape: int
    dtype: int
    settings: int
    gradients: int
    trained: int
    input_trained: int
    broken: int


def input_dispatch(
    hidden_states: torch.Tensor,
    grid_thw: torch.Tensor,
    *,
    group: dist.ProcessGroup,
    settings: FrameSettings,
    trained: bool = True,
) -> tuple[tuple[torch.Tensor, torch.Tensor], FrameContext | None]:
    """Send every frame to the rank that is to encode it. Collective.

    Args:
        hidden_states: [patches, …] of the frames that this rank holds, frame by frame.
        grid_thw: [rows, 3], frames, rows and columns of every image or video, in patches.
        group: the ranks that share the work: data parallel, or data and context parallel.
        settings: how to balance; the same on all ranks.
        trained: the encoder has parameters that require a gradient.

    Returns:
        Patches and grid for the encoder, with one row of the grid per frame where the settings
        split time, and the context of `output_dispatch`. In a group of one rank the inputs as they
        are, and None.

    Raises:
        FrameDispatchError: on every rank, if the ranks disagree or a grid cannot be dispatched.
    """
    if group.size() == 1:
        _say_once("Frames are not dispatched: the group has one rank.")
        return (hidden_states, grid_thw), None
    grid, well_formed = _grid_of(grid_thw)
    header = _Header(
        rows=len(grid),
        patches=len(hidden_states),
        shape=_code(tuple(hidden_states.shape[1:])),
        dtype=_code(hidden_states.dtype),
        settings=_code(settings),
        gradients=int(torch.is_grad_enabled()),
        trained=int(trained),
        input_trained=int(hidden_states.requires_grad),
        broken=int(not well_formed),
    )
    headers, grids = _gather(header, grid, group, hidden_states.device)
    _check(headers, grids)
    try:
        routes = route_frames(grids, settings)
    except ValueError as error:
        raise FrameDispatchError(str(error)) from error
    input_trained = any(other.input_trained for other in headers)
    needed = input_trained or any(other.trained for other in headers)
    context = FrameContext(routes, group.rank(), group, needed)
    if routes.all_at_home:
        return (hidden_states, grid_thw), context
    return _send(hidden_states, grid_thw, context, input_trained), context


def _send(
    hidden_states: torch.Tensor, grid_thw: torch.Tensor, context: FrameContext, trained: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    routes, rank = context.routes, context.rank
    sent, encoded = routes.sends(rank), routes.encodes(rank)
    ordered = _take(hidden_states, routes.rows(sent.frames, routes.own(rank)))
    rows = Rows(ordered, sent.splits, encoded.splits)
    (patches,), _ = exchange_rows([rows], context.group, trained)
    return patches, torch.as_tensor(routes.grid[encoded.frames]).to(grid_thw)


def output_dispatch(
    context: FrameContext | None, outputs: Sequence[torch.Tensor], patches_per_row: Sequence[int]
) -> list[torch.Tensor]:
    """Return the outputs of an encoder to the ranks that hold the frames. Collective.

    All outputs of one type travel in one message.

    Args:
        outputs: [rows, …] each, frame by frame, as the encoder returned them.
        patches_per_row: for each output, how many patches one of its rows represents: 1 for hidden
            states of patches, merge_size^2 for tokens.

    Returns:
        The outputs for the frames that this rank holds, in its order.

    Raises:
        FrameDispatchError: if an encoder returned another number of rows than it was given patches
            for: on every rank, or on its own where every frame was at home and nothing travels; or
            `patches_per_row` has no number above 0 for each output.
    """
    _check_scales(len(outputs), patches_per_row)
    if context is None:
        return list(outputs)
    wrong = _wrong_rows(context, outputs, patches_per_row)
    if context.routes.all_at_home and wrong is None:
        return list(outputs)
    if context.routes.all_at_home:
        raise FrameDispatchError(wrong)
    received: dict[int, torch.Tensor] = {}
    for dtype in dict.fromkeys(output.dtype for output in outputs):
        places = [place for place, output in enumerate(outputs) if output.dtype == dtype]
        rows = [_rows_back(context, outputs[n], patches_per_row[n]) for n in places]
        tensors, statuses = exchange_rows(
            rows, context.group, context.trained, status=int(wrong is not None)
        )
        if any(statuses):
            raise FrameDispatchError(wrong or _other_ranks(statuses))
        received.update(zip(places, tensors, strict=True))
    return [_in_own_order(context, received[n], scale) for n, scale in enumerate(patches_per_row)]


def _check_scales(outputs: int, patches_per_row: Sequence[int]) -> None:
    if len(patches_per_row) != outputs or min(patches_per_row, default=1) < 1:
        raise FrameDispatchError(
            f"patches_per_row is {list(patches_per_row)} for {counted(outputs, 'output')}; give "
            "the patches of a row, 1 or more, for each output."
        )


def _wrong_rows(
    context: FrameContext, outputs: Sequence[torch.Tensor], patches_per_row: Sequence[int]
) -> str | None:
    count = sum(context.routes.encodes(context.rank).splits)
    for place, (output, scale) in enumerate(zip(outputs, patches_per_row, strict=True)):
        if len(output) * scale != count:
            return (
                f"On rank {context.rank} of the group, the encoder was given {count} patches, and "
                f"output {place} has {len(output)} rows of {scale} patches each; it must have "
                f"{count / scale:g}."
            )
    return None


def _rows_back(context: FrameContext, output: torch.Tensor, scale: int) -> Rows:
    routes, rank = context.routes, context.rank
    splits = routes.encodes(rank).splits
    expected = sum(splits) // scale
    if len(output) != expected:  # the status informs all ranks, which wait for that many rows
        output = output.new_zeros(expected, *output.shape[1:])
    back, regained = (
        [patches // scale for patches in moved] for moved in (splits, routes.sends(rank).splits)
    )
    return Rows(output, back, regained)


def _in_own_order(context: FrameContext, rows: torch.Tensor, scale: int) -> torch.Tensor:
    routes, rank = context.routes, context.rank
    return _take(rows, routes.rows(routes.own(rank), routes.sends(rank).frames, scale))


def _take(tensor: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    if len(rows) == len(tensor) and bool((np.diff(rows, prepend=-1) == 1).all()):
        return tensor
    return tensor.index_select(0, torch.as_tensor(rows, device=tensor.device))


def _grid_of(grid_thw: torch.Tensor) -> tuple[np.ndarray, bool]:
    if grid_thw.dim() != 2 or grid_thw.shape[1] != 3 or grid_thw.is_floating_point():
        return np.zeros((0, 3), dtype=np.int64), False
    return grid_thw.cpu().numpy().astype(np.int64), True


def _gather(
    header: _Header, grid: np.ndarray, group: dist.ProcessGroup, device: torch.device
) -> tuple[list[_Header], list[np.ndarray]]:
    own, fields = list(vars(header).values()), len(vars(header))
    ahead = _padded(grid if len(grid) <= ROWS_AHEAD else grid[:0], ROWS_AHEAD)
    gathered = gather_integers([*own, *ahead], group, device)
    headers = [_Header(*integers[:fields]) for integers in gathered]
    rows = [integers[fields:] for integers in gathered]
    most = max(other.rows for other in headers)
    if most > ROWS_AHEAD:
        rows = gather_integers(_padded(grid, most), group, device)
    grids = [
        np.array(integers[: 3 * other.rows], dtype=np.int64).reshape(-1, 3)
        for other, integers in zip(headers, rows, strict=True)
    ]
    return headers, grids


def _padded(grid: np.ndarray, rows: int) -> list[int]:
    integers: list[int] = np.pad(grid, ((0, rows - len(grid)), (0, 0))).flatten().tolist()
    return integers


def _check(headers: Sequence[_Header], grids: Sequence[np.ndarray]) -> None:
    """Reject what no rank can go on with; every rank sees the same and raises the same."""
    for field, what in (
        ("settings", "settings of frame parallel"),
        ("shape", "numbers per patch"),
        ("dtype", "types of patches"),
        ("gradients", "ideas of whether gradients are wanted (torch.no_grad)"),
    ):
        values = [getattr(header, field) for header in headers]
        if len(set(values)) > 1:
            other = next(rank for rank, value in enumerate(values) if value != values[0])
            raise FrameDispatchError(
                f"Ranks 0 and {other} of the group have different {what}; give all ranks the same."
            )
    for rank, (header, grid) in enumerate(zip(headers, grids, strict=True)):
        if header.broken:
            raise FrameDispatchError(
                f"On rank {rank} of the group, grid_thw is not [rows, 3] of whole numbers: frames, "
                "rows and columns of every image."
            )
        described = int(grid.prod(axis=1).sum())
        if described != header.patches:
            raise FrameDispatchError(
                f"On rank {rank} of the group, there are {header.patches} patches, but grid_thw "
                f"describes {described}."
            )


def _other_ranks(statuses: Sequence[int]) -> str:
    ranks = [str(rank) for rank, status in enumerate(statuses) if status]
    return (
        f"The encoder of rank {listed(ranks)} of the group returned another number of rows than it "
        "was given patches for; see the error there."
    )


def _code(value: object) -> int:
    return zlib.crc32(repr(value).encode())


@functools.cache
def _say_once(sentence: str) -> None:
    logger.info(sentence)
