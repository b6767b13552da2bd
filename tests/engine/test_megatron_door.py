"""One door to Megatron-Core."""

import ast
import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mimokit
from mimokit.config.user_modules import _directory_of
from mimokit.engine import megatron
from mimokit.engine.megatron.versions import NEWEST, OLDEST, UNTESTED_ALLOWED, check_version
from tests.rows import rows

PACKAGE = Path(mimokit.__file__).parent
ROOTS = (PACKAGE, PACKAGE.parent / "widgets" / "mimokit_widgets")
DOOR = "mimokit.engine.megatron"
LIGHT = ("torch", "numpy")
"""Modules that a process which must stay light may look up in `sys.modules`."""
CHANGE_MODULES = ("mimokit/config/user_modules.py", "mimokit/charts/_renderer.py")
"""The files that take modules out of `sys.modules` or put them in: those of the user's, and one
that jsonschema imports; never Megatron's."""


NAMED = re.compile(r"\bmegatron\b|\bsys\b")
"""What a module that goes past the door has in its text; to look at all others takes seconds."""


def _from_megatron(module: str) -> bool:
    return module.split(".")[0] == "megatron" or f"{module}.".startswith(f"{DOOR}.")


def _root(node: ast.expr) -> str | None:
    """Return the variable that an attribute, or an attribute of one, is taken from."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        targets = list(node.targets)
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    else:
        return
    for target in targets:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _names_of_megatron(tree: ast.AST) -> set[str]:
    """Return the variables that name something of Megatron's, aliases of them included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if _from_megatron(node.module) or f"{node.module}.{alias.name}" == DOOR:
                    names.add(alias.asname or alias.name)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _from_megatron(alias.name):
                    names.add(alias.asname or alias.name.split(".")[0])
    before: set[str] = set()
    while before != names:
        before = set(names)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
                named = [target.id for target in node.targets if isinstance(target, ast.Name)]
                names |= set(named) if _root(node.value) in names else set()
    return names - {"mimokit"}


def _literal(node: ast.Call, place: int) -> str | None:
    value = node.args[place] if len(node.args) > place else None
    return value.value if isinstance(value, ast.Constant) and type(value.value) is str else None


def breaches(source: str) -> list[str]:
    """Return what a module does that only the door may do: "line: import, patch or sys.modules"."""
    if not NAMED.search(source):
        return []
    tree = ast.parse(source)
    theirs = _names_of_megatron(tree)
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
            if node.module == "sys" and any(alias.name == "modules" for alias in node.names):
                found.append(f"{line}: sys.modules")
        else:
            names = []
        if any(name.split(".")[0] == "megatron" for name in names):
            found.append(f"{line}: import")
        for target in _targets(node):
            if isinstance(target, ast.Attribute | ast.Subscript) and _root(target) in theirs:
                found.append(f"{line}: patch")
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("setattr", "delattr") and node.args and _root(node.args[0]) in theirs:
                found.append(f"{line}: patch")
            named = called in ("import_module", "__import__") and _literal(node, 0)
            if named and named.split(".")[0] == "megatron":
                found.append(f"{line}: import")
    return found + [f"{line}: sys.modules" for line in _looked_up(tree)]


def _looked_up(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that take `sys.modules`, except for a light look-up of a named module."""
    light = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and _literal(node, 0) in LIGHT
    }
    for node in ast.walk(tree):
        taken = isinstance(node, ast.Attribute) and node.attr == "modules" and _root(node) == "sys"
        if taken and id(node) not in light:
            yield node.lineno


def test_only_the_door_touches_megatron():
    found = {
        path.relative_to(root.parent).as_posix(): breaches(path.read_text())
        for root in ROOTS
        for path in root.rglob("*.py")
    }
    for path in CHANGE_MODULES:
        assert {line.partition(": ")[2] for line in found.pop(path)} == {"sys.modules"}
    assert _directory_of("megatron.core") is None, "so that it is not forgotten"
    folders = {path.rpartition("/")[0] for path, lines in found.items() if lines}
    assert folders == {"mimokit/engine/megatron"}, {path: found[path] for path in sorted(found)}


@rows(
    "source, breach",
    ("import megatron.core", "1: import"),
    ("from megatron.core import parallel_state", "1: import"),
    ("def f():\n    import megatron.core.parallel_state as state", "2: import"),
    ("from importlib import import_module\nimport_module('megatron.core')", "2: import"),
    ("__import__('megatron')", "1: import"),
    (f"from {DOOR} import parallel_state\nparallel_state._GROUP = None", "2: patch"),
    (f"from {DOOR} import parallel_state as s\ns.a.b, x = 1, 2", "2: patch"),
    (f"from {DOOR} import GPTModel\nGPTModel.forward = lambda self: None", "2: patch"),
    (f"import {DOOR} as door\ndoor.parallel_state._GROUP = None", "2: patch"),
    (f"from {DOOR}.state import parallel_state\nparallel_state._GROUP = None", "2: patch"),
    ("from mimokit.engine import megatron\nmegatron.GPTModel.forward = print", "2: patch"),
    (f"from {DOOR} import tensor_parallel\nmine = tensor_parallel.random\nmine.a += 1",
     "3: patch"),
    (f"from {DOOR} import parallel_state\nsetattr(parallel_state, '_GROUP', 1)", "2: patch"),
    (f"from {DOOR} import parallel_state\ndel parallel_state._GROUP", "2: patch"),
    (f"from {DOOR} import parallel_state\nparallel_state.__dict__['_GROUP'] = 1", "2: patch"),
    ("import sys\nsys.modules.get('megatron.core.parallel_state')", "2: sys.modules"),
    ("import sys\nsys.modules['megatron.core'].x = 1", "2: sys.modules"),
    ("from sys import modules", "1: sys.modules"),
    ("import sys\nfor name in sys.modules: print(name)", "2: sys.modules"),
)  # fmt: skip
def test_the_check_sees_each_way_past_the_door(source: str, breach: str):
    assert breaches(source) == [breach]


def test_the_check_lets_ordinary_code_pass():
    source = f"""
    import sys
    from {DOOR} import GPTModel, ProcessGroupCollection
    class Mine(GPTModel):
        def __init__(self):
            self.size = GPTModel.size
    groups = ProcessGroupCollection()
    groups.embd = None
    torch = sys.modules.get("torch")
    """
    assert breaches(inspect.cleandoc(source)) == []


def test_the_door_answers_for_a_missing_cuda():
    if not megatron.CPU_ONLY:
        assert torch.cuda.current_device() == 0
        return
    assert torch.cuda.current_device() == torch.device("cpu")
    torch.cuda.synchronize()
    torch.cuda.default_stream().wait_stream(torch.cuda.current_stream())


def test_megatron_makes_its_causal_mask_on_the_device_of_the_process():
    from megatron.core.fusions.fused_softmax import get_default_causal_mask

    assert get_default_causal_mask(2).tolist() == [[False, True], [False, False]]


def test_only_the_deprecation_of_gpt_model_is_kept_quiet(caplog: pytest.LogCaptureFixture):
    logger = logging.getLogger("megatron.core.models.gpt.gpt_model")
    logger.warning("GPTModel IS DEPRECATED. GPTModel is only accepting critical bug fixes")
    logger.warning("anything else")
    assert caplog.messages == ["anything else"]


@rows("installed", OLDEST, "0.17.1", NEWEST, f"{NEWEST}+local")
def test_tested_versions_of_megatron_pass(installed: str):
    check_version(installed, {})


@pytest.mark.parametrize("installed", ["0.15.3", "0.19.3", "0.20.0rc1", "1.0", "not a version"])
def test_other_versions_of_megatron_go_on_only_if_told_to(
    installed: str, capsys: pytest.CaptureFixture[str]
):
    named = f"megatron-core {installed} is installed, but mimokit is tested with 0.16.1 to 0.19.2"
    with pytest.raises(ImportError, match=f"^{re.escape(named)}: .*{UNTESTED_ALLOWED}=1"):
        check_version(installed, {UNTESTED_ALLOWED: ""})
    check_version(installed, {UNTESTED_ALLOWED: "1"})
    assert capsys.readouterr().err == f"{named}; going on, as {UNTESTED_ALLOWED}=1 says.\n"


def test_the_compiler_is_back_after_the_import():
    assert torch.compile.__module__ == "torch"


def test_megatron_forgets_a_world_that_is_left(monkeypatch: pytest.MonkeyPatch):
    from mimokit.cluster.rank import call_on_leave

    state = megatron.parallel_state
    megatron.ensure_memory_buffer()
    buffer = state._GLOBAL_MEMORY_BUFFER
    monkeypatch.setattr(state, "_TENSOR_MODEL_PARALLEL_GROUP", object())
    call_on_leave()
    assert state._TENSOR_MODEL_PARALLEL_GROUP is None
    assert state._GLOBAL_MEMORY_BUFFER not in (None, buffer)  # a new one, for the next world
