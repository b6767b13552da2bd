"""Who reaches the store of a world cannot take the place of a rank."""

from datetime import timedelta

import pytest
import torch.distributed as dist

from mimokit.cluster.worker.signed_store import SignedStore

KEY = bytes(32)


def test_ranks_read_what_ranks_have_written_under_that_name() -> None:
    board = dist.HashStore()
    SignedStore(board, KEY).set("0", b"an address")
    reader = SignedStore(board, KEY)
    assert reader.get("0") == b"an address"
    board.set("1", board.get("0"))
    with pytest.raises(RuntimeError, match="'1' in the store of this world was not written by"):
        reader.get("1")
    with pytest.raises(RuntimeError, match="not written by"):
        SignedStore(board, b"another").get("0")


def test_a_clone_of_a_store_is_signed_too() -> None:
    limit = timedelta(seconds=10)
    board = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    store = SignedStore(board, KEY)
    clone = dist.PrefixStore("world", store).clone()
    clone.set("0", "an address")
    assert store.get("world/0") == b"an address"
    board.set("world/0", "a stranger's address")
    with pytest.raises(RuntimeError, match="not written by"):
        clone.get("0")


def test_gloo_does_not_connect_to_the_address_of_a_stranger() -> None:
    board = dist.HashStore()
    for name in ("1", "0/1"):  # of rank 1, in one version of torch or another
        board.set(name, b"an address")
    limit = timedelta(seconds=10)
    with pytest.raises(RuntimeError, match="not written by one of its ranks"):
        dist.ProcessGroupGloo(SignedStore(board, KEY), 0, 2, limit)
