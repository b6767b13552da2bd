"""What stages hand each other crosses whole, whichever of its fields are known."""

from itertools import product
from typing import Any

import pytest
import torch

from mimokit.engine.bridges.messages import described, encode_header
from mimokit.engine.ragged import FIELDS, ON_HOST, Ragged

OPTIONAL: dict[str, Any] = {
    "samples": [3, 0, 2],
    "items": [1, 0, 2],
    "sizes": torch.tensor([[1, 3, 1], [1, 1, 1], [1, 1, 1]]),
    "positions": torch.arange(15).reshape(3, 1, 5),
}


def _all_of_them() -> list[Ragged]:
    chosen = product((False, True), repeat=len(OPTIONAL))
    known = [dict(zip(OPTIONAL, which, strict=True)) for which in chosen]
    tensor = torch.arange(10.0).reshape(5, 2)
    return [
        Ragged(tensor, **{name: OPTIONAL[name] for name in OPTIONAL if which[name]})
        for which in known
    ]


def _same(one: Ragged, other: Ragged) -> bool:
    alike = [
        torch.equal(own, theirs) if isinstance(own, torch.Tensor) else own == theirs
        for own, theirs in ((getattr(one, name), getattr(other, name)) for name in one.known)
    ]
    return one.known == other.known and all(alike)


def test_its_parts_are_tensors_with_numbers_of_the_host_at_the_end() -> None:
    for ragged in _all_of_them():
        parts = ragged.parts()
        assert list(parts) == [name for name in FIELDS if name in parts]
        assert _same(Ragged.of_parts(parts), ragged)
    assert FIELDS[-2:] == ON_HOST


def test_a_header_says_what_is_known_of_it() -> None:
    for ragged in _all_of_them():
        parts = ragged.parts()
        shapes = described(encode_header(list(parts.values()), list(parts)))
        assert shapes.known == ragged.known
        assert shapes.tensor.is_meta
        for name in ("tensor", "sizes", "positions"):
            if (own := getattr(ragged, name)) is not None:
                assert getattr(shapes, name).shape == own.shape
        for name in ON_HOST:
            if (numbers := getattr(ragged, name)) is not None:
                assert getattr(shapes, name) == [0] * len(numbers)


def test_a_bridge_cuts_rows_by_samples_and_sizes_by_items() -> None:
    ragged = Ragged(torch.arange(5.0), [3, 0, 2], [1, 0, 2], OPTIONAL["sizes"])
    assert _same(Ragged.of_kinds(*ragged.kinds(2)), ragged)
    assert _same(Ragged.of_kinds(*ragged.kinds(1)), Ragged(ragged.tensor, ragged.samples))
    with pytest.raises(AssertionError, match="rows that cross are counted"):
        Ragged(ragged.tensor).kinds(1)


def _exchange() -> list[bool]:
    """Send all of them to the other rank, and receive the last one first."""
    import torch
    import torch.distributed as dist

    from mimokit.engine.bridges.messages import Mailbox
    from mimokit.planning.message_tags import Tag
    from tests.engine.test_ragged import _all_of_them, _same

    mailbox, other = Mailbox(torch.device("cpu")), 1 - dist.get_rank()
    sent = _all_of_them()
    for number, ragged in enumerate(sent):
        mailbox.send_message(ragged, other, Tag(0, 0, number))
    received = {
        number: mailbox.receive_message(other, Tag(0, 0, number))
        for number in reversed(range(len(sent)))
    }
    mailbox.wait()
    return [_same(received[number], ragged) for number, ragged in enumerate(sent)]


def test_messages_arrive_with_their_names(cluster: Any) -> None:
    assert cluster.run(_exchange, world_size=2) == [[True] * len(_all_of_them())] * 2
