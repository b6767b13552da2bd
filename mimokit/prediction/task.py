"""The input of a prediction, from a config or from a model with a layout."""

from __future__ import annotations

import os
from dataclasses import dataclass

from mimokit.architecture import Model
from mimokit.architecture.from_config import model_of_config
from mimokit.config import ExperimentConfig, PredictionConfig
from mimokit.config.errors import ConfigError, Problem
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.strategies.replicas import ReplicaPlan
from mimokit.prediction.from_config import layout_of_config, workload_of_config
from mimokit.prediction.hardware import Hardware, load_hardware
from mimokit.prediction.layout import Layout
from mimokit.prediction.step_time import Software, System, load_software
from mimokit.prediction.validity import check_price
from mimokit.prediction.workload import Workload

HardwareSource = str | os.PathLike[str] | Hardware
"""A GPU's name, a hardware file, or hardware."""


@dataclass(frozen=True)
class PredictionTask:
    """Everything that a prediction depends on.

    Attributes:
        layout: sizes of its modules.
        price_per_gpu_hour: in dollars, or None.
        replicas: of an experiment with a strategy between links that it describes.
    """

    model: Model
    layout: Layout
    workload: Workload
    system: System
    price_per_gpu_hour: float | None = None
    replicas: ReplicaPlan | None = None


def task_of(
    model: Model | ConfigSource,
    layout: Layout | None = None,
    workload: Workload | None = None,
    hardware: HardwareSource | None = None,
    *,
    gpu: HardwareSource | None = None,
    software: str | Software | None = None,
    price_per_gpu_hour: float | None = None,
    world_size: int | None = None,
) -> PredictionTask:
    """Return the task for the arguments of `predict`.

    Raises:
        ConfigError: the experiment is wrong, the price is negative, or the hardware or software is
            unknown. The layout is not checked here.
    """
    replicas = None
    if isinstance(model, Model):
        if layout is None or workload is None:
            raise _refused("a model needs a layout and a workload; give both, or an experiment.")
        section = PredictionConfig()
    elif layout is not None or workload is not None:
        raise _refused("an experiment has its own layout and workload; leave them out.")
    else:
        config = checked_config(model, world_size)
        section = section_of(config)
        replicas = _linked_replicas(config, world_size)
        layout = layout_of_config(config, world_size)
        workload = workload_of_config(config, world_size)
        model = model_of_config(config.model, config.name)
    chosen = chosen_hardware(hardware, gpu, section)
    stack = chosen_software(software, section)
    system = system_of(chosen, stack, workload)
    price = chosen_price(price_per_gpu_hour, section)
    return PredictionTask(model, layout, workload, system, price, replicas)


def _linked_replicas(config: ExperimentConfig, world_size: int | None) -> ReplicaPlan | None:
    """Return the replicas of an experiment that describes the links between them."""
    if config.strategy is None or config.strategy.network is None:
        return None
    return plan_checked(config, world_size).replicas


def system_of(hardware: Hardware, software: Software, workload: Workload) -> System:
    """Return the system on which a workload runs."""
    stored = (workload.strategy_bytes, workload.optimizer_bytes)
    return System(hardware, software, workload.precision, *stored)


def section_of(source: object) -> PredictionConfig:
    """Return the prediction section of an experiment, an empty section for anything else."""
    found = source.prediction if isinstance(source, ExperimentConfig) else None
    return found or PredictionConfig()


def chosen_hardware(
    hardware: HardwareSource | None, gpu: HardwareSource | None, section: PredictionConfig
) -> Hardware:
    """Return the hardware of either argument, or else that of the section.

    Raises:
        ConfigError: both arguments are given, or the hardware is unknown.
    """
    if hardware is not None and gpu is not None:
        raise _refused(f"gpu is {gpu} and hardware is {hardware}; they are the same, give one.")
    given = hardware if gpu is None else gpu
    return load_hardware(section.chosen_gpu if given is None else given)


def chosen_software(software: str | Software | None, section: PredictionConfig) -> Software:
    """Return the training stack of the argument, or else that of the section.

    Raises:
        ConfigError: it is unknown.
    """
    return load_software(section.chosen_software if software is None else software)


def chosen_price(price_per_gpu_hour: float | None, section: PredictionConfig) -> float | None:
    """Return the price of the argument, or else that of the section.

    Raises:
        ConfigError: the price is negative or not a number.
    """
    price = section.price_per_gpu_hour if price_per_gpu_hour is None else price_per_gpu_hour
    check_price(price)
    return price


def _refused(why: str) -> ConfigError:
    return ConfigError([Problem("prediction", "model", None, f"Prediction: {why}")])
