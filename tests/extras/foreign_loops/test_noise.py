"""Recordings of loops whose gradients differ by rounding noise, which is constructed here."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file, save_file

import mimokit
from mimokit.extras.foreign_loops.comparison import RecordingComparison
from tests.extras.foreign_loops.loops import without_digests

WIDTH, ROWS, RATE = 16, 24, 1e-2
ADAM = {"lr": RATE, "eps": 1e-15}
"""Adam that divides whatever is left of a gradient by its size."""

SGD = {"lr": 0.1, "momentum": 0.9}
BLIND = 3
"""An entry of every sample that is 0, so that no weight of its column has a gradient."""


class _Shift(torch.nn.Module):
    """Adds a bias, as often as a number says."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(torch.linspace(-1, 1, WIDTH))
        self.times = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return given + self.times * self.bias


class _Network(torch.nn.Module):
    """Two layers, and a shift that changes no loss, as a bias of keys does not."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(WIDTH, ROWS)
        self.down = torch.nn.Linear(ROWS, WIDTH)
        self.shift = _Shift()

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        shifted: torch.Tensor = self.shift(self.down(torch.tanh(self.up(given))))
        return shifted - shifted.mean(0)


@dataclass(frozen=True)
class _Loop:
    """How a loop trains, and what is wrong with it.

    Attributes:
        noise: the seed of what each gradient is changed by: of the size of a rounding of its
            largest entry, and of a few entries of which nothing is left but it.
        start: changes the weights before the first step.
        gradients: changes the gradients of a step.
        after: changes the weights after a step, given what they were.
    """

    noise: int
    settings: dict[str, Any] = field(default_factory=lambda: ADAM)
    start: Callable[[_Network], None] = lambda model: None
    gradients: Callable[[_Network], None] = lambda model: None
    after: Callable[[_Network, dict[str, torch.Tensor]], None] = lambda model, before: None
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad


@torch.no_grad()
def _add_noise(model: _Network, draws: torch.Generator) -> None:
    largest = max(float(_gradient(p).abs().max()) for p in model.parameters())
    for name, parameter in model.named_parameters():
        own = 1e-7 * float(_gradient(parameter).abs().max())
        if name.startswith("shift") or name == "down.bias":
            parameter.grad, own = torch.zeros_like(parameter), 1e-9 * largest
        _gradient(parameter).add_(own * torch.randn(parameter.shape, generator=draws))
    _gradient(model.up.weight)[:, BLIND] = 1e-10 * largest * torch.randn(ROWS, generator=draws)


def _record(folder: Path, loop: _Loop) -> Path:
    torch.manual_seed(1)
    model, draws = _Network(), torch.Generator().manual_seed(loop.noise)
    with torch.no_grad():
        loop.start(model)
    given, wanted = torch.randn(2, 2, 8, WIDTH)
    given[..., BLIND] = 0
    optimizer = loop.optimizer(model.parameters(), **loop.settings)
    before: dict[str, torch.Tensor] = {}

    def change(*_: Any) -> None:
        with torch.no_grad():
            loop.after(model, before)

    optimizer.register_step_post_hook(change)  # before that of the recording
    with mimokit.watch(model, folder, optimizer=optimizer, steps=2):
        for batch, right in zip(given, wanted, strict=True):
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            optimizer.zero_grad()
            (model(batch) - right).square().mean().backward()
            _add_noise(model, draws)
            with torch.no_grad():
                loop.gradients(model)
            optimizer.step()
    return folder


def _compared(folder: Path, other: _Loop, one: _Loop = _Loop(1)) -> RecordingComparison:
    return mimokit.compare(_record(folder / "one", one), _record(folder / "other", other))


@pytest.mark.parametrize("seed", range(2, 7))
def test_a_weight_whose_gradient_is_noise_raises_no_alarm(tmp_path: Path, seed: int) -> None:
    found = _compared(tmp_path, _Loop(seed))
    assert found.passed, found.verdict
    weights = {one.key[3]: one.explained for one in found.compared if one.key[2] == "weight"}
    assert weights["shift.bias"] > RATE / 2, "most entries moved the other way"
    assert weights["up.weight"] > 1e-4, "a column did"
    assert weights["down.weight"] == 0, "nothing to explain"
    assert "Entries of " in found.verdict
    shifted = (1, 0, "forward", "shift")
    later = next(one for one in found.compared if one.key == shifted)
    assert later.difference > 1e-5, "its weight is another one since the first step"


def test_a_recording_says_nothing_of_noise_where_there_is_none(tmp_path: Path) -> None:
    found = _compared(tmp_path, _Loop(1))
    assert found.passed
    assert "noise" not in found.verdict


def _skip(name: str, rows: slice = slice(None)) -> Callable[..., None]:
    def restore(model: _Network, before: dict[str, torch.Tensor]) -> None:
        model.get_parameter(name)[rows] = before[name][rows]

    return restore


def _wrong_start(model: _Network) -> None:
    model.up.weight[ROWS // 2 :] *= 1.001


def _one_of_the_wrong_sign(model: _Network) -> None:
    """Turn a gradient that is too small for a difference of its tensor, and larger than noise."""
    gradient = _gradient(model.down.weight)
    gradient[2, 2] = -8e-5 * gradient.square().mean().sqrt()


def _one_of_the_right_sign(model: _Network) -> None:
    _one_of_the_wrong_sign(model)
    _gradient(model.down.weight)[2, 2] *= -1


FAULTS = {
    "learning rate": (_Loop(2, {**ADAM, "lr": 1.001 * RATE}), "Step 1", "the weight up.weight"),
    "weight decay": (_Loop(2, {**ADAM, "weight_decay": 0.0}), "Step 1", "the weight up.weight"),
    "first beta": (_Loop(2, {**ADAM, "betas": (0.89, 0.999)}), "Step 2", "the weight up.weight"),
    "second beta": (_Loop(2, {**ADAM, "betas": (0.9, 0.99)}), "Step 2", "the weight up.weight"),
    "epsilon": (_Loop(2, {**ADAM, "eps": 1e-5}), "Step 1", "the weight"),
    "a parameter is not updated": (
        _Loop(2, after=_skip("up.bias")), "Step 1", "the weight up.bias",
    ),
    "rows are not updated": (
        _Loop(2, after=_skip("up.weight", slice(ROWS // 2, None))),
        "Step 1", "the weight up.weight",
    ),
    "first weights": (
        _Loop(2, start=_wrong_start), "Step 1", "before the first step the weight up.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_update_is_named_in_spite_of_noise(tmp_path: Path, fault: str) -> None:
    loop, step, named = FAULTS[fault]
    found = _compared(tmp_path, loop)
    assert found.verdict.startswith(step), found.verdict
    assert f" is {named}" in found.verdict


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_the_rate_of_an_optimizer_that_does_not_divide_is_judged(
    tmp_path: Path, decay: float
) -> None:
    right, wrong = ({**SGD, "weight_decay": decay, "lr": rate} for rate in (0.1, 0.1001))
    one = _Loop(1, right, optimizer=torch.optim.SGD)
    found = _compared(tmp_path, replace(one, noise=2), one)
    assert found.passed, found.verdict
    assert (
        "is the weight" in _compared(tmp_path, replace(one, noise=2, settings=wrong), one).verdict
    )


def test_what_is_more_than_noise_of_a_gradient_excuses_nothing(tmp_path: Path) -> None:
    right, wrong = _one_of_the_right_sign, _one_of_the_wrong_sign
    found = _compared(tmp_path, _Loop(2, gradients=wrong), _Loop(1, gradients=right))
    assert found.first is not None
    assert found.first.key == (0, 0, "weight", "down.weight"), "its gradient hardly differs"


def test_a_shard_that_is_not_updated_names_its_rank(tmp_path: Path) -> None:
    one, other = (_record(tmp_path / str(seed), _Loop(seed)) for seed in (1, 2))
    _halve(other, "up.weight", tmp_path / "right", stale=None)
    _halve(other, "up.weight", tmp_path / "wrong", stale=1)
    right = mimokit.compare(one, tmp_path / "right", cuts={"up.weight": 0})
    assert right.passed, right.verdict
    wrong = mimokit.compare(one, tmp_path / "wrong", cuts={"up.weight": 0})
    assert "is the weight up.weight on rank 1, by " in wrong.verdict


def _halve(recording: Path, name: str, folder: Path, stale: int | None) -> None:
    """Write what two ranks leave that cut a parameter; one may never update its half."""
    about = without_digests(recording / "rank-0.json")
    whole = load_file(recording / "rank-0.safetensors")
    first = next(
        seam["tensor"] for seam in about["seams"]
        if (seam["phase"], seam["operation"]) == ("weight before", name)
    )  # fmt: skip
    folder.mkdir()
    for rank in range(2):
        tensors = dict(whole)
        for seam in about["seams"]:
            if seam["operation"] == name:
                taken = first if rank == stale and seam["phase"] == "weight" else seam["tensor"]
                tensors[seam["tensor"]] = whole[taken][rank * ROWS // 2 :][: ROWS // 2].copy()
        save_file(tensors, folder / f"rank-{rank}.safetensors", {"recording": about["recording"]})
        (folder / f"rank-{rank}.json").write_text(json.dumps({**about, "world_size": 2}))
