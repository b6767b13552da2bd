"""The commands of `mimokit`; each loads when it is asked for."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.cli.advice_commands import advise as advise
    from mimokit.cli.advice_commands import memory as memory
    from mimokit.cli.analyze_command import analyze as analyze
    from mimokit.cli.calibrate_command import calibrate as calibrate
    from mimokit.cli.checkpoint_commands import checkpoints as checkpoints
    from mimokit.cli.cluster_commands import clusters as clusters
    from mimokit.cli.config_command import config as config
    from mimokit.cli.frames_command import frames as frames
    from mimokit.cli.import_command import import_layout as import_layout
    from mimokit.cli.layout_commands import export as export
    from mimokit.cli.layout_commands import predict as predict
    from mimokit.cli.measure_command import measure as measure
    from mimokit.cli.plan_command import plan as plan
    from mimokit.cli.run_commands import run as run
    from mimokit.cli.run_commands import verify as verify
    from mimokit.cli.search_command import search as search
    from mimokit.cli.tutorial_command import tutorial as tutorial
    from mimokit.cli.weight_commands import convert as convert
    from mimokit.cli.weight_commands import weights as weights
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
