"""When exchanges fall due, step by step, as the descriptions of the strategies say it."""

from mimokit.config import StrategyConfig


def due(config: StrategyConfig, completed: int) -> list[str]:
    """Return the purposes of what begins after `completed` steps, in order."""
    every = {
        "simple_reduce": [("gradients", 1, 0)],
        "demo": [("momentum", 1, 0)],
        "fedavg": [("weights", config.H, config.sync_offset)],
        "diloco": [("outer step", config.H, config.sync_offset)],
        "sparta": [("sparse weights", config.sparta_interval, 0)],
        "sparta_diloco": [
            ("sparse weights", config.sparta_interval, 0),
            ("outer step", config.H, config.sync_offset),
        ],
        "streaming_diloco": [
            (f"fragment {one}", config.H, one * config.H // config.fragments)
            for one in range(config.fragments)
        ],
        "noloco": [("gossip", config.H, 0)],
        "sparse_loco": [("sparse outer step", config.H, 0)],
    }[config.name]
    return [
        purpose
        for purpose, interval, offset in every
        if completed > offset and (completed - offset) % interval == 0
    ]
