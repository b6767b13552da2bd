"""A rank of a replica is killed while it exchanges with its peers."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from mimokit.cluster import EngineCluster, RankDied
from mimokit.config import StrategyConfig
from mimokit.experiment import train
from tests import seams
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.planted import planted, replacing


@replacing
def _killed(original: Any, self: Any, exchange: Any) -> Any:
    """Plant: rank 1 of replica 1 dies when its peers have begun the exchange."""
    import torch.distributed as dist

    if self.rank == 1 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return original(self, exchange)


def test_a_rank_that_is_killed_in_an_exchange_is_named(
    cluster: EngineCluster, tmp_path: Path
) -> None:
    """Its peer, which waits outside of any world, ends too; the next run works."""
    config = digits_config((2, 1), (2, 1), num_iterations=4)
    config.strategy = StrategyConfig(name="diloco", replicas=2, H=2)
    with planted(cluster, seams.BEGIN_EXCHANGE, _killed, 4):
        run = train(cluster, config, directory=tmp_path / "failed")
        with pytest.raises(RankDied, match=r"rank 3 .*was killed by SIGKILL"):
            run.result(timeout=300)
    saved = json.loads((tmp_path / "failed" / "error.json").read_text())
    assert (saved["type"], saved["rank"]) == ("RankDied", 3)
    run = train(cluster, config, evaluations=QUICK, directory=tmp_path / "next")
    assert len(run.result().steps) == 16
