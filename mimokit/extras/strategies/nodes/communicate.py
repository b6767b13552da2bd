"""Collectives of strategies: on any device, among some of the nodes, with every byte counted.

`all_reduce`, `broadcast` and `all_gather` are those of `torch.distributed`; MPS tensors go through
the CPU. `sum_among` and `low_bit_sum` work among a group of nodes without a process group of
theirs, since islands change with every exchange: members swap parts point to point, and the sum of
a part is made once, in the order of the nodes. So all members hold the same bits.

The all-reduce between replicas is made that way, too. A ring adds the numbers of three nodes or
more in an order that depends on where they stand in the buffer. Ranks of a replica that hold copies
of a tensor next to different ones would get sums that differ in the last bit.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mimokit.extras.strategies.exchanges.sizes import Operation, low_bit_blocks, sent_bytes


@dataclass(frozen=True)
class Message:
    """One collective of this node.

    Attributes:
        step: optimizer steps completed by it, 0 before the first.
        payload_bytes: of the tensor that this node gave.
        sent_bytes: what it sends, as `planning.strategies.sizes` counts it.
    """

    step: int
    purpose: str
    operation: str
    payload_bytes: int
    sent_bytes: float


Pace = Callable[[str, float, Sequence[int]], float]
"""(operation, payload in bytes, nodes) -> seconds of an exchange on an emulated network."""

NOT_EMULATED = ("start", "evaluation")
"""What no algorithm asks for takes no longer than it takes."""


@dataclass
class Ledger:
    """What this node has exchanged, and waited for it in seconds.

    Step and purpose are those of the next message; the pace is that of an emulated network.
    """

    messages: list[Message] = field(default_factory=list)
    step: int = 0
    purpose: str = "strategy"
    seconds: float = 0.0
    pace: Pace | None = None

    def add(self, operation: str, payload: int, members: int) -> None:
        """Count a collective; a node that is alone sends nothing."""
        if members < 2:
            payload = 0
        sent = sent_bytes(operation, payload, members)  # type: ignore[arg-type]
        self.messages.append(Message(self.step, self.purpose, operation, payload, sent))

    @contextmanager
    def counting(self, purpose: str) -> Iterator[None]:
        """Name what the collectives of a block are for."""
        before, self.purpose = self.purpose, purpose
        try:
            yield
        finally:
            self.purpose = before


BLOCK = 1 << 24
"""Entries that are summed at once; a node needs memory for as many in addition."""

ledger = Ledger()
"""Of the strategy that this process runs; `Strategy` starts an empty one."""


def start_ledger() -> Ledger:
    """Count from nothing."""
    global ledger
    ledger = Ledger()
    return ledger


_group: ContextVar[Any] = ContextVar("group", default=None)


@contextmanager
def among(group: Any) -> Iterator[None]:
    """Take the ranks of a group of replicas as the nodes, in place of the ranks of the world.

    The group communicates by gloo, and may not belong to the world.
    """
    before = _group.set(group)
    try:
        yield
    finally:
        _group.reset(before)


def count_nodes() -> int:
    """Return the nodes of the group, or of the world; without a world there is one."""
    if (group := _group.get()) is not None:
        return int(group.size())
    return dist.get_world_size() if dist.is_initialized() else 1


def _this_node() -> int:
    group = _group.get()
    return dist.get_rank() if group is None else int(group.rank())


def _order_matters() -> bool:
    """Whether ranks of a replica may hold copies of a number that three nodes or more add."""
    return _group.get() is not None and count_nodes() > 2


def all_reduce(tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """Reduce a tensor over all nodes, in place, and return it."""
    with _counted("all_reduce", tensor, _all_nodes()), _communicable(tensor) as there:
        if _order_matters() and op == dist.ReduceOp.SUM:
            _sum_in_parts(there.view(-1), _all_nodes())
        elif count_nodes() > 1:
            dist.all_reduce(there, op=op, group=_group.get())
    return tensor


class UnderWay:
    """An exchange that goes on while this node computes; calling it waits for the end."""

    def __init__(self, works: Sequence[Any] = (), emulated: EmulatedExchange | None = None) -> None:
        self._works, self._emulated = tuple(works), emulated

    def __call__(self) -> None:
        """Wait for the end."""
        begun = time.monotonic()
        _wait(self._works)
        _wait_emulated(self._emulated)
        self._works, self._emulated = (), None
        ledger.seconds += time.monotonic() - begun


def begin_all_reduce(tensor: Tensor) -> UnderWay:
    """Begin to sum a tensor over all nodes, in place; the result waits until it is there."""
    ledger.add("all_reduce", tensor.nbytes, count_nodes())
    if count_nodes() < 2:
        return UnderWay()
    begun = time.monotonic()
    emulated, works = _emulated("all_reduce", tensor.nbytes, _all_nodes()), []
    if _order_matters():
        works.append(_begin_sum(tensor.view(-1), tag=len(ledger.messages)))
    elif tensor.device.type == "mps":
        with _communicable(tensor) as there:
            dist.all_reduce(there, group=_group.get())
    else:
        works.append(dist.all_reduce(tensor, group=_group.get(), async_op=True))
    ledger.seconds += time.monotonic() - begun
    return UnderWay(works, emulated)


def _begin_sum(flat: Tensor, tag: int) -> torch.futures.Future[Any]:
    """Sum over all nodes in a thread, as the second round of messages needs those of the first.

    Args:
        tag: of the messages, which no other exchange under way has.
    """
    done: torch.futures.Future[Any] = torch.futures.Future()

    def sum_in_parts() -> None:
        try:
            with _communicable(flat) as there:
                _sum_in_parts(there, _all_nodes(), tag)
            done.set_result(None)
        except Exception as error:
            done.set_exception(error)

    # A daemon, since a sum that never ends, as another node is lost, must not keep the process.
    run = copy_context().run
    threading.Thread(target=run, args=(sum_in_parts,), name="mimokit-sum", daemon=True).start()
    return done


def broadcast(tensor: Tensor, src: int = 0) -> Tensor:
    """Send a tensor from one node to all, in place, and return it."""
    with _counted("broadcast", tensor, _all_nodes()), _communicable(tensor) as there:
        if count_nodes() > 1:
            dist.broadcast(there, group=_group.get(), group_src=src)
    return tensor


def all_gather(tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
    """Fill a list with the tensors of all nodes, and return it."""
    with _counted("all_gather", tensor, _all_nodes()):
        if count_nodes() < 2:
            tensor_list[0].copy_(tensor)
        elif tensor.device.type == "mps":
            gathered = [torch.empty_like(target, device="cpu") for target in tensor_list]
            dist.all_gather(gathered, tensor.cpu(), group=_group.get())
            for target, value in zip(tensor_list, gathered, strict=True):
                target.copy_(value)
        else:
            dist.all_gather(tensor_list, tensor, group=_group.get())
    return tensor_list


def sum_among(tensor: Tensor, group: Sequence[int], operation: Operation = "all_reduce") -> None:
    """Sum a flat tensor over a group of nodes that includes this one, ascending, in place."""
    if len(group) == count_nodes() and operation == "all_reduce":
        all_reduce(tensor)
        return
    with _counted(operation, tensor, group), _communicable(tensor) as there:
        if len(group) > 1:
            _sum_in_parts(there, group)


def _sum_in_parts(flat: Tensor, group: Sequence[int], tag: int = 0) -> None:
    place = group.index(_this_node())
    for block in torch.split(flat, BLOCK):
        if len(group) == 2:
            _add_in_order(_swap([block, block], group), out=block)
            continue
        parts = list(block.tensor_split(len(group)))
        _add_in_order(_swap(parts, group, tag=tag), out=parts[place])
        _swap([parts[place]] * len(group), group, parts, tag)


def low_bit_sum(
    packed: Tensor, group: Sequence[int], entries: int, add: Callable[[list[Tensor]], Tensor]
) -> list[Tensor]:
    """Sum in low bits over a group: each member adds one part; return the bytes of all parts.

    Args:
        packed: the codec's bytes of so many numbers (`entries`), as many for each member.
        add: takes the bytes of this node's part from all members, returns those of the sum.
    """
    assert packed.numel() % (len(group) * max(1, low_bit_blocks(entries, len(group)))) == 0
    parts = list(_where_it_can_be_sent(packed).tensor_split(len(group)))
    with _counted("low_bit_all_reduce", packed, group):
        if len(group) < 2:
            return [add([packed])]
        total = add([part.to(packed.device) for part in _swap(parts, group)])
        whole = _swap([_where_it_can_be_sent(total)] * len(group), group)
        return [part.to(packed.device) for part in whole]


@contextmanager
def _counted(operation: str, tensor: Tensor, group: Sequence[int]) -> Iterator[None]:
    begun, size = time.monotonic(), tensor.nbytes
    ledger.add(operation, size, len(group))
    emulated = _emulated(operation, size, group)
    yield
    _wait_emulated(emulated)
    ledger.seconds += time.monotonic() - begun


class EmulatedExchange:
    """When an exchange ends on the emulated network: it begins when the last node is ready.

    Nodes exchange their clocks in the background and wait for them at the end. The real exchange,
    and computation that overlaps it, count as part of the emulated time.
    """

    def __init__(self, pace: Pace, operation: str, payload: int, group: Sequence[int]) -> None:
        """Begin to exchange clocks with a group that includes this node."""
        self._clock = torch.tensor([time.monotonic()], dtype=torch.float64)
        self._pace, self._exchange = pace, (operation, payload, group)
        others = [member for member in group if member != _this_node()]
        self._heard = [torch.empty_like(self._clock) for _ in others]
        self._works = _send_and_receive(
            [(self._clock, into, member) for member, into in zip(others, self._heard, strict=True)]
        )

    def end(self) -> float:
        """Return the end on this node's monotonic clock."""
        _wait(self._works)
        now = time.monotonic()
        clocks = [float(clock) for clock in (self._clock, *self._heard)]
        return emulated_end(clocks, now, self._pace(*self._exchange))


def emulated_end(clocks: Sequence[float], now: float, seconds: float) -> float:
    """Return when an exchange ends that began when the last node was ready by its clock.

    Nodes of one machine share the monotonic clock. Those of others may have any, but none can have
    been ready after `now`, when this node has heard of all others.
    """
    return min(max(clocks), now) + seconds


def _emulated(operation: str, payload: int, group: Sequence[int]) -> EmulatedExchange | None:
    if ledger.pace is None or len(group) < 2 or ledger.purpose in NOT_EMULATED:
        return None
    return EmulatedExchange(ledger.pace, operation, payload, group)


def _wait_emulated(emulated: EmulatedExchange | None) -> None:
    if emulated is not None:
        time.sleep(max(0.0, emulated.end() - time.monotonic()))


def _all_nodes() -> range:
    return range(count_nodes())


def _add_in_order(parts: Sequence[Tensor], out: Tensor) -> None:
    total, *others, last = parts
    for part in others:
        total.add_(part)
    torch.add(total, last, out=out)


def _swap(
    outgoing: Sequence[Tensor],
    group: Sequence[int],
    incoming: Sequence[Tensor] | None = None,
    tag: int = 0,
) -> list[Tensor]:
    """Send one tensor to each member and return what each sent to this node, in their order.

    Args:
        incoming: what to receive into; None: new tensors as that for this node itself.
    """
    place = group.index(_this_node())
    local = outgoing[place]
    arrived = list(incoming or (torch.empty_like(local) for _ in group))
    arrived[place] = local
    pairs = [
        (outgoing[number].contiguous(), arrived[number], member)
        for number, member in enumerate(group)
        if number != place
    ]
    _wait(_send_and_receive(pairs, tag))
    return arrived


def _send_and_receive(pairs: Sequence[tuple[Tensor, Tensor, int]], tag: int = 0) -> list[Any]:
    group = _group.get()
    if group is None:
        # One batch: nccl would send one by one, and all nodes would wait for a receiver.
        operations = [
            dist.P2POp(operation, tensor, member, tag=tag)
            for out, into, member in pairs
            for operation, tensor in ((dist.isend, out), (dist.irecv, into))
        ]
        return dist.batch_isend_irecv(operations) if operations else []
    # A group that does not belong to the world has no global ranks, which torch's functions take.
    return [
        work
        for out, into, member in pairs
        for work in (group.send([out], member, tag), group.recv([into], member, tag))
    ]


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        work.wait()


def _where_it_can_be_sent(tensor: Tensor) -> Tensor:
    """Return a tensor, or its copy on the CPU if its device cannot communicate.

    Replicas communicate by gloo, which sends no tensor of a GPU to a single node.
    """
    by_nccl = tensor.device.type == "cuda" and _group.get() is None
    return tensor if by_nccl else tensor.cpu()


@contextmanager
def _communicable(tensor: Tensor) -> Iterator[Tensor]:
    there = _where_it_can_be_sent(tensor)
    yield there
    if there is not tensor:
        tensor.copy_(there)
