"""Every spelling of a parallel axis is written once."""

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from mimokit.axes import CONFIG_FIELDS, RANK_AXES, SIZE_FIELDS, SPELLINGS, Axis, Choice
from mimokit.config import ModuleParallelismConfig
from mimokit.config.sizes import ParallelSizes


def test_every_axis_and_choice_has_one_row() -> None:
    assert set(SPELLINGS) == {*Axis, *Choice}
    for column in ("label", "size", "layout", "argument"):
        words = [word for row in SPELLINGS.values() if (word := getattr(row, column))]
        assert len(words) == len(set(words)), column


def test_the_table_names_all_fields_of_sizes_and_fields_that_configs_have() -> None:
    sizes = {field.name for field in fields(ParallelSizes)}
    assert sizes - set(SIZE_FIELDS.values()) == {"reduces_behind", "logits_as_layers"}
    assert set(SIZE_FIELDS.values()) <= sizes
    names = list(ModuleParallelismConfig.model_fields)
    assert set(CONFIG_FIELDS.values()) <= set(names)
    assert [CONFIG_FIELDS[axis] for axis in RANK_AXES] == names[: len(RANK_AXES)]
    left = set(names) - set(CONFIG_FIELDS.values())
    assert left == {
        "rank_offset",
        "account_for_embedding_in_pipeline_split",
        "account_for_loss_in_pipeline_split",
        "moe_token_dispatcher_type",
        "overlap_grad_reduce",
    }


ROOT = Path(__file__).parents[1]
WORDS = {
    word.replace("-", "_")
    for one, row in SPELLINGS.items()
    for word in (str(one), row.label, row.size, row.config, row.layout, row.megatron, row.argument)
    if word and isinstance(one, Axis)
}


RULES = ("SizeRule", "PairRule", "Refused")
QUOTED = re.compile(f"[\"']({'|'.join(WORDS)})[\"']")
DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)


def second_tables(source: str) -> list[str]:
    """Return the tuples, lists, sets and mappings that spell two or more axes as literals.

    What is nested in them counts, arguments of calls do not. The sizes that a rule of layouts names
    as those it reads are no table.
    """
    found: list[str] = []
    if len({*QUOTED.findall(source.replace("-", "_"))}) < 2:
        return found  # before seconds are spent on its tree
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    read = {id(one) for call in calls if ast.unparse(call.func) in RULES for one in call.args}
    for node in ast.walk(tree):
        if id(node) in read or not isinstance(node, DISPLAYS):
            continue
        if len(set(_texts(node)) & WORDS) > 1:
            found.append(f"line {node.lineno}: {ast.unparse(node)[:60]}")
    return found


def _texts(node: ast.AST | None) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value).replace("-", "_")
    elif isinstance(node, ast.Starred):
        yield from _texts(node.value)
    elif isinstance(node, ast.Dict):
        for one in (*node.keys, *node.values):
            yield from _texts(one)
    elif isinstance(node, DISPLAYS):
        for one in node.elts:
            yield from _texts(one)


OTHER_FACTS = {
    "mimokit/charts/_palette.py": 1,
    "mimokit/prediction/explanation.py": 1,
    "mimokit/prediction/step_time/layer.py": 1,
    "mimokit/prediction/traffic.py": 1,
    "mimokit/prediction/step_time/breakdown.py": 1,
    "widgets/mimokit_widgets/view_models/traffic_blocks.py": 1,
}
"""File -> its tables of parts of a predicted step or of kinds of traffic.

There "tensor" is what an axis costs, not the axis.
"""


def test_no_file_has_a_second_table() -> None:
    files = [*ROOT.glob("mimokit/**/*.py"), *ROOT.glob("widgets/mimokit_widgets/**/*.py")]
    assert len(files) > 100
    found = {
        name: tables
        for file in files
        if (name := file.relative_to(ROOT).as_posix()) != "mimokit/axes.py"
        and len(tables := second_tables(file.read_text())) > OTHER_FACTS.get(name, 0)
    }
    assert not found


def test_the_search_sees_a_planted_table() -> None:
    for planted in (
        'FLAGS = {"tensor_parallel": "tensor", "data_parallel": "data"}',
        'SIZES = ("tensor", "pipeline")',
        'LABELS = [("TP", 1), ("DP", 2)]',
        'FIELDS = {"tensor-model-parallel-size": 1, "context-parallel-size": 2}',
    ):
        assert second_tables(planted), planted
    assert not second_tables('NAME = "tensor_parallel"')
