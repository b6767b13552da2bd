"""Fits on several engines: strategies, bytes, validation, drift, emulated links, failures."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import nn

from mimokit.cluster import EngineCluster, RankDied
from mimokit.engine.strategies import (
    CommunicateOptimizeStrategy,
    CommunicationModule,
    DiLoCoStrategy,
    FedAvgStrategy,
    OptimSpec,
)
from mimokit.experiment import Trainer
from mimokit.extras.strategies.exchanges import plan_strategy
from mimokit.extras.strategies.fits.job import FitError
from mimokit.extras.strategies.network import Network
from mimokit.extras.strategies.nodes.communicate import all_reduce
from tests.extras.strategies.fits.nets import Linear, equal, net, places, samples, trainer
from tests.extras.strategies.nodes.nodes import MyStrategy

SGD = OptimSpec(torch.optim.SGD, lr=0.05)
FEW: dict[str, Any] = {"batch_size": 4, "minibatch_size": 4, "val_size": 20}


class MyModule(CommunicationModule):
    """The composable kind; calls the strategy's third step, counted from 0, the first one due."""

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        pass

    def communicate(self, model: nn.Module, rank: int, num_nodes: int, local_step: int) -> None:
        if num_nodes > 1 and local_step % 2 == 0 and local_step > 0:
            for one in model.parameters():
                all_reduce(one.data)
                one.data.div_(num_nodes)


class MyComposable(CommunicateOptimizeStrategy):
    def __init__(self, optim_spec: Any = None, **kwargs: Any) -> None:
        super().__init__(communication_modules=[MyModule()], optim_spec=optim_spec, **kwargs)


def by_one_process(steps: int) -> nn.Module:
    """Train on the batches of both nodes at once."""
    model, x_y = net(Linear), samples(40).tensors
    optim = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(steps):
        entries = [2 * (4 * step + place) + node for node in (0, 1) for place in range(4)]
        optim.zero_grad()
        model(tuple(one[entries] for one in x_y)).backward()
        optim.step()
    return model


def test_strategies_of_the_document_train(cluster: EngineCluster, tmp_path: Path) -> None:
    """The gradient's mean is that of one process; the composed module sends when it says."""
    one = trainer(cluster, Linear)
    options = {**FEW, "max_steps": 5, "num_nodes": 2, "shuffle": False, **places(tmp_path)}
    found = one.fit(strategy=MyStrategy(SGD), **options)
    for mine, other in zip(found.parameters(), by_one_process(5).parameters(), strict=True):
        assert torch.allclose(mine, other, atol=1e-6)
    result = one.start(strategy=MyComposable(SGD), **options).result()
    table = result.communication
    sent = table[(table["purpose"] == "strategy") & (table["node"] == 1)]
    assert list(sent["step"]) == [3, 3, 5, 5]
    assert list(sent["payload_bytes"]) == [72, 12, 72, 12]


@pytest.fixture(scope="module")
def islands(tmp_path_factory: pytest.TempPathFactory, shared_cluster: Any) -> Any:
    """FedAvg in islands of two on four nodes, with drift and an emulated network."""
    one = trainer(shared_cluster.get())
    return one.start(
        strategy=FedAvgStrategy(SGD, H=4, island_size=2), num_nodes=4, max_steps=10, val_interval=6,
        correlation_interval=5, network=Network("1 Mbit/s", "100 ms", emulate=True),
        run_name="islands", **FEW, **places(tmp_path_factory.mktemp("islands")),
    ).result()  # fmt: skip


def test_bytes_counted_are_bytes_planned(islands: Any) -> None:
    table = pd.read_csv(islands.directory / "communication.csv")
    columns = ["step", "node", "purpose", "operation", "payload_bytes", "sent_bytes"]
    assert list(table) == columns
    config = FedAvgStrategy(H=4, island_size=2).config
    assert config is not None
    shapes = {name: tuple(one.shape) for name, one in net().named_parameters()}
    planned = pd.DataFrame(plan_strategy(config, shapes, 4).rows(10)).drop(columns="purpose")
    order = ["step", "node"]
    counted = table[table["purpose"] == "strategy"].drop(columns="purpose")
    pd.testing.assert_frame_equal(
        counted.sort_values(order, ignore_index=True),
        planned.sort_values(order, ignore_index=True),
        check_dtype=False,
    )
    start = table[table["purpose"] == "start"]
    assert set(start["step"]) == {0}
    evaluations = table[table["purpose"] == "evaluation"].groupby("step")["node"].apply(set)
    assert dict(evaluations) == {step: {0, 1, 2, 3} for step in (0, 5, 6, 10)}


def test_the_mean_of_nodes_is_validated_and_returned(islands: Any) -> None:
    table = islands.validation
    assert list(table["step"]) == [0, 6, 10]
    assert table["global_loss"][0] == table["local_loss"][0]
    assert table["global_loss"][2] != table["local_loss"][2]
    with torch.no_grad():
        loss = islands.model.eval()(samples(20, 1).tensors).item()
    assert loss == pytest.approx(table["global_loss"][2], abs=1e-5)


def test_drift_grows_between_exchanges(islands: Any) -> None:
    drift = pd.read_csv(islands.directory / "drift.csv")
    assert list(drift["step"]) == [5, 10]
    assert (drift["largest_distance"] > 0).all()
    assert drift["mean_correlation"].between(0.5, 1).all()


def test_exchanges_take_as_long_as_on_the_network(islands: Any) -> None:
    """Two exchanges of two rounds of 100 ms each; what the engines need comes on top."""
    last = islands.train.iloc[-1]
    assert last["predicted_seconds"] > 2 * 2 * 0.1
    assert last["seconds"] > 2 * 2 * 0.1


def uneven(rank: int, nodes: int, training: bool) -> Any:
    return samples(8 + 8 * rank if training else 20, rank)


def empty_on_one(rank: int, nodes: int, training: bool) -> Any:
    return samples(8) if rank != 1 else []


class WiderOnNodeOne(Linear):
    """Another shape where it is unpickled on node 1."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if os.environ.get("RANK") == "1":
            self.layer = nn.Linear(6, 4)


class NaNOnNodeTwo(Linear):
    def forward(self, batch: Any) -> Any:
        bad = self.training and os.environ.get("RANK") == "2"
        return super().forward(batch) * (float("nan") if bad else 1.0)


def test_one_node_that_is_wrong_is_named(cluster: EngineCluster, tmp_path: Path) -> None:
    options = {**FEW, "num_nodes": 3, "strategy": DiLoCoStrategy(SGD, H=2), **places(tmp_path)}
    good, valid = samples(40), samples(20, 1)
    for model, train, sentence in (
        (WiderOnNodeOne(), good, "node 1: tensor 'layer.weight' has shape .4, 6., but on node 0"),
        (NaNOnNodeTwo(), good, "node 2: the loss of step 1 is nan"),
        (Linear(), empty_on_one, "node 1: the training factory gives a dataset without samples"),
    ):
        with pytest.raises(FitError, match=sentence):
            Trainer(model, train, valid, cluster=cluster).fit(**options)


def test_nodes_stop_together_where_one_has_fewer_batches(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    one = Trainer(net(), uneven, uneven, cluster=cluster)
    run = one.start(strategy=FedAvgStrategy(SGD), num_nodes=2, **FEW, **places(tmp_path))
    with pytest.warns(UserWarning, match="node 0 has 2 batches, but node 1 has 4: all nodes stop"):
        result = run.result()
    assert list(result.train["examples_trained"]) == [8, 16]


class KilledInStepNine(Linear):
    """Ends the process of node 1 in its ninth step, as long as a file is there."""

    kill: Path

    def forward(self, batch: Any) -> Any:
        self.count = getattr(self, "count", 0) + self.training
        if self.count == 9 and os.environ.get("RANK") == "1" and self.kill.exists():
            self.kill.unlink()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(batch)


def test_a_killed_node_is_named_and_the_fit_goes_on(cluster: EngineCluster, tmp_path: Path) -> None:
    options = {**FEW, "strategy": DiLoCoStrategy(SGD, H=3), "max_steps": 12, "num_nodes": 2,
               "checkpoint_interval": 4, "val_interval": 4}  # fmt: skip
    whole = trainer(cluster, Linear).fit(**options, **places(tmp_path / "whole"))
    (tmp_path / "kill").touch()
    broken = trainer(cluster, KilledInStepNine)
    broken.model.kill = tmp_path / "kill"
    with pytest.raises(RankDied, match=r"rank 1 .*was killed by SIGKILL"):
        broken.fit(run_name="killed", **options, **places(tmp_path))
    found = broken.start(run_name="killed", resume=True, **options, **places(tmp_path)).result()
    assert list(found.train["step"]) == list(range(1, 13))
    assert list(found.validation["step"]) == [0, 4, 8, 12]
    assert found.model is not None
    assert equal(found.model, whole)
    with pytest.raises(FitError, match="is of 2 nodes, but num_nodes is 3"):
        broken.fit(run_name="killed", resume=True, **{**options, "num_nodes": 3},
                   **places(tmp_path))  # fmt: skip
