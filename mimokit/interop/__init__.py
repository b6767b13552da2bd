"""Import and export: experiments, weights, Megatron-Bridge, Megatron-LM, torchrun, Slurm."""

from mimokit.interop.bridge_write import to_bridge
from mimokit.interop.command_line import Imported
from mimokit.interop.experiment import config_of_layout, to_yaml
from mimokit.interop.hugging_face import config_of_checkpoint
from mimokit.interop.launch import to_slurm, to_torchrun
from mimokit.interop.megatron_lm import from_megatron_arguments, to_megatron_arguments
from mimokit.prediction.task import layout_of_config, workload_of_config

__all__ = [
    "Imported",
    "config_of_checkpoint",
    "config_of_layout",
    "from_megatron_arguments",
    "layout_of_config",
    "to_bridge",
    "to_megatron_arguments",
    "to_slurm",
    "to_torchrun",
    "to_yaml",
    "workload_of_config",
]
