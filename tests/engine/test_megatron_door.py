"""One door to Megatron-Core."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

import mimokit
from mimokit.engine import megatron

PACKAGE = Path(mimokit.__file__).parent


def _imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


def test_only_the_door_imports_megatron():
    doors = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(name.split(".")[0] == "megatron" for name in _imports(path))
    ]
    assert doors == ["engine/megatron.py"]


def test_the_door_answers_for_a_missing_cuda():
    if not megatron.CPU_ONLY:
        assert torch.cuda.current_device() == 0
        return
    assert torch.cuda.current_device() == torch.device("cpu")
    torch.cuda.synchronize()
    torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())


def test_the_compiler_is_back_after_the_import():
    assert torch.compile.__module__ == "torch"
