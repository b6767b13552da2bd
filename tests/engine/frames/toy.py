"""A small encoder in plain torch, and what it computes with and without dispatch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from mimokit.planning.frames import FrameSettings

MERGE, FEATURES, WIDTH = 2, 5, 6
Rows = Sequence[tuple[int, int, int]]


class ToyEncoder(torch.nn.Module):
    """Attention among the patches of each frame; hidden states, tokens and features of two depths.

    `rows_too_many` are added to its tokens, as a wrong encoder would.
    """

    def __init__(self, rows_too_many: int = 0) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(FEATURES, WIDTH)
        self.merge = torch.nn.Linear(WIDTH * MERGE**2, WIDTH - 1)
        self.deep = torch.nn.Linear(WIDTH * MERGE**2, 2)
        self.rows_too_many = rows_too_many
        self.double()
        generator = torch.Generator().manual_seed(5)
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, generator=generator)

    def forward(self, patches: torch.Tensor, grid: torch.Tensor) -> list[torch.Tensor]:
        hidden = self.embed(patches)
        sizes = [size for t, h, w in grid.tolist() for size in [h * w] * t]
        frames = [
            torch.softmax(frame @ frame.T, dim=-1) @ frame for frame in torch.split(hidden, sizes)
        ]
        hidden = torch.cat([hidden[:0], *frames])
        squares = hidden.reshape(-1, WIDTH * MERGE**2)
        tokens = self.merge(squares)
        tokens = torch.cat([tokens, tokens.new_zeros(self.rows_too_many, WIDTH - 1)])
        return [hidden, tokens, self.deep(squares)[:, None]]


SCALES = (1, MERGE**2, MERGE**2)


@dataclass(frozen=True)
class Case:
    """A batch on a group of ranks.

    Attributes:
        rows: of the grid of each rank of the group.
        ranks: of the world; by default the first ones.
        settings: of the dispatch.
        pixels: the ranks of the group whose patches require a gradient.
        frozen: the encoder is.
    """

    rows: Sequence[Rows]
    ranks: Sequence[int] = ()
    settings: FrameSettings = field(default_factory=lambda: FrameSettings(MERGE))
    pixels: Sequence[int] = ()
    frozen: bool = False

    def members(self) -> Sequence[int]:
        return self.ranks or range(len(self.rows))


def batch_of(case: Case, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the patches and the grid that a rank of the group holds."""
    grid = torch.tensor(case.rows[rank], dtype=torch.int64).reshape(-1, 3)
    generator = torch.Generator().manual_seed(100 + rank)
    patches = torch.randn(
        int(grid.prod(1).sum()), FEATURES, generator=generator, dtype=torch.float64
    )
    return patches.requires_grad_(rank in case.pixels), grid


def computed(case: Case, group: Any, dispatched: bool) -> dict[str, Any]:
    """Return outputs, gradients of weights summed over the group and of patches; collective."""
    from mimokit.engine.frames import input_dispatch, output_dispatch

    rank = group.rank()
    encoder = ToyEncoder().requires_grad_(not case.frozen)
    patches, grid = batch_of(case, rank)
    if dispatched:
        (given, sizes), context = input_dispatch(
            patches, grid, group=group, settings=case.settings, trained=not case.frozen
        )
        outputs = output_dispatch(context, encoder(given, sizes), SCALES)
        encoded = len(given)
    else:
        outputs, encoded = encoder(patches, grid), len(patches)
    loss = sum(((output * _weights(rank, output)) ** 2).sum() for output in outputs)
    if loss.requires_grad:
        loss.backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in encoder.parameters()]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=group)
    return {
        "outputs": [output.detach() for output in outputs],
        "weights": flat,
        "patches": patches.grad,
        "encoded": encoded,
        "differentiable": outputs[0].requires_grad,
    }


def _weights(rank: int, output: torch.Tensor) -> torch.Tensor:
    """Return what a rank makes of the outputs: another part on each."""
    generator = torch.Generator().manual_seed(900 + rank)
    return torch.rand(output.shape, generator=generator, dtype=torch.float64)


def differences(cases: Sequence[Case]) -> list[dict[str, Any] | None]:
    """Return how far dispatch changes what is computed, for each case; runs on every rank."""
    found: list[dict[str, Any] | None] = []
    for case in cases:
        group = dist.new_group(list(case.members()))
        if dist.get_rank() not in case.members():
            found.append(None)
            continue
        plain, moved = (computed(case, group, dispatched) for dispatched in (False, True))
        scale = float(plain["weights"].abs().max()) or 1.0
        pixels = plain["patches"], moved["patches"]
        found.append(
            {
                "outputs": max(
                    _distance(a, b) for a, b in zip(plain["outputs"], moved["outputs"], strict=True)
                ),
                "weights": _distance(plain["weights"], moved["weights"]) / scale,
                "patches": 0.0 if pixels[0] is None else _distance(*pixels) / scale,
                "size": float(plain["weights"].abs().max()),
                "encoded": (plain["encoded"], moved["encoded"]),
                "differentiable": (plain["differentiable"], moved["differentiable"]),
            }
        )
        dist.destroy_process_group(group)
    return found


@dataclass(frozen=True)
class Wrong:
    """What one rank of four does wrong."""

    rank: int = 0
    settings: FrameSettings | None = None
    width: int = 0
    dtype: torch.dtype | None = None
    patches_left_out: int = 0
    grid: Sequence[Sequence[float]] | None = None
    no_grad: bool = False
    rows_too_many: int = 0


def errors(cases: Sequence[Wrong]) -> list[str]:
    """Return what a rank raises in each case, while all others do as they should."""
    from mimokit.engine.frames import FrameDispatchError, input_dispatch, output_dispatch

    group = dist.group.WORLD
    assert group is not None
    found = []
    for wrong in cases:
        own = wrong if wrong.rank == dist.get_rank() else Wrong()
        rows = own.grid or ([[1, 4, 4], [1, 2, 2]] if dist.get_rank() == 1 else [[1, 2, 2]])
        grid = torch.tensor(rows)
        patches = torch.zeros(
            int(grid.prod(1).sum()) - own.patches_left_out,
            FEATURES + own.width,
            dtype=own.dtype or torch.float64,
        )
        try:
            with torch.set_grad_enabled(not own.no_grad):
                (given, sizes), context = input_dispatch(
                    patches, grid, group=group, settings=own.settings or FrameSettings(MERGE)
                )
                outputs = ToyEncoder(own.rows_too_many)(given, sizes)
                output_dispatch(context, outputs, SCALES)
        except FrameDispatchError as error:
            found.append(str(error))
        else:
            found.append("")
    return found


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    assert one.shape == other.shape, f"{one.shape} against {other.shape}"
    return float((one - other).abs().max()) if one.numel() else 0.0
