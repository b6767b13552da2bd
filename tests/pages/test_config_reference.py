"""The reference of config fields comes from the classes and is complete."""

from pathlib import Path

from mimokit.config.base import ConfigModel
from mimokit.config.field_docs import field_docs
from tests.pages.config_reference import SECTIONS, reference
from tests.rows import rows

PAGE = Path(__file__).parents[2] / "docs" / "config.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run make docs"


def test_every_config_class_has_a_section() -> None:
    def classes(base: type[ConfigModel]) -> set[type[ConfigModel]]:
        below = base.__subclasses__()
        return {one for one in below if not one.__subclasses__()}.union(*map(classes, below))

    in_config = {one for one in classes(ConfigModel) if one.__module__.startswith("mimokit.config")}
    assert in_config == set(SECTIONS.values())


@rows("section", *SECTIONS.values())
def test_every_field_is_documented_where_it_stands(section: type[ConfigModel]) -> None:
    undocumented = [name for name in section.model_fields if not field_docs(section).get(name)]
    assert undocumented == []
