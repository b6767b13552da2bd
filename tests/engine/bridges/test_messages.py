"""Tags of 31 bits and messages whose shapes travel ahead."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mimokit
from mimokit.engine.bridges import messages
from mimokit.engine.bridges.messages import decode_header, encode_header
from mimokit.engine.pipeline import communicator
from mimokit.planning.message_tags import FIELD_BITS, Tag
from mimokit.planning.schedule import ScheduleError
from tests.layouts_apart import apart_config
from tests.rows import rows

FIELDS = [st.integers(0, (1 << bits) - 1) for _, bits in FIELD_BITS]


def test_fields_fill_31_bits():
    assert sum(bits for _, bits in FIELD_BITS) == 31
    largest = Tag(*((1 << bits) - 1 for _, bits in FIELD_BITS))
    assert largest.encode() == 2**31 - 1


@given(st.tuples(*FIELDS), st.tuples(*FIELDS))
def test_different_messages_have_different_tags(one, other):
    assert Tag.decode(Tag(*one).encode()) == Tag(*one)
    assert (Tag(*one).encode() == Tag(*other).encode()) == (one == other)


@rows("name, bits", *FIELD_BITS)
def test_what_does_not_fit_is_refused(name, bits):
    fields = dict.fromkeys((name for name, _ in FIELD_BITS), 0)
    for value in (1 << bits, -1):
        with pytest.raises(ValueError, match=f"{1 << bits:,} values of {name}.*{value} does not"):
            Tag(**{**fields, name: value}).encode()


def test_a_header_describes_what_follows():
    tensors = [torch.zeros(3, 2, 5), torch.zeros(4, dtype=torch.int64), torch.zeros(0, 7)]
    described = decode_header(encode_header(tensors), torch.device("cpu"))
    assert [(t.shape, t.dtype) for t in described] == [(t.shape, t.dtype) for t in tensors]


def test_too_many_tensors_are_refused():
    with pytest.raises(ValueError, match="at most 6 tensors, not 7"):
        encode_header([torch.zeros(1)] * 7)
    with pytest.raises(ValueError, match=r"bool and shape \(2,\) cannot be sent"):
        encode_header([torch.zeros(2, dtype=torch.bool)])


def _exchange():
    """Both ranks send first, several messages, and receive them in another order."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.planning.message_tags import Tag

    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mailbox = Mailbox(torch.device("cpu"))
    for microbatch in range(4):
        rows = torch.full((microbatch, 3), float(10 * rank + microbatch))
        numbers = torch.arange(microbatch + 1)
        mailbox.send([rows, numbers], other, Tag(0, 0, microbatch))
    found = {}
    for microbatch in (2, 0, 3, 1):
        rows, numbers = mailbox.receive(other, Tag(0, 0, microbatch))
        found[microbatch] = (list(rows.shape), rows.sum().item(), numbers.tolist())
    mailbox.wait()
    return found


def test_messages_arrive_whole_whatever_the_order(cluster):
    for rank, found in enumerate(cluster.run(_exchange, world_size=2)):
        for microbatch, (shape, total, numbers) in found.items():
            assert shape == [microbatch, 3]
            assert total == 3 * microbatch * (10 * (1 - rank) + microbatch)
            assert numbers == list(range(microbatch + 1))


@pytest.mark.parametrize("backend", ["cpu:gloo,cuda:nccl", "cpu:gloo,cuda:gloo"])
def test_with_nccl_every_edge_has_a_group_per_direction(monkeypatch, backend):
    """It ignores tags, and a group's messages wait for each other: no two kinds may share one."""
    made, posted = [], []

    def new_group(**_):
        made.append(len(made))
        return made[-1]

    monkeypatch.setattr(communicator, "rank_device", lambda: torch.device("cuda"))
    monkeypatch.setattr(communicator, "group_timeout", lambda: None)
    monkeypatch.setattr(communicator.dist, "get_backend_config", lambda: backend)
    monkeypatch.setattr(communicator.dist, "new_group", new_group)
    plan = mimokit.plan(apart_config((1, 1, 1), (1, 2, 1), 2))
    mailbox = communicator.new_mailbox(plan)

    def post(tensor, rank, group, tag):
        tag = Tag.decode(tag)
        posted.append(((tag.edge, tag.direction), group))
        return object()

    monkeypatch.setattr(messages.dist, "isend", post)
    monkeypatch.setattr(messages.dist, "irecv", post)
    for edge in plan.program.graph.edges:
        for direction in (0, 1):
            for microbatch in (0, 1):
                tag = Tag(direction, edge.index, microbatch)
                mailbox._start_sending(torch.zeros(1), 1, tag)
                mailbox.ask_for(torch.zeros(1), 1, tag)
    groups = {kind: {group for one, group in posted if one == kind} for kind, _ in posted}
    assert len(groups) == 4
    assert all(len(used) == 1 for used in groups.values())
    assert len(set.union(*groups.values())) == (4 if "nccl" in backend else 1)

    def of_edges(_):
        raise ScheduleError("ranks wait for each other")

    monkeypatch.setattr(communicator, "check_messages", of_edges)
    if "nccl" in backend:
        with pytest.raises(ScheduleError):
            communicator.new_mailbox(plan)
    else:
        communicator.new_mailbox(plan)
