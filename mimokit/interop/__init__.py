"""Import and export: experiments, weights, Megatron-Bridge, Megatron-LM, torchrun, Slurm."""

from typing import TYPE_CHECKING

from mimokit.lazy import lazy_names

if TYPE_CHECKING:
    from mimokit.interop.bridge_write import to_bridge as to_bridge
    from mimokit.interop.experiment import config_of_layout as config_of_layout
    from mimokit.interop.experiment import to_yaml as to_yaml
    from mimokit.interop.hugging_face import config_of_checkpoint as config_of_checkpoint
    from mimokit.interop.imported_layout import Imported as Imported
    from mimokit.interop.launch import to_slurm as to_slurm
    from mimokit.interop.launch import to_torchrun as to_torchrun
    from mimokit.interop.megatron_lm import from_megatron_arguments as from_megatron_arguments
    from mimokit.interop.megatron_lm import to_megatron_arguments as to_megatron_arguments
    from mimokit.prediction.task import layout_of_config as layout_of_config
    from mimokit.prediction.task import workload_of_config as workload_of_config
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
