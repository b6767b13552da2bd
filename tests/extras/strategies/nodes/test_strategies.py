"""What strategies take and build, on one node."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from mimokit.config import ConfigError
from mimokit.config.strategy import TAKES
from mimokit.engine.strategies import (
    CommunicateOptimizeStrategy,
    CommunicationModule,
    DeMoStrategy,
    DiLoCoStrategy,
    FedAvgStrategy,
    IndexSelector,
    NoLoCoStrategy,
    OptimSpec,
    PartitionedIndexSelector,
    RandomIndexSelector,
    ShuffledSequentialIndexSelector,
    SimpleReduceStrategy,
    SparseLoCoStrategy,
    SPARTADiLoCoStrategy,
    SPARTAStrategy,
    Strategy,
    StreamingDiLoCoStrategy,
    all_reduce,
    ensure_optim_spec,
)
from mimokit.extras.strategies.nodes.codecs import decode, encode, pack, unpack
from mimokit.extras.strategies.nodes.diloco import OuterWeights
from tests.extras.strategies.nodes.nodes import MyStrategy, batch, net
from tests.rows import rows

ALL = (
    SimpleReduceStrategy,
    FedAvgStrategy,
    SPARTAStrategy,
    DiLoCoStrategy,
    SPARTADiLoCoStrategy,
    DeMoStrategy,
    StreamingDiLoCoStrategy,
    NoLoCoStrategy,
    SparseLoCoStrategy,
)


class MyComm(CommunicationModule):
    """As the source document teaches it; keeps the steps that it was called with."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        pass

    def communicate(self, model: nn.Module, rank: int, num_nodes: int, local_step: int) -> None:
        self.steps.append(local_step)
        if local_step % 2 == 0 and local_step > 0:
            for p in model.parameters():
                all_reduce(p.data)
                p.data.div_(num_nodes)


class MyComposableStrategy(CommunicateOptimizeStrategy):
    """As the source document teaches it."""

    def __init__(self, optim_spec: Any = None, **kwargs: Any):
        super().__init__(
            communication_modules=[MyComm()],
            optim_spec=ensure_optim_spec(optim_spec, OptimSpec(torch.optim.AdamW)),
            **kwargs,
        )


def trained(strategy: Strategy, steps: int = 5) -> list[float]:
    model = net()
    strategy._init_node(model, 0, 1)
    losses = []
    for _ in range(steps):
        strategy.zero_grad()
        loss = model(batch(0, 0))
        loss.backward()
        strategy.step()
        losses.append(loss.item())
    return losses


@rows("kind", MyStrategy, MyComposableStrategy, *ALL)
def test_every_strategy_trains_with_a_schedule(kind: type[Strategy]) -> None:
    arguments: dict[str, Any] = {} if kind is DeMoStrategy else {"max_norm": 1.0}
    strategy = kind(
        lr_scheduler="lambda_cosine", lr_scheduler_kwargs={"warmup_steps": 2}, **arguments
    )
    losses = trained(strategy)
    assert losses[-1] < losses[0]
    assert losses[1] == pytest.approx(losses[0])  # the first step has a learning rate of 0
    assert strategy.local_step == 5


def test_modules_get_the_number_of_the_step_from_0() -> None:
    strategy = MyComposableStrategy()
    trained(strategy)
    assert strategy.communication_modules[0].steps == [0, 1, 2, 3, 4]  # type: ignore[attr-defined]


def test_arguments_and_defaults_are_those_of_the_config() -> None:
    for kind in ALL:
        strategy = kind()
        assert strategy.config is not None
        if kind is not NoLoCoStrategy:
            assert strategy.config.model_dump(exclude_none=True) == type(strategy.config)(
                name=strategy.config.name
            ).model_dump(exclude_none=True)
    assert {kind().config.name for kind in ALL} == set(TAKES)  # type: ignore[union-attr]


def test_a_cosine_ends_at_a_tenth() -> None:
    kwargs = {"warmup_steps": 2, "cosine_anneal": True, "max_steps": 8}
    strategy = SimpleReduceStrategy(
        OptimSpec(torch.optim.SGD, lr=1.0), lr_scheduler="lambda_cosine", lr_scheduler_kwargs=kwargs
    )
    strategy.max_steps = 100
    rates = []
    model = net()
    strategy._init_node(model, 0, 1)
    for _ in range(9):
        rates.append(strategy.lr)
        strategy.step()
    cosine = [0.9 * 0.5 * (1 + math.cos(math.pi * s / 6)) + 0.1 for s in range(7)]
    assert rates == pytest.approx([0, 0.5, *cosine])


def test_a_scheduler_of_torch() -> None:
    strategy = FedAvgStrategy(
        OptimSpec(torch.optim.SGD, lr=1.0),
        lr_scheduler=torch.optim.lr_scheduler.StepLR,
        lr_scheduler_kwargs={"step_size": 1, "gamma": 0.5},
    )
    trained(strategy, 2)
    assert strategy.lr == 0.25


@rows(
    "make, sentence",
    (lambda: FedAvgStrategy(inner_optim=1), "FedAvgStrategy: unknown argument inner_optim; did"),
    (lambda: FedAvgStrategy(inner_optim=1), "did you mean optim_spec?"),
    (lambda: DiLoCoStrategy(inner_optim=1), "did you mean optim_spec?"),
    (lambda: DiLoCoStrategy(outer_optim=1), "did you mean outer_optim_spec?"),
    (lambda: SPARTAStrategy(p=0.1), "did you mean p_sparta?"),
    (lambda: StreamingDiLoCoStrategy(fragment=3), "did you mean fragments?"),
    (lambda: MyStrategy(max_nrm=1), "MyStrategy: unknown argument max_nrm; did you mean max_"),
    (lambda: DeMoStrategy(max_norm=1.0), "DeMoStrategy: unknown argument max_norm"),
)
def test_unknown_arguments_are_rejected(make: Any, sentence: str) -> None:
    with pytest.raises(TypeError) as caught:
        make()
    assert sentence in str(caught.value)
    assert isinstance(caught.value, ConfigError)


@rows(
    "make, sentence",
    (lambda: DiLoCoStrategy(H=0), "H is 0; it must be at least 1"),
    (lambda: SPARTAStrategy(p_sparta=0.0), "p_sparta is 0.0; it must be greater than 0"),
    (lambda: SPARTAStrategy(index_selector="radom"), "index_selector is the text 'radom'"),
    (lambda: DeMoStrategy(compression_topk=0), "compression_topk is 0"),
    (lambda: OptimSpec.from_string("adamv"), "Optimizer 'adamv': it does not exist"),
    (
        lambda: trained(SimpleReduceStrategy(lr_scheduler="cosine")),
        "lr_scheduler: cosine is not known; write lambda_cosine",
    ),
    (
        lambda: trained(NoLoCoStrategy(group_size=3)),
        "strategy.group_size is 3, but the number of nodes",
    ),
)
def test_wrong_values_are_rejected(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert sentence in str(caught.value)


def test_outer_weights_share_no_memory_with_those_that_train() -> None:
    model = net()
    outer = OuterWeights(list(model.parameters()), OptimSpec(torch.optim.SGD, lr=1.0), None)
    outer.write()
    before = [one.detach().clone() for one in outer.outer]
    for one in model.parameters():
        one.data.add_(1)
    assert all(map(torch.equal, outer.outer, before))


def test_muon_takes_the_matrices_of_layers() -> None:
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9))
    optim = OptimSpec.from_string("muon", lr=0.01).build(model)
    muon, others = optim.param_groups
    assert [tuple(one.shape) for one in muon["params"]] == [(4, 4)]
    assert len(others["params"]) == 4
    before = [one.detach().clone() for one in model.parameters()]
    model(torch.arange(9)).sum().backward()
    optim.step()
    assert not any(map(torch.equal, before, model.parameters()))
    optim.load_state_dict(optim.state_dict())


@rows("kind", RandomIndexSelector, ShuffledSequentialIndexSelector, PartitionedIndexSelector)
def test_selectors_give_masks(kind: Any) -> None:
    param = nn.Parameter(torch.zeros(20, 15))
    masks = [kind(0.25).get_indices(param, number) for number in range(4)]
    assert all(mask.shape == param.shape and mask.dtype == torch.bool for mask in masks)
    if kind is not RandomIndexSelector:
        selector = kind(0.25)
        total = sum(selector.get_indices(param, number).int() for number in range(4))
        assert (total == 1).all()


def test_a_selector_of_a_user() -> None:
    class Mine(IndexSelector):
        def get_indices(self, param: torch.Tensor, iteration: int) -> torch.Tensor:
            return torch.rand_like(param) < self.p

    losses = trained(SPARTAStrategy(index_selector=Mine(0.1)))
    assert losses[-1] < losses[0]


@rows("bits", 2, 3, 4, 5, 8)
def test_codecs_give_back_the_nearest_number(bits: int) -> None:
    torch.manual_seed(bits)
    whole = torch.randint(0, 2**bits, (3, 17), dtype=torch.uint8)
    assert torch.equal(unpack(pack(whole, bits), bits, 17), whole)
    rows = torch.randn(3, 17)
    rows[1] = 0
    back = decode(encode(rows, bits), bits, 17)
    step = rows.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert ((rows - back).abs() <= step / 2 + 1e-6).all()


def test_of_the_weights_that_train_the_share_mix_stays() -> None:
    inner = torch.nn.Parameter(torch.ones(2))
    outer = OuterWeights([inner], OptimSpec(torch.optim.SGD, lr=1.0))
    found = []
    for mix in (0.25, 0.0):
        torch.nn.init.constant_(inner, 5.0)
        outer.write(mix)
        found.append(inner.tolist())
    assert found == [[2.0, 2.0], [1.0, 1.0]]
