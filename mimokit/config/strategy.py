"""What is exchanged between replicas, and when: the nine strategies and their arguments."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from mimokit.config.base import ConfigModel, NotNegative, Positive
from mimokit.config.errors import Fix, Problem, refuse_if_any, unknown_name
from mimokit.config.messages import written
from mimokit.units import bits_per_second, listed, seconds_of

StrategyName = Literal[
    "simple_reduce",
    "fedavg",
    "sparta",
    "diloco",
    "sparta_diloco",
    "demo",
    "streaming_diloco",
    "noloco",
    "sparse_loco",
]
OptimizerName = Literal["adam", "adamw", "sgd", "rmsprop", "adagrad", "muon"]
Selector = Literal["random", "shuffled_sequential", "partitioned"]
Codec = Literal["int8", "int4"]
Weighting = Literal["equal", "samples"]
PositiveFloat = Annotated[float, Field(gt=0)]
NotNegativeFloat = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

ALWAYS = ("name", "replicas", "network")
"""What every strategy takes."""

_INNER = ("inner_optimizer",)
_OUTER = ("outer_optimizer",)
_SPARTA = ("p_sparta", "sparta_interval", "index_selector")

TAKES: Mapping[str, tuple[str, ...]] = {
    "simple_reduce": _INNER,
    "fedavg": ("H", "island_size", "sync_offset", "weighting", *_INNER),
    "sparta": (*_SPARTA, "delay", "fault_rate", *_INNER),
    "diloco": ("H", "sync_offset", "island_size", "codec", *_OUTER, *_INNER),
    "sparta_diloco": (*_SPARTA, "H", "sync_offset", *_OUTER, *_INNER),
    "demo": ("lr", "compression_decay", "compression_topk", "compression_chunk", "weight_decay"),
    "streaming_diloco": ("H", "fragments", "overlap_steps", "mix", "codec", *_OUTER, *_INNER),
    "noloco": ("H", "group_size", "momentum", "outer_lr", "gossip", *_INNER),
    "sparse_loco": ("H", "density", "chunk", "bits", "decay", "outer_lr", *_INNER),
}
"""Strategy -> the arguments that it takes, next to `ALWAYS`."""

BETWEEN_LAYOUTS = ("simple_reduce", "fedavg", "sparta", "diloco")
"""The strategies that run between replicas of a layout; all others between nodes of a fit alone."""

OTHER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"H": 1},
    "sparse_loco": {"outer_lr": 1.0},
}
"""Where the default of a strategy is not that of the field."""

MOST_NODES = 10_000
"""Of a strategy: exchanges are drawn and timed node by node."""

OPTIMIZER_TAKES: Mapping[OptimizerName, tuple[str, ...]] = {
    "adam": ("lr", "weight_decay", "betas", "eps"),
    "adamw": ("lr", "weight_decay", "betas", "eps"),
    "sgd": ("lr", "weight_decay", "momentum", "nesterov"),
    "rmsprop": ("lr", "weight_decay", "momentum", "eps"),
    "adagrad": ("lr", "weight_decay", "eps"),
    "muon": ("lr", "weight_decay", "momentum", "nesterov", "eps"),
}
"""Optimizer -> the arguments of torch's class that a file can give."""


class OptimizerConfig(ConfigModel, frozen=True):
    """An optimizer of torch. Arguments that are left out have torch's defaults."""

    name: OptimizerName
    """The optimizer. muon, not of a layout: Muon for matrices, AdamW for everything else."""

    lr: NotNegativeFloat | None = None
    """Learning rate."""

    momentum: BelowOne | None = None
    """Of sgd, rmsprop and muon."""

    nesterov: bool | None = None
    """Of sgd and muon."""

    weight_decay: NotNegativeFloat | None = None
    """Weight decay."""

    betas: Annotated[list[BelowOne], Field(min_length=2, max_length=2)] | None = None
    """Of adam and adamw."""

    eps: PositiveFloat | None = None
    """Of all but sgd."""


class NetworkConfig(ConfigModel, frozen=True):
    """The links between replicas: equal ones, for predictions."""

    bandwidth: str
    """Of a link in one direction, with its unit: 1 Gbit/s, 25 MB/s."""

    latency: str = "0 ms"
    """Time until the first bit arrives, with its unit: 30 ms."""

    jitter: str = "0 ms"
    """By how much a message may be later than that, with its unit."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        readers = {"bandwidth": bits_per_second, "latency": seconds_of, "jitter": seconds_of}
        problems = []
        for field, reader in readers.items():
            try:
                reader(getattr(self, field))
            except ValueError as error:
                sentence = f"strategy.network.{field} is {error}."
                problems.append(Problem("strategy", field, getattr(self, field), sentence))
        refuse_if_any(problems)
        return self


class StrategyConfig(ConfigModel, frozen=True):
    """What replicas exchange. A strategy takes some of the fields; others are rejected."""

    name: StrategyName
    """The rule between replicas. Those of a layout take simple_reduce, fedavg, sparta or diloco."""

    replicas: Positive = 1
    """Replicas of the layout, each on as many ranks as the modules need."""

    H: Positive = 100
    """Steps between two exchanges. fedavg: 1 if left out."""

    sync_offset: NotNegative = 0
    """Exchanges fall due when the completed steps, less this, are a multiple of H above 0."""

    island_size: Positive | None = None
    """Replicas that exchange with each other, drawn again each time. None: all."""

    weighting: Weighting = "equal"
    """Whether means weigh replicas equally, or by the samples since the last exchange."""

    codec: Codec | None = None
    """Bits of exchanged numbers, with error feedback. None: full precision, as of a layout."""

    p_sparta: Share = 0.005
    """Share of the entries in an exchange of SPARTA."""

    sparta_interval: Positive = 1
    """Steps between two exchanges of SPARTA."""

    index_selector: Selector = "random"
    """How the entries of an exchange of SPARTA are chosen."""

    delay: NotNegative = 0
    """Steps between taking a mean and writing it."""

    fault_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability that an exchange is left out, on all replicas alike."""

    lr: PositiveFloat = 1e-3
    """Learning rate of DeMo, which is an optimizer itself."""

    compression_decay: BelowOne = 0.999
    """Share of the residual that DeMo keeps per step."""

    compression_topk: Positive = 32
    """Coefficients that DeMo sends per block."""

    compression_chunk: Annotated[int, Field(ge=1, le=256)] = 64
    """Largest side of a block of DeMo. Up to 256 an index within a block takes 2 bytes."""

    weight_decay: NotNegativeFloat = 0.0
    """Of DeMo."""

    fragments: Positive = 4
    """Parts of the model that are exchanged one after another; they divide H."""

    overlap_steps: NotNegative = 0
    """Steps that go on while an exchange is under way, fewer than H / fragments."""

    mix: BelowOne = 0.0
    """Share of the replica's weights in what it goes on with after an exchange."""

    group_size: Positive = 2
    """Replicas that gossip with each other, drawn again each time."""

    momentum: BelowOne = 0.5
    """Of NoLoCo's outer step."""

    outer_lr: PositiveFloat = 0.7
    """Of the outer step. sparse_loco: 1 if left out."""

    gossip: NotNegativeFloat | None = None
    """How strongly NoLoCo pulls the outer weights of a group together. None: as `outer_lr`."""

    density: Share = 0.02
    """Share of the entries of a chunk that SparseLoCo sends."""

    chunk: Annotated[int, Field(ge=1, le=65536)] = 4096
    """Entries of a chunk. Up to 65,536 an index within a chunk takes 2 bytes."""

    bits: Annotated[int, Field(ge=2, le=8)] = 2
    """Bits of a value that SparseLoCo sends."""

    decay: BelowOne = 0.95
    """Share of the residual that SparseLoCo keeps per exchange."""

    inner_optimizer: OptimizerConfig | None = None
    """The optimizer of each replica. An lr that is left out is the learning rate of the run, of
    adamw and muon weight_decay and eps likewise. None: AdamW."""

    outer_optimizer: OptimizerConfig | None = None
    """Of DiLoCo. None: sgd with lr 0.7, momentum 0.9, nesterov."""

    network: NetworkConfig | None = None
    """The links between replicas. None: the time of exchanges is not predicted."""

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, values: Any) -> Any:
        name = values.get("name") if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        if name not in TAKES:
            raise unknown_name("strategy.name", name, TAKES)
        refuse_if_any(_not_taken(name, values))
        return {**OTHER_DEFAULTS.get(name, {}), **values}

    @model_validator(mode="after")
    def _check(self) -> Self:
        refuse_if_any([*self._wrong_together(), *self._wrong_optimizers()])
        return self

    @model_serializer(mode="wrap")
    def _own_fields(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = (*ALWAYS, *TAKES[self.name])
        return {key: value for key, value in handler(self).items() if key in written}

    @property
    def averages_gradients(self) -> bool:
        """Whether replicas exchange gradients, before each step."""
        return self.name == "simple_reduce"

    def _wrong_together(self) -> Iterator[Problem]:
        if self.name != "streaming_diloco":
            return
        if self.H % self.fragments:
            nearest = next(n for n in range(min(self.fragments, self.H), 0, -1) if not self.H % n)
            yield self._problem(
                "fragments",
                f"is {self.fragments} and does not divide H, which is {self.H}",
                f"{nearest} does.",
                {"path": "strategy.fragments", "value": nearest},
            )
        elif self.overlap_steps >= self.H // self.fragments:
            yield self._problem(
                "overlap_steps",
                f"is {self.overlap_steps}",
                f"it must be less than H / fragments, which is {self.H // self.fragments}.",
            )

    def _wrong_optimizers(self) -> Iterator[Problem]:
        for field in ("inner_optimizer", "outer_optimizer"):
            optimizer: OptimizerConfig | None = getattr(self, field)
            if optimizer is None:
                continue
            where, taken = f"strategy.{field}", OPTIMIZER_TAKES[optimizer.name]
            for name in sorted(optimizer.model_fields_set - {"name", *taken}):
                if getattr(optimizer, name) is not None:
                    sentence = (
                        f"{where}.{name} is not an argument of {optimizer.name}; it takes "
                        f"{listed(taken)}."
                    )
                    yield Problem("strategy", field, getattr(optimizer, name), sentence)
            if optimizer.name == "sgd" and optimizer.nesterov and not optimizer.momentum:
                sentence = f"{where}.nesterov is true without a momentum; give one, as 0.9."
                yield Problem("strategy", field, True, sentence)

    def _problem(self, field: str, wrong: str, right: str, fix: Fix | None = None) -> Problem:
        sentence = f"strategy.{field} {wrong}; {right}"
        return Problem("strategy", field, getattr(self, field), sentence, fix)

    def check_nodes(self, nodes: int) -> None:
        """Check what depends on the number of nodes.

        Raises:
            ConfigError: if there are 0 nodes or more than `MOST_NODES`, or a group has more nodes
                than there are.
        """
        problems = []
        if nodes < 1:
            sentence = f"The number of nodes is {written(nodes)}; it must be at least 1."
            problems.append(Problem("strategy", "nodes", nodes, sentence))
        elif nodes > MOST_NODES:
            sentence = (
                f"The number of nodes is {written(nodes)}; it must be at most {MOST_NODES:,}."
            )
            problems.append(Problem("strategy", "nodes", nodes, sentence))
        else:
            for field in {"island_size", "group_size"} & set(TAKES[self.name]):
                size = getattr(self, field)
                usual = type(self).model_fields[field].default
                if size is not None and size > nodes and size != usual:
                    wrong = f"is {size}, but the number of nodes is {nodes}"
                    problems.append(self._problem(field, wrong, f"it must be at most {nodes}."))
            if self.codec and self.island_size is not None and self.island_size < nodes:
                wrong = f"is {self.codec}, but islands send weights in full precision"
                problems.append(self._problem("codec", wrong, "leave out it or island_size."))
        refuse_if_any(problems)


def _not_taken(name: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    taken = TAKES[name]
    for field in (key for key in values if key not in (*ALWAYS, *taken)):
        nearest = difflib.get_close_matches(str(field), (*ALWAYS, *taken), n=1, cutoff=0.5)
        right = f"did you mean {nearest[0]}?" if nearest else f"it takes {', '.join(taken)}."
        sentence = f"strategy.{str(field)[:60]} is not an argument of {name}; {right}"
        yield Problem("strategy", str(field), values[field], sentence)
