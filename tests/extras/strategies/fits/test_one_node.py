"""Fits on one node, in a thread of this process: loop, tables, loggers, checkpoints, bad input."""

import json
import math
import os
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, Subset, TensorDataset

from mimokit.config import ConfigError
from mimokit.engine.strategies import (
    DeMoStrategy,
    DiLoCoStrategy,
    FedAvgStrategy,
    NoLoCoStrategy,
    OptimSpec,
    SimpleReduceStrategy,
    SparseLoCoStrategy,
    SPARTADiLoCoStrategy,
    SPARTAStrategy,
    Strategy,
    StreamingDiLoCoStrategy,
)
from mimokit.experiment import Trainer
from mimokit.extras.strategies.fits import tables
from mimokit.extras.strategies.fits.forward import largest_that_fits
from mimokit.extras.strategies.fits.job import FitError
from mimokit.extras.strategies.fits.records import Begun, NodeStep, Validation
from mimokit.extras.strategies.fits.run import RowsToLoggers
from mimokit.extras.strategies.fits.tables import FitTables
from mimokit.extras.strategies.network import Network
from mimokit.result_files import FitFile
from mimokit_widgets import LiveMonitor
from tests import seams
from tests.extras.strategies.fits.in_process import OneNode
from tests.extras.strategies.fits.nets import (
    Linear,
    Net,
    equal,
    net,
    places,
    samples,
    state,
    trainer,
)
from tests.rows import rows

SGD = OptimSpec(torch.optim.SGD, lr=0.05)


def simple(**arguments: Any) -> SimpleReduceStrategy:
    return SimpleReduceStrategy(SGD, **arguments)


def fit(folder: Path, **options: Any) -> nn.Module:
    """Fit a linear model, on batches of 8 where nothing else is said."""
    usual = {"strategy": simple(), "batch_size": 8, "val_size": 20, **places(folder)}
    return trainer(OneNode(), Linear).fit(**{**usual, **options})


def test_one_node_is_a_plain_loop_to_the_bit(tmp_path: Path) -> None:
    """Two micro-batches a step, and a last batch of three samples in every epoch."""
    one = Trainer(net(Linear), samples(11), samples(8, 1), cluster=OneNode())
    before = state(one.model)
    found = one.fit(
        strategy=simple(), num_epochs=2, batch_size=4, minibatch_size=2, shuffle=False, val_size=8,
        run_name="plain", **places(tmp_path),
    )  # fmt: skip
    assert all(torch.equal(before[name], value) for name, value in state(one.model).items())
    model = net(Linear)
    optim = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = samples(11).tensors
    losses = []
    for _ in range(2):
        for start in (0, 4, 8):
            optim.zero_grad()
            loss = model((x[start : start + 4], y[start : start + 4]))
            loss.backward()
            optim.step()
            losses.append(loss.item())
    for name, value in found.state_dict().items():
        assert torch.allclose(value, model.state_dict()[name], atol=1e-7)
    table = pd.read_csv(tmp_path / "logs" / "plain" / "train.csv")
    assert list(table) == ["step", "examples_trained", "train_loss", "train_perplexity", "lr"]
    assert list(table["examples_trained"]) == [4, 8, 11, 15, 19, 22]
    assert list(table["train_loss"]) == pytest.approx(losses, abs=1e-6)
    assert list(table["lr"]) == [0.05] * 6


def test_epochs_have_orders_of_their_own(tmp_path: Path) -> None:
    losses = []
    still = SimpleReduceStrategy(OptimSpec(torch.optim.SGD, lr=0.0))
    one = Trainer(net(Linear), samples(16), samples(8, 1), cluster=OneNode())
    run = one.start(strategy=still, max_steps=6, batch_size=8, minibatch_size=8, val_size=8,
                    **places(tmp_path))  # fmt: skip
    losses = list(run.result().train["train_loss"])
    assert len(set(losses)) == 6, "two batches of three epochs"
    assert losses[0] + losses[1] == pytest.approx(losses[4] + losses[5])


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A fit with validation, metrics, drift, loggers and a network, watched by a monitor."""
    folder = tmp_path_factory.mktemp("fit")
    one = trainer(OneNode())
    run = one.start(
        strategy=DiLoCoStrategy(SGD, H=3, lr_scheduler="lambda_cosine"), max_steps=12, batch_size=8,
        val_size=20, val_interval=5, run_name="watched", network=Network("1 Gbit/s"),
        log_x_axis="examples", **places(folder),
    )  # fmt: skip
    monitor = LiveMonitor(run)
    result = run.result()
    monitor.wait()
    return one, run, result, monitor


def test_validation_and_metrics_have_columns(fitted: Any) -> None:
    _, _, result, _ = fitted
    table = pd.read_csv(result.directory / "validation.csv")
    assert list(table["step"]) == [0, 5, 10, 12]
    columns = ["step", "local_loss", "local_perplexity", "global_loss", "global_perplexity"]
    assert list(table)[:5] == columns
    assert table["global_loss"].isna().all()
    assert "local_size" in table
    assert "size" in result.train
    last = result.model.eval()(samples(20, 1).tensors)
    assert last.item() == pytest.approx(table["local_loss"].iloc[-1], abs=1e-5)
    assert table["local_perplexity"][0] == pytest.approx(math.exp(table["local_loss"][0]))
    assert not (table.columns == "loss").any()


def test_rate_and_times_are_in_the_table(fitted: Any) -> None:
    _, _, result, _ = fitted
    assert list(result.train["lr"])[:3] == [0.0, 0.05, 0.05]
    assert result.train["predicted_seconds"].is_monotonic_increasing
    assert result.prediction.name == "diloco"
    content = json.loads((result.directory / "config.json").read_text())
    assert content["strategy"] == "diloco"
    assert content["strategy_arguments"]["H"] == 3
    assert (result.communication["payload_bytes"] == 0).all()


def test_a_monitor_follows(fitted: Any) -> None:
    _, run, _, monitor = fitted
    assert monitor.status == "finished"
    assert monitor.total_iterations == 12
    assert len(run.samples) == 12


def test_tensorboard_counts_examples(fitted: Any) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, _, result, _ = fitted
    events = EventAccumulator(str(result.directory / "tensorboard"))
    events.Reload()
    steps = [one.step for one in events.Scalars("loss/train_loss")]
    assert steps == list(range(8, 97, 8))


def test_validations_wait_for_the_examples_of_all_nodes(tmp_path: Path) -> None:
    """Node 0 reports steps and validations first, then node 1."""
    told: list[tuple[str, int]] = []
    logger: Any = SimpleNamespace(
        step=lambda row: told.append(("train", row["iteration"])),
        evaluation=lambda row: told.append(("validation", row["iteration"])),
    )
    rows, tables = RowsToLoggers([logger], "examples"), FitTables(tmp_path, 2)
    tables.on_row(rows.take)
    tables.take(Begun(0, 0, 3, 4))
    tables.take(Validation(0, {"local_loss": 1.0}))
    for node in (0, 1):
        for step in (1, 2, 3):
            if (node, step) != (1, 3):
                tables.take(NodeStep(node, step, 4, 1.0, None, 0.1, 0.1))
            if node == 0 and step > 1:
                tables.take(Validation(step, {"local_loss": 1.0}))
    assert told == [("validation", 0), ("train", 8), ("train", 16), ("validation", 16)]
    rows.end()
    assert told[4:] == [("validation", 16)], "node 1 was killed in step 3"


def test_a_micro_batch_is_found_and_remembered(fitted: Any, monkeypatch: Any) -> None:
    one, _, result, _ = fitted
    assert result.minibatch_size == 8
    assert one._minibatch_sizes == {(1, 8): 8}


def test_weights_and_biases_hears_of_a_fit_in_bf16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, Any] = {"rows": []}
    run = SimpleNamespace(
        define_metric=lambda *_, **__: None,
        log=told["rows"].append,
        finish=lambda exit_code: told.update(exit_code=exit_code),
    )
    wandb = ModuleType("wandb")
    wandb.init = lambda **options: told.update(options) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    seen: list[torch.dtype] = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, out: seen.append(out.dtype) if isinstance(module, nn.Linear) else None
    )
    try:
        options = {"autocast": True, "wandb_project": "mine", "run_name": "logged"}
        fit(tmp_path, max_steps=2, minibatch_size=8, **options)
    finally:
        handle.remove()
    assert (told["project"], told["name"], told["exit_code"]) == ("mine", "logged", 0)
    assert [row["iteration"] for row in told["rows"]] == [0, 1, 2, 2]
    assert set(seen) == {torch.bfloat16}


@rows(
    "found, budget, size",
    ([(2, 20), (4, 40)], 1000, 24),
    ([(2, 20), (4, 40)], 170, 8),
    ([(2, 90)], 10, 1),
)
def test_what_fits_divides_the_batch(found: Any, budget: float, size: int) -> None:
    assert largest_that_fits(24, found, budget) == size


class TwiceAsLong(Net):
    """Raises in the step that a file asks for, as a killed process ends there."""

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        if self.training:
            self.count = getattr(self, "count", 0) + 1
            if FAILING and self.count > FAILING[0]:
                raise KeyError("planted")
        return super().forward(batch)


FAILING: list[int] = []


def test_a_fit_goes_on_to_the_bit(tmp_path: Path) -> None:
    """Killed in step 10, after checkpoints of steps 4 and 8."""
    options: dict[str, Any] = {
        "max_steps": 14, "batch_size": 8, "val_size": 20, "val_interval": 3,
        "checkpoint_interval": 4, "run_name": "same",
    }  # fmt: skip

    def strategy() -> DiLoCoStrategy:
        return DiLoCoStrategy(H=3, lr_scheduler="lambda_cosine", max_norm=0.5,
                              lr_scheduler_kwargs={"cosine_anneal": True})  # fmt: skip

    whole = trainer(OneNode(), TwiceAsLong).start(
        strategy=strategy(), **options, **places(tmp_path / "whole")
    ).result()  # fmt: skip
    broken = trainer(OneNode(), TwiceAsLong)
    FAILING.append(10)
    try:
        with pytest.raises(Exception, match="planted"):
            broken.fit(strategy=strategy(), **options, **places(tmp_path))
    finally:
        FAILING.clear()
    assert len(pd.read_csv(tmp_path / "logs" / "same" / "train.csv")) == 10
    assert (tmp_path / "logs" / "same" / "error.json").exists()
    result = broken.start(strategy=strategy(), resume=True, **options, **places(tmp_path)).result()
    assert equal(result.model, whole.model)
    for name in ("train.csv", "validation.csv", "communication.csv"):
        texts = [(one.directory / name).read_text() for one in (whole, result)]
        assert texts[0] == texts[1], name
    with pytest.raises(FitError, match=r"another fit: strategy\.H was 3 and is 4"):
        broken.fit(strategy=DiLoCoStrategy(H=4), resume=True, **options, **places(tmp_path))
    with pytest.raises(FitError, match="strategy was DiLoCoStrategy and is FedAvgStrategy"):
        broken.fit(strategy=FedAvgStrategy(), resume=True, **options, **places(tmp_path))


class Counting(Strategy):
    """Steps by less each time, and keeps a number and a tensor for it."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.sums = 1.0, [torch.zeros(3)]

    def _init_node(self, model: nn.Module, rank: int, num_nodes: int) -> None:
        super()._init_node(model, rank, num_nodes)
        self.optim = SGD.build(model)

    def step(self) -> None:
        self.given *= 0.9
        self.sums[0] += self.given
        for one in self.model.parameters():
            assert one.grad is not None
            one.grad *= self.sums[0].mean()
        self.optim.step()
        super().step()


@pytest.mark.parametrize(
    "make",
    [
        lambda: SimpleReduceStrategy(lr_scheduler="lambda_cosine"),
        lambda: FedAvgStrategy(H=3, weighting="samples"),
        lambda: SPARTAStrategy(p_sparta=0.5, delay=2),
        lambda: DiLoCoStrategy(H=2, codec="int4"),
        lambda: SPARTADiLoCoStrategy(H=2, p_sparta=0.5),
        DeMoStrategy,
        lambda: StreamingDiLoCoStrategy(OptimSpec.from_string("muon"), H=4, fragments=2,
                                        overlap_steps=1, mix=0.5),
        lambda: NoLoCoStrategy(H=2, group_size=1),
        lambda: SparseLoCoStrategy(H=2),
        Counting,
    ],
)  # fmt: skip
def test_every_strategy_goes_on_to_the_bit(tmp_path: Path, make: Any) -> None:
    """From the checkpoint after step 5: with an exchange under way where there are such."""
    options: dict[str, Any] = {"batch_size": 8, "minibatch_size": 4, "val_size": 20,
                               "checkpoint_interval": 5, "run_name": "one"}  # fmt: skip

    def fitted(steps: int, folder: str, **more: Any) -> nn.Module:
        more |= {"strategy": make(), "max_steps": steps, **options, **places(tmp_path / folder)}
        return trainer(OneNode(), Net).fit(**more)

    fitted(5, "broken")
    assert equal(fitted(9, "broken", resume=True), fitted(9, "whole"))


class Planted:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def test_resuming_runs_nothing_that_lies_in_the_folder(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4, run_name="mine", checkpoint_interval=2)
    path = tmp_path / "checkpoints" / "mimokit" / "mine" / "0" / "checkpoint.pt"
    torch.save(Planted(tmp_path / "run"), path)
    with pytest.raises(FitError, match=r"is of an earlier version of mimokit, or was not written"):
        fit(tmp_path, max_steps=4, run_name="mine", resume=True)
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=2, run_name="torn", checkpoint_interval=2)
    path = tmp_path / "checkpoints" / "mimokit" / "torn" / "0" / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        numbers = archive.read(next(name for name in archive.namelist() if "/data/" in name))
    content[content.index(numbers)] ^= 1
    path.write_bytes(content)
    with pytest.raises(FitError, match=r"node 0: checkpoint .* cannot be read: "):
        fit(tmp_path, max_steps=2, run_name="torn", resume=True)


def edit(text: str) -> str:
    return text.replace("\n2,16,", "\n2,17,")


def without_a_row(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join([*lines[:2], *lines[3:]])


@rows(
    "file, change, why",
    (FitFile.TRAIN, edit, "has other rows than the fit has written; delete digests.json"),
    (FitFile.TRAIN, without_a_row, "has other rows than the fit has written"),
    (FitFile.TRAIN, lambda text: text + "2,16,1.0,1.0,0.1\n", "has other rows"),
    (FitFile.VALIDATION, lambda text: "", "has other rows than the fit has written"),
    (FitFile.TRAIN, lambda text: text + "x,1\n", "is no table of a fit"),
    (FitFile.TRAIN, lambda text: "loss\n1\n", "is no table of a fit"),
    (
        FitFile.DIGESTS,
        lambda text: text.replace("4", "5"),
        "cannot be read .it has other content than was written",
    ),
    (FitFile.DIGESTS, lambda text: "[]", "cannot be read .it has other content than was written"),
)
def test_damaged_tables_are_refused_before_a_fit_goes_on(
    tmp_path: Path, file: FitFile, change: Callable[[str], str], why: str
) -> None:
    fit(tmp_path, run_name="mine", max_steps=4, checkpoint_interval=2)
    folder = tmp_path / "logs" / "mine"
    path = folder / file
    right = path.read_text()
    path.write_text(change(right))
    before = {each: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    with pytest.raises(ConfigError, match=f"fit: resume is True, but .*{file} .*{why}"):
        fit(tmp_path, run_name="mine", max_steps=6, resume=True)
    assert {each: each.read_bytes() for each in folder.iterdir() if each.is_file()} == before
    path.write_text(right)
    fit(tmp_path, run_name="mine", max_steps=6, resume=True)
    assert pd.read_csv(folder / FitFile.TRAIN)["step"].tolist() == [1, 2, 3, 4, 5, 6]


def test_tables_of_a_killed_client_have_a_digest_of_what_it_wrote_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that follow are cut off where they are behind the checkpoint."""
    with monkeypatch.context() as patch:
        patch.setattr(FitTables, "write", lambda self, further: None)
        patch.setattr(tables, "SEALED_EVERY", 0.0)
        fit(tmp_path, run_name="mine", max_steps=4, checkpoint_interval=2)
    table = tmp_path / "logs" / "mine" / FitFile.TRAIN
    right = table.read_text()
    table.write_text(edit(right))
    with pytest.raises(ConfigError, match="has other rows than the fit has written"):
        fit(tmp_path, run_name="mine", max_steps=6, resume=True)
    table.write_text(right + "5,40,9.0,9.0,0.5\n")
    fit(tmp_path, run_name="mine", max_steps=6, resume=True)
    assert 9.0 not in pd.read_csv(table)["train_loss"].tolist()


def test_resuming_without_a_checkpoint_leaves_the_tables(tmp_path: Path) -> None:
    options: dict[str, Any] = {"run_name": "b", "strategy": simple(), "batch_size": 8}
    fit(tmp_path, max_steps=4, **options)
    folder = tmp_path / "logs" / "b"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with pytest.raises(ConfigError, match=r"resume is True, but .*mimokit/b holds no checkpoint"):
        fit(tmp_path, max_steps=8, resume=True, **options)
    elsewhere = trainer(OneNode(), Linear)
    elsewhere.cluster.is_local = False  # type: ignore[union-attr, misc]
    with pytest.raises(FitError, match=r"resume is True, but .*mimokit/b holds no checkpoint"):
        elsewhere.fit(max_steps=8, resume=True, val_size=20, **options, **places(tmp_path))
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    tables = [name for name in before if name.endswith(".csv")]
    assert len(tables) == 3
    assert all(after[name] == before[name] for name in tables)


def test_checkpoints_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """Before the first step; a disk that fills up later is named in words."""
    options = {"max_steps": 2, "checkpoint_interval": 2}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file.*cannot be written there"):
        fit(tmp_path, **options, save_dir=tmp_path / "file")

    folder = tmp_path / "checkpoints" / "mimokit" / "full" / "0"
    folder.mkdir(parents=True)
    (folder / ".checkpoint.pt.part").symlink_to("/dev/full")
    with pytest.raises(FitError, match=r"node 0: .*cannot be written: No space left on device"):
        fit(tmp_path, run_name="full", **options)


def test_a_fit_can_be_stopped(tmp_path: Path) -> None:
    run = trainer(OneNode()).start(
        strategy=simple(), max_steps=10**6, batch_size=8, val_size=20, **places(tmp_path)
    )  # fmt: skip
    while len(run.samples) < 3:
        time.sleep(0.01)
    run.stop()
    assert 3 <= len(run.result().train) < 10**6


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from zip(*samples(10).tensors, strict=True)


def test_streams_begin_again(tmp_path: Path) -> None:
    one = Trainer(net(), lambda *_: Stream(), lambda *_: Stream(), cluster=OneNode())
    options: dict[str, Any] = {"strategy": simple(), "batch_size": 4, "val_size": 6}
    found = one.start(max_steps=6, minibatch_size=2, **options, **places(tmp_path)).result()
    assert list(found.train["examples_trained"]) == [4, 8, 10, 14, 18, 20]
    with pytest.raises(FitError, match="node 0: its data has no length; give max_steps"):
        one.fit(minibatch_size=2, **options, **places(tmp_path))


class NoScalar(Linear):
    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return self.layer(batch[0])


class Infinite(Linear):
    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = super().forward(batch)
        self.count = getattr(self, "count", 0) + self.training
        return loss * math.nan if self.count == 3 and self.training else loss


class SteepGradient(Linear):
    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return super().forward(batch) + (self.layer.weight * 0).sum().sqrt()


@rows(
    "model, train, validation, sentence",
    (NoScalar(), samples(16), samples(20), r"node 0: model\(batch\) returns a tensor of shape"),
    (Infinite(), samples(16), samples(20), "node 0: the loss of step 3 is nan"),
    (SteepGradient(), samples(16), samples(20), "node 0: the gradient of 'layer.weight' in"),
    (Linear(), lambda *_: None, samples(20), "node 0: the training factory gives nothing"),
    (Linear(), lambda *_: [], samples(20), "factory gives a dataset without samples"),
    (Linear(), samples(16), lambda *_: samples(19), "val_size is 20, but the validation set h"),
)
def test_what_goes_wrong_on_a_node_is_named(
    tmp_path: Path, model: nn.Module, train: Any, validation: Any, sentence: str
) -> None:
    one = Trainer(model, train, validation, cluster=OneNode())
    with pytest.raises(FitError, match=sentence) as caught:
        one.fit(strategy=simple(), max_steps=4, batch_size=4, minibatch_size=4, val_size=20,
                **places(tmp_path))  # fmt: skip
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"num_nodes": 0}, "num_nodes is 0; it must be at least 1"),
        ({"num_nodes": -2}, "num_nodes is -2; it must be at least 1"),
        ({"num_nodes": 2}, "num_nodes is 2; the cluster has 1 engine,"),
        ({"minibatch_size": 3}, "batch_size is 16, which is not a multiple of minibatch_size, 3"),
        ({"val_size": 21}, "val_size is 21, but val_dataset has 20 samples"),
        ({"strategy": "dilocco"}, "did you mean diloco"),
        ({"strategy": None}, "strategy is missing"),
        ({"strategy": DiLoCoStrategy}, "strategy is the class DiLoCoStrategy"),
        ({"strategy": FedAvgStrategy(island_size=3)}, "island_size is 3"),
        ({"device": "gpu"}, "device is 'gpu'; choose one of cpu, cuda, mps"),
        ({"resume": True}, "run_name is missing"),
        ({"run_name": "there"}, "run_name is there, and .* exists"),
        ({"run_name": "a/b"}, "it has a slash"),
        ({"dataloader_kwargs": {"shuffle": True}}, "dataloader_kwargs.shuffle is decided by fit"),
        ({"dataloader_kwargs": {"num_worker": 1}}, "did you mean num_workers"),
        ({"network": "fast"}, "network is .fast."),
        ({"wandb_project": "mine"}, "the package wandb is not installed"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": "a"}, "seed is 'a'; it must be a whole number"),
        ({"batch_size": None}, "batch_size is None; it must be at least 1"),
        ({"strategy": SimpleReduceStrategy(OptimSpec(torch.optim.SGD, lrr=1))},
         r"has OptimSpec\(SGD, lrr=1\), which cannot be built; .*argument 'lrr'"),
        ({"strategy": DiLoCoStrategy(outer_optim_spec=OptimSpec(torch.optim.SGD, lr=-1))},
         r"has OptimSpec\(SGD, lr=-1\), which cannot be built; Invalid learning rate"),
        ({"strategy": simple(lr_scheduler="cosine")}, "lr_scheduler: cosine is not known; write"),
        ({"strategy": simple(lr_scheduler=torch.optim.lr_scheduler.StepLR)},
         "has lr_scheduler, which cannot be built; .*step_size"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(
    tmp_path: Path, arguments: dict[str, Any], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "wandb_project" in arguments:
        monkeypatch.setattr(seams.LIBRARY_INSTALLED, lambda name: name != "wandb")
    (tmp_path / "logs" / "there").mkdir(parents=True)
    with pytest.raises(ConfigError, match=sentence):
        trainer(OneNode()).fit(
            **{"strategy": simple(), "val_size": 20, **places(tmp_path), **arguments}
        )


def test_unknown_arguments_and_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="did you mean batch_size"):
        trainer(OneNode()).fit(batchsize=3)  # type: ignore[call-arg]
    for data, sentence in (
        (Subset(samples(4), []), "val_dataset has no samples"),
        (7, "val_dataset is 7"),
    ):
        one = Trainer(net(), samples(8), data, cluster=OneNode())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=sentence):
            one.fit(strategy=simple(), **places(tmp_path))
    assert isinstance(samples(3), TensorDataset)


def test_models_and_optimizers_that_cannot_train_are_refused(tmp_path: Path) -> None:
    for model, sentence in (
        (len, "model is .*; give a torch.nn.Module"),
        (nn.ReLU(), "model has no parameter that trains"),
        (nn.LazyLinear(3), "model has lazy layers without weights; call it on a batch"),
    ):
        one = Trainer(model, samples(8), samples(20), cluster=OneNode())  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=sentence):
            one.fit(strategy=simple(), **places(tmp_path))
    with pytest.raises(ConfigError, match=r"An optimizer is SGD; give OptimSpec\(SGD, lr=0.1\)"):
        DiLoCoStrategy(torch.optim.SGD)  # type: ignore[arg-type]
    assert not (tmp_path / "logs").exists()
