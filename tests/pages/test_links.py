"""Every page is in the menu, every link leads somewhere, and nothing is loaded from the network."""

import re
from pathlib import Path

import nbformat
import pytest
from ruamel.yaml import YAML

from make.notebooks.page import WIDGET
from make.site import commands, pictures, python_reference, tutorials
from make.site.check import loaded_from_elsewhere
from tests.rows import rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GENERATED = {
    "commands.md",
    "changelog.md",
    "security.md",
    "python/index.md",
    *(f"python/{package}.md" for package in python_reference.PACKAGES),
    *(f"pictures/{name}.svg" for name in pictures.PICTURES),
    *(f"pictures/{name}.html" for name in pictures.VIEWS),
    *(f"tutorials/{notebook.stem}.md" for notebook in tutorials.notebooks()),
}
"""Files that `make docs` adds to those of `docs/`."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def broken_links(page: Path, text: str) -> list[str]:
    return [link for link in LINK.findall(CODE.sub("", text)) if not leads_somewhere(page, link)]


def leads_somewhere(page: Path, link: str) -> bool:
    if link.startswith(("http:", "https:")):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if target.is_relative_to(DOCS) and target.relative_to(DOCS).as_posix() in GENERATED:
        return page.is_relative_to(DOCS) and not anchor  # a file only on the built pages
    return target.exists() and (not anchor or anchor in anchors(target.read_text()))


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", text), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


@rows("page", *ROOT.glob("*.md"), *DOCS.rglob("*.md"))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


@rows("link", "gone.md", "start.md#gone", "tutorials/99_gone.md", "python/gone.md", "gone.webp")
def test_a_link_to_nothing_is_found(link: str) -> None:
    assert broken_links(DOCS / "start.md", f"See [this]({link}).") == [link]


def test_the_menu_names_every_page_once() -> None:
    menu = pages_in(YAML(typ="safe").load(ROOT / "mkdocs.yml")["nav"])
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    wanted = there | {page for page in GENERATED if page.endswith(".md")}
    assert sorted(menu) == sorted(wanted), "a page under docs/ has a line under `nav` in mkdocs.yml"


def pages_in(entry: object) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    inner = entry.values() if isinstance(entry, dict) else entry
    return [page for each in inner for page in pages_in(each)]  # type: ignore[attr-defined]


@rows(
    "file, content",
    ("page.html", '<link rel="stylesheet" href="https://fonts.example/css">'),
    ("page.html", '<script src="https://cdn.example/mathjax.js"></script>'),
    ("look.css", "@import '//cdn.example/more.css';"),
    ("look.css", ".logo { background: url(https://cdn.example/logo.png) }"),
)
def test_what_a_page_loads_from_elsewhere_is_found(tmp_path: Path, file: str, content: str) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="https://pytorch.org">a link</a><img src="a.png">'
    )
    assert loaded_from_elsewhere(tmp_path) == []
    (tmp_path / file).write_text(content)
    (told,) = loaded_from_elsewhere(tmp_path)
    assert told.startswith(f"{file} loads ")
    assert "example" in told


def test_every_command_and_public_name_has_its_place() -> None:
    page = commands.page()
    assert "\n## `mimokit verify`" in page
    assert "`--tolerance <float>`" in page
    names = python_reference.home_of_names("mimokit.experiment")
    assert names["train"] == "mimokit.experiment.training.train"


def test_a_notebook_becomes_a_page_with_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(ROOT / "notebooks" / "01_first_light.ipynb", 4)
    (cell,) = [cell for cell in notebook.cells if cell.source.endswith("BatchSplit(plan)")]
    chart = {"image/svg+xml": "<svg/>", "text/plain": "<chart: of ranks>"}
    table = {"text/html": "<table>\n\n</table>", "text/plain": "a table"}
    view = {WIDGET: {}, "text/plain": "<LayoutPlanner object at 0x7f>"}
    bundles = (chart, table, view)
    cell.outputs = [nbformat.v4.new_output("display_data", bundle) for bundle in bundles]
    nbformat.write(notebook, tmp_path / "01_first_light.ipynb")
    monkeypatch.setattr(tutorials, "EXECUTED", tmp_path)
    made = tutorials.pages_of(ROOT / "notebooks" / "01_first_light.ipynb")
    page = str(made["tutorials/01_first_light.md"])
    assert page.startswith("# First light\n")
    assert "](../" not in page
    assert "<table>\n</table>" in page  # a blank line would end it
    assert "object at" not in page
    (picture,) = [path for path in made if path.endswith(".svg")]
    assert f"({Path(picture).name})" in page


def test_the_page_on_fan_in_shows_the_stepper_of_the_notebook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorials, "EXECUTED", tmp_path)
    assert "was not executed" in str(tutorials.fan_in())
    notebook = nbformat.read(ROOT / "notebooks" / tutorials.FAN_IN, 4)
    (cell,) = [cell for cell in notebook.cells if "StepperView(stepper, " in cell.source
               and "fan-in" in cell.metadata.get("tags", [])]  # fmt: skip
    bundles = {WIDGET: {}}, {"text/html": "<div>alive</div>"}
    cell.outputs = [nbformat.v4.new_output("display_data", bundle) for bundle in bundles]
    nbformat.write(notebook, tmp_path / tutorials.FAN_IN)
    ((name, page),) = tutorials.fan_in().items()
    assert str(page).endswith("<body><div>alive</div>")
    assert f'src="{name}"' in (DOCS / "stepper.md").read_text()


def test_a_notebook_that_was_not_executed_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tutorials, "EXECUTED", tmp_path)
    made = tutorials.pages_of(ROOT / "notebooks" / "06_predict_and_search.ipynb")
    assert "It was not executed for these pages" in str(made["tutorials/06_predict_and_search.md"])
