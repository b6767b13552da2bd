"""What MkDocs calls while it builds the pages: generated pages and pictures join those of `docs/`.

Nothing of it is written into the source tree.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "widgets")]

from make.site import check, commands, pictures, python_reference, tutorials  # noqa: E402

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig


@event_priority(100)
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated files, and the pages that lie at the root of the repository."""
    for path, content in generated().items():
        files.append(File.generated(config, path, content=content))
    return files


def on_post_build(config: MkDocsConfig) -> None:
    """Stop if a page would load something from the network."""
    found = check.loaded_from_elsewhere(Path(config.site_dir))
    if found:
        raise SystemExit("\n".join(found))


def generated() -> dict[str, str | bytes]:
    """Return path below `docs/` -> content."""
    made: dict[str, str | bytes] = {
        "commands.md": commands.page(),
        "changelog.md": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
        "security.md": (ROOT / "SECURITY.md").read_text(encoding="utf-8"),
    }
    made |= python_reference.pages()
    made |= pictures.files() | tutorials.fan_in()
    for notebook in tutorials.notebooks():
        made |= tutorials.pages_of(notebook)
    return made
