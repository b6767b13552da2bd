"""Tags of 31 bits and messages whose shapes travel ahead."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mimokit.engine.pipeline.messages import decode_header, encode_header
from mimokit.planning.message_tags import FIELD_BITS, Tag

FIELDS = [st.integers(0, (1 << bits) - 1) for _, bits in FIELD_BITS]


def test_fields_fill_31_bits():
    assert sum(bits for _, bits in FIELD_BITS) == 31
    largest = Tag(*((1 << bits) - 1 for _, bits in FIELD_BITS))
    assert largest.encode() == 2**31 - 1


@given(st.tuples(*FIELDS), st.tuples(*FIELDS))
def test_different_messages_have_different_tags(one, other):
    assert Tag.decode(Tag(*one).encode()) == Tag(*one)
    assert (Tag(*one).encode() == Tag(*other).encode()) == (one == other)


@pytest.mark.parametrize(("name", "bits"), FIELD_BITS)
def test_what_does_not_fit_is_refused(name, bits):
    fields = dict.fromkeys((name for name, _ in FIELD_BITS), 0)
    for value in (1 << bits, -1):
        with pytest.raises(ValueError, match=f"{1 << bits} values of {name}.*{value} does not"):
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

    from mimokit.engine.pipeline.messages import Mailbox
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
