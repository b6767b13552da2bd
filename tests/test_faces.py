"""The public names of the packages: lazy, and the same whatever was imported before."""

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path
from types import GenericAlias, ModuleType, UnionType
from typing import Literal

import pytest

from mimokit.lazy import lazy_names
from tests.rows import rows

LITERAL: type = type(Literal[0])
FACES = (
    "mimokit",
    "mimokit.analysis",
    "mimokit.architecture",
    "mimokit.charts",
    "mimokit.cli",
    "mimokit.cluster",
    "mimokit.config",
    "mimokit.engine",
    "mimokit.experiment",
    "mimokit.planning",
    "mimokit_widgets",
)


def hidden_names(face: ModuleType) -> set[str]:
    """Return the public names that a submodule takes over once it is imported."""
    return set(face.__all__) & {module.name for module in pkgutil.iter_modules(face.__path__)}


@rows("face", *FACES)
def test_no_submodule_hides_a_public_name(face: str) -> None:
    assert not hidden_names(importlib.import_module(face))


def test_a_submodule_that_hides_a_public_name_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "planted"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from mimokit.lazy import lazy_names\n"
        "if TYPE_CHECKING:\n"
        "    from planted.verify import verify as verify\n"
        "else:\n"
        "    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)\n"
    )
    package.joinpath("verify.py").write_text("def verify() -> None: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert hidden_names(importlib.import_module("planted")) == {"verify"}


@rows("face", *FACES)
def test_every_public_name_is_its_object_after_all_submodules_are_imported(face: str) -> None:
    """Submodules of submodules set no attribute of the face."""
    package = importlib.import_module(face)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{face}.{module.name}")
    for public in package.__all__:
        value = getattr(package, public)
        assert not inspect.ismodule(value), public
        if not isinstance(value, tuple | UnionType | GenericAlias | LITERAL):  # no module
            assert value is getattr(importlib.import_module(value.__module__), public)


@rows("face", *FACES)
def test_a_face_lists_its_names_and_rejects_others(face: str) -> None:
    module = importlib.import_module(face)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=rf"module '{face}' has no attribute 'no_such_name'"):
        module.no_such_name  # noqa: B018


@rows("face", *FACES)
def test_a_face_imports_each_name_as_itself(face: str) -> None:
    """Only `import name as name` is public for type checkers."""
    module = importlib.import_module(face)
    file = module.__file__
    assert file is not None
    blocks = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    (block,) = (node for node in blocks if ast.unparse(node.test) == "TYPE_CHECKING")
    names = [
        alias
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    ]
    assert names
    assert all(alias.asname == alias.name for alias in names)
    assert {alias.name for alias in names} <= set(dir(module))


def test_rooms_of_the_package_load_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "planted_rooms"
    package.mkdir()
    file = package / "__init__.py"
    file.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from planted_rooms import room as room\n"
    )
    package.joinpath("room.py").write_text("WALLS = 4\n")
    monkeypatch.syspath_prepend(tmp_path)
    load, _, public = lazy_names("planted_rooms", str(file))
    assert load("room").WALLS == 4
    assert public == []
