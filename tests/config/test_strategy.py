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


def test_all_problems_of_a_strategy_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        StrategyConfig(name="demo", H=5, codec="int8")
    assert [problem.field for problem in caught.value.problems] == ["H", "codec"]
