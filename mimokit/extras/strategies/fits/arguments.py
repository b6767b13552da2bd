"""The arguments of `Trainer.fit`, and what is wrong with them."""

import contextlib
import difflib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils.data import DataLoader, Dataset, IterableDataset

from mimokit.config.errors import ConfigError, Problem, refuse_if_any
from mimokit.extras.strategies.network import Network
from mimokit.extras.strategies.nodes.optim import OptimSpec, build_scheduler
from mimokit.extras.strategies.nodes.strategy import Strategy
from mimokit.extras.strategies.nodes.strategy_names import strategy_named
from mimokit.units import counted, shown

TAKEN = ("batch_size", "batch_sampler", "sampler", "shuffle", "drop_last", "generator")
"""Arguments of a loader that a fit decides itself."""
DEVICES = (None, "", "cpu", "cuda", "mps")
AXES = ("step", "examples")


@dataclass(frozen=True)
class FitArguments:
    """How to fit.

    Attributes:
        num_epochs: passes over a node's data, unless `max_steps` is given.
        strategy: what nodes do between local steps; a name selects its defaults.
        num_nodes: how many; None: all engines of the cluster.
        max_steps: optimizer steps; data sets begin again as often as needed.
        batch_size: samples per node and step.
        minibatch_size: samples of a micro-batch; None: as many as fit the memory.
        force_minibatch_recalculate: whether to find that again.
        device: cpu, cuda or mps; None: what there is.
        devices: the GPUs, by number, that nodes share.
        shuffle: whether every epoch has a different order.
        val_size: validation samples, the first ones.
        val_interval: steps between two validations; there is one before the first step and one at
            the end, too.
        autocast: whether the forward pass computes in bf16.
        checkpoint_interval: steps between two checkpoints of all nodes; there is one at the end,
            too. None: none.
        correlation_interval: steps between two measurements of the drift. None: none.
        save_dir: of checkpoints, in `project/run_name/node/checkpoint.pt`.
        dataloader_kwargs: of torch's `DataLoader`: num_workers, collate_fn, …
        wandb_project: logs to this project of Weights & Biases.
        run_name: of the folder of tables; None: one with strategy and time.
        log_x_axis: what loggers count: step or examples.
        seed: of torch, numpy and Python on all nodes, of the order of samples and of the strategy.
        log_dir: holds the folders of tables.
        network: adds predicted times; with `emulate=True` exchanges take as long as on it.
        resume: whether to go on from the last checkpoint of `run_name`, which must exist.
    """

    num_epochs: int = 1
    strategy: Strategy | str | None = None
    num_nodes: int | None = None
    max_steps: int | None = None
    batch_size: int = 16
    minibatch_size: int | None = None
    force_minibatch_recalculate: bool = False
    device: str | None = None
    devices: Sequence[int] | None = None
    shuffle: bool = True
    val_size: int = 64
    val_interval: int = 100
    autocast: bool = False
    checkpoint_interval: int | None = None
    correlation_interval: int | None = None
    save_dir: str | Path = "checkpoints"
    dataloader_kwargs: Mapping[str, Any] | None = None
    wandb_project: str | None = None
    run_name: str | None = None
    log_x_axis: str = "step"
    seed: int = 42
    log_dir: str | Path = "logs"
    network: Network | None = None
    resume: bool = False


_DEFAULTS = {argument.name: argument.default for argument in fields(FitArguments)}
ABOVE_ZERO = (
    "num_epochs", "num_nodes", "max_steps", "batch_size", "minibatch_size", "val_size",
    "val_interval", "checkpoint_interval", "correlation_interval",
)  # fmt: skip


def given(*values: Any, **named: Any) -> FitArguments:
    """Return the arguments; a TypeError for an unknown one names the right one."""
    known = [argument.name for argument in fields(FitArguments)]
    for name in named:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            right = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known)}"
            raise TypeError(f"fit has no argument {name}; {right}")
    return FitArguments(*values, **named)


def strategy_of_fit(arguments: FitArguments) -> Strategy:
    """Return the strategy; raises ConfigError if it is none or its name is unknown."""
    strategy = arguments.strategy
    if isinstance(strategy, str):
        return strategy_named(strategy)
    if isinstance(strategy, Strategy):
        return strategy
    wrong = "is missing" if strategy is None else f"is {_shown(strategy)}"
    raise _rejected("strategy", strategy, wrong, "give a strategy, DiLoCoStrategy(H=100) say")


def check_fit_arguments(arguments: FitArguments, engines: int | None) -> int:
    """Check the arguments, and return the number of nodes.

    Args:
        engines: of the cluster; None: as many as needed are started.

    Raises:
        ConfigError: with all problems.
    """
    refuse_if_any(_wrong(arguments, engines))
    nodes = arguments.num_nodes or engines
    assert nodes is not None
    strategy = strategy_of_fit(arguments)
    if strategy.config is not None:
        strategy.config.check_nodes(nodes)
    if arguments.network is not None:
        arguments.network.check_nodes(nodes)
    return nodes


def _wrong(arguments: FitArguments, engines: int | None) -> Iterator[Problem]:
    for name in ABOVE_ZERO:
        value = getattr(arguments, name)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if value is None and _DEFAULTS[name] is None:
            continue
        if not whole or value < 1:
            yield _problem(name, value, f"is {_shown(value)}", "it must be at least 1")
            return
    nodes, batch, mini = arguments.num_nodes, arguments.batch_size, arguments.minibatch_size
    if nodes is None and engines is None:
        yield _problem("num_nodes", nodes, "is missing", "without a cluster it is needed")
    if nodes is not None and engines is not None and nodes > engines:
        right = f"the cluster has {counted(engines, 'engine')}, and each node needs one"
        yield _problem("num_nodes", nodes, f"is {nodes}", right)
    if mini is not None and batch % mini:
        nearest = max(size for size in range(1, min(mini, batch) + 1) if batch % size == 0)
        wrong = f"is {batch}, which is not a multiple of minibatch_size, {mini}"
        yield _problem("batch_size", batch, wrong, f"a minibatch_size of {nearest} is right")
    for name, choices in (("device", DEVICES), ("log_x_axis", AXES)):
        value = getattr(arguments, name)
        if value not in choices:
            words = ", ".join(choice for choice in choices if choice)
            yield _problem(name, value, f"is {_shown(value)}", f"choose one of {words}")
    seed = arguments.seed
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        yield _problem("seed", seed, f"is {_shown(seed)}", "it must be a whole number of 0 or more")
    if arguments.network is not None and not isinstance(arguments.network, Network):
        wrong = f"is {_shown(arguments.network)}"
        yield _problem("network", arguments.network, wrong, 'give Network("1 Gbit/s", "30 ms")')
    if arguments.resume and arguments.run_name is None:
        yield _problem("run_name", None, "is missing", "resume=True goes on with a run of a name")
    yield from _wrong_loader(arguments.dataloader_kwargs or {})


def _wrong_loader(kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    known = inspect.signature(DataLoader).parameters
    for name, value in kwargs.items():
        field = f"dataloader_kwargs.{name}"
        if name in TAKEN:
            yield _problem(field, value, "is decided by fit", "leave it out")
        elif name not in known or name in ("dataset", "self"):
            nearest = difflib.get_close_matches(name, list(known), n=1)
            right = f"did you mean {nearest[0]}?" if nearest else "see torch's DataLoader"
            yield _problem(field, value, "is not an argument of DataLoader", right)


def check_fit_model(model: Any) -> None:
    """Check that a strategy can train the model.

    Raises:
        ConfigError: it is no module, has no parameter that trains, or one without a shape yet.
    """
    if not isinstance(model, nn.Module):
        raise _rejected("model", model, f"is {_shown(model)}", "give a torch.nn.Module")
    if any(isinstance(weight, UninitializedParameter) for weight in model.parameters()):
        wrong = "has lazy layers without weights"
        raise _rejected("model", None, wrong, "call it on a batch before it is fitted")
    if not any(weight.requires_grad for weight in model.parameters()):
        raise _rejected("model", None, "has no parameter that trains", "give one that has some")


def check_optimizers(strategy: Strategy, model: nn.Module, max_steps: int | None) -> None:
    """Build the optimizers and the scheduler of a strategy once, before nodes do it.

    Raises:
        ConfigError: one cannot be built of its arguments.
    """
    owners = [strategy, *getattr(strategy, "communication_modules", ())]
    specs = [
        value for owner in owners for value in vars(owner).values() if isinstance(value, OptimSpec)
    ]
    for spec in specs:
        with _named(str(spec)):
            spec.build(model)
    with _named("lr_scheduler"):
        optim = torch.optim.SGD(
            [weight for weight in model.parameters() if weight.requires_grad], lr=0.1
        )
        arguments = strategy.lr_scheduler_kwargs
        build_scheduler(strategy.lr_scheduler, optim, arguments, max_steps or 1)


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        raise _rejected(
            "strategy", what, f"has {what}, which cannot be built", str(error)
        ) from None


def check_fit_data(train: Any, validation: Any, val_size: int) -> None:
    """Check what can be known of data sets before they are on nodes.

    Raises:
        ConfigError: one is neither a dataset nor a factory, is empty, or has too few samples.
    """
    for name, source in (("train_dataset", train), ("val_dataset", validation)):
        if not is_dataset(source) and not callable(source):
            wrong = f"is {_shown(source)}"
            raise _rejected(name, source, wrong, "give a dataset or a factory of one")
        if not is_dataset(source) or is_streamed(source):
            continue
        if len(source) == 0:
            raise _rejected(name, source, "has no samples", "give at least one")
        if source is validation and name == "val_dataset" and len(source) < val_size:
            wrong = f"is {val_size}, but val_dataset has {counted(len(source), 'sample')}"
            raise _rejected("val_size", val_size, wrong, f"it must be at most {len(source)}")


def is_dataset(source: Any) -> bool:
    """Return whether a source is a dataset; else it is a factory, if it can be called."""
    kinds = (Dataset, IterableDataset)
    return isinstance(source, kinds) or hasattr(source, "__getitem__")


def is_streamed(dataset: Any) -> bool:
    """Return whether a dataset has no places, only an order."""
    return isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__")


def _shown(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else shown(value)


def _problem(field: str, value: object, wrong: str, right: str) -> Problem:
    return Problem("fit", field, value, f"fit: {field} {wrong}; {right}.".replace("?.", "?"))


def _rejected(field: str, value: object, wrong: str, right: str) -> ConfigError:
    return ConfigError([_problem(field, value, wrong, right)])
