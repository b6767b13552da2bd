"""A fault that would change nothing, or stay behind, is not planted in silence."""

import sys
from typing import Any

import pytest
import torch

from tests.planted import _mend, _plant

TARGET = f"{__name__}.Stepped.step"
WRAPPER = r"Below has a wrapper of Stepped\.step, .* plant the fault in a method that it calls"


@pytest.fixture
def below(monkeypatch: pytest.MonkeyPatch) -> type[torch.optim.Optimizer]:
    """Return an optimizer that inherits the method; torch wraps it for the first object."""
    named: dict[str, Any] = {"step": lambda self, closure=None: None}
    stepped = type("Stepped", (torch.optim.SGD,), named)
    monkeypatch.setattr(sys.modules[__name__], "Stepped", stepped, raising=False)
    return type("Below", (stepped,), {})


def test_a_method_that_a_subclass_has_wrapped_is_not_replaced(
    below: type[torch.optim.Optimizer],
) -> None:
    below([torch.zeros(1)])
    with pytest.raises(AssertionError, match=WRAPPER):
        _plant(TARGET, lambda original: None)


def test_a_fault_that_a_subclass_has_wrapped_is_told(below: type[torch.optim.Optimizer]) -> None:
    _plant(TARGET, lambda original: lambda self, closure=None: None)
    below([torch.zeros(1)])
    with pytest.raises(AssertionError, match=WRAPPER):
        _mend(TARGET)
