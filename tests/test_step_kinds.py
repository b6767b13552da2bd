"""The table of step kinds: what it says, and that no other list of step names is in the tree."""

import ast
import json
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

from mimokit.step_kinds import MODULE_PHASES, REMAINDER, Phase, StepKind
from tests.rows import rows

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "mimokit" / "step_kinds.py"
NAMES = {str(kind) for kind in StepKind}
DIRECTIONS = {"forward", "backward"}


def lists_of_names(source: str, known: set[str], suffix: str = ".py") -> Iterator[set[str]]:
    """Yield which of some names stand side by side in a tuple, list, set, dict or Literal.

    Of JavaScript: in quotes among the elements of an array or the keys of an object.
    """
    if suffix == ".js":
        for block in re.findall(r"[\[{]([^\[\]{}]*)[\]}]", source):
            yield set(re.findall(r"['\"]([\w-]+)['\"]", block)) & known
        return
    if sum(f'"{name}"' in source or f"'{name}'" in source for name in known) < 2:
        return  # before seconds are spent on its tree
    for part in ast.walk(ast.parse(source)):
        if isinstance(part, ast.Tuple | ast.List | ast.Set):
            elements = part.elts
        elif isinstance(part, ast.Dict):
            elements = [key for key in part.keys if key is not None]
        else:
            continue
        texts = {e.value for e in elements if isinstance(e, ast.Constant)}
        yield {text for text in texts if isinstance(text, str)} & known


def step_lists(source: str, suffix: str = ".py") -> list[set[str]]:
    """Return every list of step names; forward and backward alone are directions."""
    found = lists_of_names(source, NAMES, suffix)
    return [names for names in found if len(names) > 1 and not names <= DIRECTIONS]


def test_no_other_list_of_step_names_is_in_the_tree() -> None:
    found = []
    for room in ("mimokit", "widgets/mimokit_widgets"):
        for file in sorted((ROOT / room).rglob("*.*")):
            if file.suffix in (".py", ".js") and file != TABLE:
                listed = step_lists(file.read_text(), file.suffix)
                found += [(str(file), names) for names in listed]
    assert found == []
    assert step_lists(TABLE.read_text()) == [], "the table has one row per name"


@rows(
    "planted",
    'REDUCTION = ("grad-sync", "optimizer")',
    'COLUMNS = {"load": "data_time", "forward": "forward_time"}',
    'Kind = Literal["load", "receive-forward"]',
    'for kind in ["forward", "loss", "backward"]: pass',
)
def test_a_planted_list_of_step_names_is_found(planted: str) -> None:
    assert len(step_lists(planted)) == 1


def test_a_planted_list_in_javascript_is_found() -> None:
    planted = 'const STEPS = ["forward", "gather"];'
    assert step_lists(planted, ".js") == [{"forward", "gather"}]
    assert step_lists('["forward", "backward"]', ".js") == []


def test_the_table_says_what_every_consumer_used_to_list() -> None:
    columns = {str(kind): kind.phase.column for kind in StepKind}
    communication = {"gather", "scatter", "wait", "grad-sync", "exchange"} | {
        f"{verb}-{way}" for verb in ("send", "receive") for way in DIRECTIONS
    }
    assert {name for name in columns if columns[name] == "communication_time"} == communication
    assert {n for n in columns if columns[n] == "data_time"} == {"load", "slice"}
    assert {n for n in columns if columns[n] == "forward_time"} == {"forward", "loss"}
    assert columns["backward"] == "backward_time"
    assert columns["optimizer"] == "optimizer_time"
    assert columns["report"] == "report_time"
    busy = {str(kind): kind.busy for kind in StepKind if kind.busy}
    assert busy == dict.fromkeys(
        ["load", "slice", "forward", "loss", "send-forward"], "forward"
    ) | dict.fromkeys(["backward", "weight-gradient", "send-backward"], "backward")
    assert {k for k in StepKind if k.color == REMAINDER} == {"loss"}
    assert {k for k in StepKind if k.color == Phase.COMMUNICATION} == communication | {"report"}
    assert {k for k in StepKind if k.computes} == {
        *("forward", "loss", "backward", "weight-gradient")
    }
    assert all(kind.meaning and kind.color in (*Phase, REMAINDER) for kind in StepKind)
    assert MODULE_PHASES == ("forward", "backward")


def test_a_kind_is_its_name_wherever_it_travels() -> None:
    for kind in StepKind:
        assert pickle.loads(pickle.dumps(kind)) is kind
        assert json.loads(json.dumps({kind: kind})) == {str(kind): str(kind)}
        assert f"{kind}" == kind.value
        assert {str(kind): 1}[kind] == 1
