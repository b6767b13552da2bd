"""Every name that tests replace is in `tests/seams.py`, is there in the product, and is used."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import seams
from tests.planted import find

ROOT = Path(__file__).parents[1]
FOLDERS = [ROOT, ROOT / "widgets", *map(Path, sys.path)]
DOTTED = re.compile(r"(mimokit|mimokit_widgets|megatron\.core)(\.\w+)+\.?")
QUOTED = re.compile(r"[\"'](mimokit|mimokit_widgets|megatron\.core)\.")
"""What a file that names something in a text has; to look at all others takes seconds."""
ABOUT_NAMES = {
    ROOT / "tests" / name
    for name in ("seams.py", "test_seams.py", "test_names.py", "pages/test_links.py")
}
"""The list, its tests, and tests of where the pages say that names are."""


def all_seams() -> dict[str, str]:
    """Return what tests replace, by its short name."""
    return {name: value for name, value in vars(seams).items() if name.isupper()}


def is_module(dotted: str) -> bool:
    """Whether a name is that of a module or a package, which is not imported."""
    paths = [folder / dotted.replace(".", "/") for folder in FOLDERS]
    return any(path.is_dir() or path.with_suffix(".py").is_file() for path in paths)


def names_in(source: str) -> Iterator[str]:
    """Yield strings that name what is in a module, and beginnings of such strings."""
    if not QUOTED.search(source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value
            if DOTTED.fullmatch(name) and (name.endswith(".") or not is_module(name)):
                yield name


def sources() -> dict[Path, str]:
    """Return the tests and benchmarks."""
    found = (file for folder in ("tests", "benchmarks") for file in (ROOT / folder).rglob("*.py"))
    return {file: file.read_text() for file in found if file not in ABOUT_NAMES}


def missing(name: str) -> str:
    """Return which seam is not where it is said to be; nothing if it is there."""
    try:
        owner, attribute = find(name)
    except (ImportError, AttributeError) as error:
        return f"{name}: {error}"
    # `planted` replaces what a class defines, not what it inherits.
    there = attribute in vars(owner) if inspect.isclass(owner) else hasattr(owner, attribute)
    return "" if there else f"{name}: {owner} has no {attribute}"


def test_every_seam_is_there() -> None:
    assert not list(filter(None, map(missing, all_seams().values())))


def test_a_seam_that_has_moved_is_found() -> None:
    assert not missing("mimokit.units.counted")
    assert missing("mimokit.units.no_such_function").endswith("has no no_such_function")
    assert "no_such_module" in missing("mimokit.no_such_module.Class.method")
    assert missing("mimokit.units.NoSuchClass.method")
    assert missing("mimokit.config.ExperimentConfig.__init_subclass__"), "it is inherited"


def test_each_seam_is_listed_once() -> None:
    values = list(all_seams().values())
    assert len(set(values)) == len(values)


def test_no_test_names_what_it_replaces_itself() -> None:
    found = [f"{file.relative_to(ROOT)}: {name}" for file, source in sources().items()
             for name in names_in(source)]  # fmt: skip
    assert not found, "give it a name in tests/seams.py"


def test_a_name_outside_of_the_list_is_found() -> None:
    planted = """
STAGES = "mimokit.engine.pipeline.stages."
with planted(cluster, "mimokit.units.counted", wrong, 2):
    monkeypatch.setattr(f"mimokit.engine.training.monitor.{mark}", now)
    monkeypatch.setattr("megatron.core.transformer.mlp.MLP.forward", now)
subprocess.run([sys.executable, "-m", "mimokit.cli.main", "mimokit_widgets.live.rows"])
logging.getLogger("megatron.core.models.gpt.gpt_model")
"""
    assert sorted(names_in(planted), key=planted.index) == [
        "mimokit.engine.pipeline.stages.",
        "mimokit.units.counted",
        "mimokit.engine.training.monitor.",
        "megatron.core.transformer.mlp.MLP.forward",
    ]


def test_every_seam_is_used() -> None:
    used = {
        node.attr
        for source in sources().values()
        if "seams." in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id == "seams"
    }
    assert not set(all_seams()) - used
