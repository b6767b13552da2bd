"""The tests of what has changed since the main branch: `python -m tests.changed` runs them.

Without engines, browser and notebooks (`tests/engines_off.py`). `make test` runs everything.

A changed module selects the tests of its room, or of the folder in it that has the same name, and
the test files that import the module by its name, also through what tests share. What merely
depends on it is left out: nearly everything depends on `mimokit.config`, so that a rule in it would
select the suite. For the same reason a name that is imported from a package does not select: it is
how tests of other rooms come by their inputs.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.commands import run_to_end

ROOT = Path(__file__).parents[1]
MAINS = ("origin/main", "main")
NOTHING_LEFT = 5
"""What pytest returns where it has deselected all tests: they need engines."""
OTHERS = {
    "mimokit/__init__.py": "tests/test_faces.py",
    "tests/conftest.py": "tests/test_scheduling.py",
    "README.md": "tests/pages",
    "CHANGELOG.md": "tests/pages",
    "CONTRIBUTING.md": "tests/pages",
    "llms.txt": "tests/pages",
    "mkdocs.yml": "tests/pages",
    "docs": "tests/pages",
    "configs": "tests/config_files",
    "widgets": "tests/widgets",
    "make": "tests/test_types_script.py",
    "pyproject.toml": "tests/test_rooms.py",
    "constraints": "tests/test_rooms.py",
}
"""A file or folder that is in no room -> its tests."""
WITHOUT_ENGINES = ("tests/browser", "tests/notebooks")
"""What is never selected, as all of it needs a browser or a kernel."""


def changed_files(root: Path = ROOT) -> list[str]:
    """Return the files that differ from where this branch left main, new ones too."""
    base = next(filter(None, (_git(root, "merge-base", "HEAD", main) for main in MAINS)), "HEAD")
    differ = _git(root, "diff", "--name-only", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*differ.splitlines(), *new.splitlines()})


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "core.quotePath=false", *arguments]
    done = run_to_end(command, cwd=root)
    return done.stdout.strip() if done.returncode == 0 else ""


def selected_by(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files that files select, relative to the root."""
    imports = imports_of_tests(root)
    selected: set[str] = set()
    for file in changed:
        for place in (*_mirrored(file, root), file):
            selected |= _tests_in(root / place, root)
        selected |= _importers(_module(file), imports)
    return sorted(file for file in selected if not file.startswith(WITHOUT_ENGINES))


def imports_of_tests(root: Path) -> dict[str, set[str]]:
    """Return which modules each file of the tests imports by name."""
    return {
        file.relative_to(root).as_posix(): set(_imported(ast.parse(file.read_text())))
        for folder in ("tests", "benchmarks")
        for file in (root / folder).rglob("*.py")
    }


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            # `from package import module`; of names that are no modules there is no file
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _importers(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return the test files that import a module, or something of the tests that does."""
    found: set[str] = set()
    wanted = [module] if module else []
    while wanted:
        module = wanted.pop()
        for file, imported in imports.items():
            if module in imported and file not in found:
                found.add(file)
                wanted.append(_module(file))
    return {file for file in found if _is_test(file)}


def _module(file: str) -> str:
    """Return the name of a module; a package has none here, since all that is in it imports it."""
    path = Path(file.removeprefix("widgets/"))
    if path.suffix != ".py" or path.stem == "__init__":
        return ""
    return ".".join(path.with_suffix("").parts)


def _mirrored(file: str, root: Path) -> Iterator[str]:
    """Yield the folder of the tests that has the name of a file's, and tests named as the file."""
    first, *rest = Path(file).parts
    if file in OTHERS or first in OTHERS:
        yield OTHERS[file if file in OTHERS else first]
    elif first == "mimokit" and len(rest) == 1:
        yield f"tests/test_{rest[0]}"
    elif first == "mimokit":
        folders = [Path("tests", *rest[:depth]) for depth in range(1, len(rest))]
        yield from [folder.as_posix() for folder in folders if (root / folder).is_dir()][-1:]
    elif Path(file).name == "conftest.py":
        yield Path(file).parent.as_posix()


def _tests_in(place: Path, root: Path) -> set[str]:
    files = place.rglob("test_*.py") if place.is_dir() else [place] if place.is_file() else []
    names = {file.relative_to(root).as_posix() for file in files}
    return {name for name in names if _is_test(name)}


def _is_test(file: str) -> bool:
    return file.startswith("tests/") and Path(file).name.startswith("test_")


def main() -> int:
    """Run the tests of what has changed; return pytest's status."""
    selected = selected_by(changed_files())
    if not selected:
        print("No test belongs to what has changed.")
        return 0
    print(f"{len(selected)} test files: {' '.join(selected)}", flush=True)
    workers = "2" if len(selected) > 2 else "0"
    options = ["-q", "--numprocesses", workers, "-p", "tests.engines_off"]
    command = [sys.executable, "-m", "pytest", *options, *selected]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    return 0 if status == NOTHING_LEFT else status


if __name__ == "__main__":
    sys.exit(main())
