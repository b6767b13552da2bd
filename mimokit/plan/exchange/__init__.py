"""Layouts in and out: experiments, Megatron-Bridge, Megatron-LM, torchrun, Slurm."""

from mimokit.plan.exchange.bridge import to_bridge
from mimokit.plan.exchange.imported import Imported
from mimokit.plan.exchange.launch import to_slurm, to_torchrun
from mimokit.plan.exchange.megatron_arguments import from_megatron_arguments, to_megatron_arguments
from mimokit.plan.exchange.read_bridge import from_bridge
from mimokit.plan.exchange.write_config import config_of_layout, to_yaml
from mimokit.prediction.from_config import layout_of_config, workload_of_config

__all__ = [
    "Imported",
    "config_of_layout",
    "from_bridge",
    "from_megatron_arguments",
    "layout_of_config",
    "to_bridge",
    "to_megatron_arguments",
    "to_slurm",
    "to_torchrun",
    "to_yaml",
    "workload_of_config",
]
