"""What a strategy takes, and what is rejected, in one sentence that names the key."""

from typing import Any, get_args

import pytest

from mimokit.config import ConfigError, StrategyConfig
from mimokit.config.strategy import ALWAYS, TAKES, StrategyName
from tests.rows import rows


def test_every_strategy_has_arguments_that_are_fields() -> None:
    assert set(TAKES) == set(get_args(StrategyName))
    taken = {field for taken in TAKES.values() for field in taken}
    assert taken | set(ALWAYS) == set(StrategyConfig.model_fields)


@rows("name", *TAKES)
def test_a_strategy_writes_what_it_takes_and_reads_it_again(name: Any) -> None:
    config = StrategyConfig(name=name, replicas=4)
    written = config.model_dump()
    assert tuple(written) == tuple(
        field for field in StrategyConfig.model_fields if field in (*TAKES[name], *ALWAYS)
    )
    assert StrategyConfig(**written) == config


def test_defaults_differ_where_strategies_do() -> None:
    assert [StrategyConfig(name=name).H for name in ("fedavg", "diloco")] == [1, 100]
    assert [StrategyConfig(name=name).outer_lr for name in ("noloco", "sparse_loco")] == [0.7, 1]


@rows(
    "arguments, sentence",
    ({"name": "dilocco"}, "strategy.name 'dilocco': it does not exist; did you mean diloco"),
    ({"name": "diloco", "sync_ofset": 2}, "did you mean sync_offset?"),
    ({"name": "sparta", "H": 3}, "strategy.H is not an argument of sparta; it takes p_sparta"),
    ({"name": "diloco", "H": -5}, "H is -5; it must be at least 1"),
    ({"name": "diloco", "H": 2.5}, "H is 2.5; write a whole number"),
    ({"name": "sparta", "p_sparta": 0.0}, "p_sparta is 0.0; it must be greater than 0"),
    ({"name": "sparta", "p_sparta": 1.5}, "p_sparta is 1.5; it must be at most 1"),
    ({"name": "demo", "compression_topk": 0}, "compression_topk is 0; it must be at least 1"),
    ({"name": "demo", "compression_decay": 1.0}, "compression_decay is 1.0; it must be less"),
    ({"name": "sparse_loco", "decay": 1.0}, "decay is 1.0; it must be less than 1"),
    ({"name": "diloco", "codec": "int3"}, "codec is the text 'int3'; choose 'int8' or 'int4'"),
    (
        {"name": "streaming_diloco", "fragments": 3},
        "strategy.fragments is 3 and does not divide H, which is 100; 2 does.",
    ),
    (
        {"name": "streaming_diloco", "fragments": 200},
        "strategy.fragments is 200 and does not divide H, which is 100; 100 does.",
    ),
    (
        {"name": "streaming_diloco", "overlap_steps": 25},
        "strategy.overlap_steps is 25; it must be less than H / fragments, which is 25.",
    ),
)
def test_one_sentence_for_what_is_rejected(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StrategyConfig(**arguments)
    assert sentence in str(caught.value)
    assert len(caught.value.problems) == 1


def test_all_problems_of_a_strategy_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        StrategyConfig(name="demo", H=5, codec="int8")
    assert [problem.field for problem in caught.value.problems] == ["H", "codec"]
