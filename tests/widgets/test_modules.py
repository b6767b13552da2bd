"""JavaScript files joined to one module."""

import re
from collections import Counter
from pathlib import Path

import pytest

from mimokit.charts.browser.bundle import BROWSER, imported
from mimokit_widgets import modules
from mimokit_widgets.modules import joined_modules
from tests.rows import rows

CHARTS = BROWSER.parent
ENTRIES = (
    "runs_view.js",
    "layout_planner.js",
    "frame_balance.js",
    "pareto_view.js",
    "rank_map.js",
    "batch_split.js",
    "traffic_map.js",
    "schedule_view.js",
    "stepper.js",
    "timeline_view.js",
    "sweep_monitor.js",
)
DECLARED = re.compile(
    r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+|\[[\w, ]+\]|\{[\w, ]+\})",
    re.MULTILINE,
)


@rows("entry", *ENTRIES)
def test_no_two_files_declare_the_same_name_and_no_import_is_left(entry: str) -> None:
    source = joined_modules(entry)
    declared = [name for each in DECLARED.findall(source) for name in re.findall(r"\w+", each)]
    twice = {name for name, count in Counter(declared).items() if count > 1}
    assert twice == set()
    assert re.findall(r"^\s*import .*", source, re.MULTILINE) == []
    assert source.count("export default {") == 1
    assert re.findall(r"^export (?!default)", source, re.MULTILINE) == []
    assert "http://" not in source.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in source


def test_every_imported_name_is_exported_where_it_is_said_to_be() -> None:
    for file in (*modules.HERE.glob("**/*.js"), *CHARTS.glob("**/*.js")):
        source = file.read_text()
        for names, path in re.findall(r'(?:import|export) \{([^}]*)\} from "([^"]+)"', source):
            exported = imported(file, path).read_text()
            for name in filter(None, (each.strip() for each in names.split(","))):
                assert re.search(rf"^export .*\b{name}\b", exported, re.MULTILINE), (file, name)


def test_files_come_behind_those_that_they_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "HERE", tmp_path)
    (tmp_path / "a.js").write_text(
        'import { two } from "./b.js";\nimport {\n  three,\n} from "./c.js";\n'
        "export default { two };\n"
    )
    (tmp_path / "b.js").write_text('import { three } from "./c.js";\nexport const two = three;\n')
    (tmp_path / "c.js").write_text("export const three = 3;\n")
    source = joined_modules("a.js")
    assert [line for line in source.splitlines() if not line.startswith("//") and line] == [
        "const three = 3;", "const two = three;", "export default { two };"
    ]  # fmt: skip


def test_files_that_import_each_other_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules, "HERE", tmp_path)
    (tmp_path / "a.js").write_text('import { b } from "./b.js";\n')
    (tmp_path / "b.js").write_text('import { a } from "./a.js";\n')
    with pytest.raises(ValueError, match="imports itself"):
        joined_modules("a.js")
