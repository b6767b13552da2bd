"""Arithmetic of a device that tests do not have."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mimokit.engine.verify import compare, oracle

SWITCHES: tuple[Any, ...] = torch.backends.cuda.matmul, torch.backends.cudnn


@pytest.fixture
def with_tf32() -> Iterator[None]:
    before = [switch.allow_tf32 for switch in SWITCHES]
    for switch in SWITCHES:
        switch.allow_tf32 = True
    yield
    for switch, allowed in zip(SWITCHES, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.usefixtures("with_tf32")
@pytest.mark.parametrize("checker", [compare.compare_on_rank, oracle.run_oracle])
def test_what_verifies_computes_without_tf32_and_leaves_the_switches(checker: object) -> None:
    seen: list[list[bool]] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            seen.append([switch.allow_tf32 for switch in SWITCHES])
            raise RuntimeError("stopped at the first look")

    with pytest.raises(RuntimeError, match="stopped"):
        checker(Watched(), Watched(), None, [])  # type: ignore[operator]
    assert seen[0] == [False, False]
    assert [switch.allow_tf32 for switch in SWITCHES] == [True, True]
