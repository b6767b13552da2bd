"""Products in 8 bits against numbers that are rounded one by one, and scales that ranks share."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from mimokit.engine.megatron import (
    ColumnParallelLinear,
    TransformerLayer,
    WeightProducts,
    fp8_linear,
)
from mimokit.engine.megatron.fp8 import E4M3, E5M2, Scaled, product, rounded, scales
from mimokit.engine.megatron.fp8_linear import _multiply, multiply_in_fp8
from tests import seams
from tests.planted import planted
from tests.rows import rows

TOKENS, INPUTS, OUTPUTS = 12, 16, 24


class _Alone:
    """The group of one process."""

    def size(self) -> int:
        """One."""
        return 1


def _drawn() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an input, a weight and a gradient of the output, of very different magnitudes."""
    random = torch.Generator().manual_seed(0)
    shapes = (TOKENS, 1, INPUTS), (OUTPUTS, INPUTS), (TOKENS, 1, OUTPUTS)
    drawn = [torch.randn(shape, generator=random) for shape in shapes]
    return drawn[0].bfloat16(), (drawn[1] / 50).bfloat16(), (drawn[2] * 1e-6).bfloat16()


def _one_by_one(tensor: torch.Tensor, kind: torch.dtype) -> np.ndarray:
    """Return a matrix rounded to the nearest of all numbers of a format, ties to even ones."""
    codes = torch.arange(128, dtype=torch.uint8)
    values = codes.view(kind).double().numpy()
    values = values[np.isfinite(values)]
    numbers = tensor.flatten(0, -2).float()
    scale = np.float32(values[-1]) / np.float32(numbers.abs().max())
    scaled = np.abs(numbers.numpy() * scale).astype(np.float64)
    distances = np.abs(scaled[..., None] - values)
    nearest = distances.argmin(axis=-1)  # of two the lower
    is_tie = (distances == distances.min(axis=-1, keepdims=True)).sum(axis=-1) == 2
    nearest += is_tie & (nearest % 2 == 1)
    return np.sign(numbers.numpy()) * values[nearest] / np.float64(scale)


def _passes(given: torch.Tensor, weight: torch.Tensor, gradient: torch.Tensor) -> list[Any]:
    given, weight = given.clone().requires_grad_(), weight.clone().requires_grad_()
    output = _multiply(_Alone(), given, weight)
    output.backward(gradient)
    return [output.detach(), given.grad, weight.grad]


@rows("kind", E4M3, E5M2)
def test_numbers_of_8_bits_are_the_nearest(kind: torch.dtype) -> None:
    for tensor in _drawn():
        (scale,) = scales([tensor], [kind], _Alone())
        found = rounded(tensor, scale, kind)
        values = found.numbers.double() * found.unit.double()
        np.testing.assert_allclose(values.numpy(), _one_by_one(tensor, kind), rtol=1e-6)


def _differences() -> list[float]:
    """Return how much output and gradients of a layer differ from products of rounded matrices."""
    given, weight, gradient = _drawn()
    x, w = (_one_by_one(one, E4M3) for one in (given, weight))
    dy = _one_by_one(gradient, E5M2)
    products = x @ w.T, dy @ w, dy.T @ x
    pairs = zip(_passes(given, weight, gradient), products, strict=True)
    return [
        float(abs(found.flatten(0, -2).double().numpy() - right).max() / abs(right).max())
        for found, right in pairs
    ]


def test_layer_multiplies_rounded_matrices_forward_and_backward(monkeypatch) -> None:
    assert max(_differences()) <= 2**-8, "the rounding of a result to bf16"

    def in_e5m2(tensor: torch.Tensor, scale: torch.Tensor, kind: torch.dtype) -> Scaled:
        return rounded(tensor, scale, E5M2)

    monkeypatch.setattr(fp8_linear, "rounded", in_e5m2)
    assert min(_differences()) > 2**-6, "with a planted format of fewer bits"


@rows("number", 0.0, float("inf"), float("nan"))
def test_zeros_stay_zeros_and_what_is_no_number_does_not_become_one(number: float) -> None:
    tensor = torch.full((2, 4), number, dtype=torch.bfloat16)
    (scale,) = scales([tensor], [E4M3], _Alone())
    values = rounded(tensor, scale, E4M3)
    total = product(values, values, torch.float32)
    assert (total == 0).all() if number == 0 else total.isnan().all()
    assert scales([tensor[:0]], [E4M3], _Alone())[0] == 1, "an expert without tokens"


def test_gradients_of_weights_put_off_are_those_of_the_backward_pass() -> None:
    given, weight, gradient = _drawn()
    _, of_input, of_weight = _passes(given, weight, gradient)
    given, later = given.clone().requires_grad_(), torch.nn.Parameter(weight)
    later.main_grad = torch.zeros_like(weight, dtype=torch.float32)
    products = WeightProducts()
    with products.put_off():
        output = _multiply(_Alone(), given, later)
        output.backward(gradient)
    assert torch.equal(given.grad, of_input)
    assert later.grad is None
    assert not later.main_grad.any()
    products.add()
    assert torch.equal(later.main_grad, of_weight.float())


def _bare(kind: type[torch.nn.Module]) -> Any:
    part = kind.__new__(kind)
    torch.nn.Module.__init__(part)
    return part


def test_what_is_no_layer_of_megatron_stays_in_bf16() -> None:
    layer, logits = _bare(TransformerLayer), _bare(ColumnParallelLinear)
    layer.up, layer.own = _bare(ColumnParallelLinear), torch.nn.Linear(2, 2)
    model = torch.nn.ModuleDict({"layer": layer, "logits": logits})
    multiply_in_fp8(model, SimpleNamespace(tp_cp=_Alone()))
    assert "_forward_impl" in vars(layer.up)
    assert all("_forward_impl" not in vars(part) for part in (layer.own, logits))


def _shares() -> dict[str, Any]:
    """Multiply as one of two ranks that cut outputs, of two replicas that cut the sequence."""
    rank = dist.get_rank()
    given, weight, gradient = _drawn()
    tensor_groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = tensor_groups[rank // 2]
    given = given.chunk(4)[rank].clone().requires_grad_()
    weight = weight.chunk(2)[rank % 2].clone().requires_grad_()
    gradient = gradient.chunk(2)[rank // 2].chunk(2, dim=-1)[rank % 2]
    world = dist.group.WORLD
    output = _multiply(world, given, weight, sequence_parallel=True, tp_group=group)
    _, _, unit = output.grad_fn.saved_tensors
    output.backward(gradient)
    return {
        "scales": (float(unit), float(output.grad_fn.weight_scale)),
        "output": output.detach().float().numpy(),
        "input": given.grad.float().numpy(),
        "weight": weight.grad.float().numpy(),
    }


def _put_together(ranks: list[dict[str, Any]]) -> list[np.ndarray]:
    """Return the output and the gradients of one process from those of four ranks."""
    outputs = [np.concatenate([ranks[n]["output"] for n in pair], -1) for pair in ((0, 1), (2, 3))]
    of_weight = [ranks[n]["weight"] + ranks[n + 2]["weight"] for n in (0, 1)]
    of_input = [one["input"] for one in ranks]
    return [np.concatenate(parts) for parts in (outputs, of_input, of_weight)]


def _own_scales(original: Any) -> Any:
    """Plant: every rank looks at its own numbers."""
    return lambda tensors, formats, group: original(tensors, formats, _Alone())


def test_ranks_that_share_matrices_have_the_scales_of_one_process(cluster) -> None:
    given, weight, gradient = _drawn()
    units = [float(scale) for scale in scales((given, weight), (E4M3, E4M3), _Alone())]
    right = float(np.float32(1) / np.float32(units[0])), units[1]
    ranks = cluster.run(_shares, world_size=4)
    assert [one["scales"] for one in ranks] == [right] * 4
    for found, whole in zip(_put_together(ranks), _passes(given, weight, gradient), strict=True):
        most = float(whole.abs().max())
        np.testing.assert_allclose(found, whole.float().numpy(), rtol=2**-7, atol=2**-7 * most)
    with planted(cluster, seams.FP8_SCALES, _own_scales, 4):
        wrong = cluster.run(_shares, world_size=4)
    assert [one["scales"] for one in wrong] != [right] * 4
