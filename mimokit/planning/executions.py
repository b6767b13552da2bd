"""Decides from a config how the ranks of every module compute it."""

from collections.abc import Mapping
from dataclasses import replace

from mimokit.config import ExperimentSections
from mimokit.config.runtime import PRECISION_OF_RUNS
from mimokit.config.sizes import sizes_of
from mimokit.planning.execution import Dtype, ModuleExecution
from mimokit.planning.ranks import ModuleRanks

_WEIGHTS: Mapping[str, Dtype] = {"fp32": "fp32", "tf32": "fp32", "fp16": "fp16"}
"""Precision of matrix products -> dtype of the weights; with all others weights are bf16."""


def plan_executions(
    config: ExperimentSections, modules: Mapping[str, ModuleRanks]
) -> dict[str, ModuleExecution]:
    """Return the execution of every module.

    A field that the config leaves out has the value with which it runs (`LEFT_OUT`). In homogeneous
    mode encoders lie whole in the language module's first stage and are executed as it is.
    """
    model = config.model
    executions = {name: _plan_execution(config, ranks) for name, ranks in modules.items()}
    if model.deployment_mode == "homogeneous":
        language = executions[model.llm_module_name]
        language = replace(language, sizes=language.sizes.in_first_stage, samples_in_row=False)
        for name in model.encoder_module_names:
            encoder = executions[name]
            executions[name] = replace(
                language,
                frozen_parts=encoder.frozen_parts,
                learning_rate=encoder.learning_rate,
                weight_decay=encoder.weight_decay,
            )
    return executions


def _plan_execution(config: ExperimentSections, ranks: ModuleRanks) -> ModuleExecution:
    stated = config.model.module_parallelisms[ranks.module]
    network = config.model.module_architectures.get(ranks.module)
    section = None if network is None else network.optimizer
    precision = config.runtime.precision or PRECISION_OF_RUNS
    sizes = sizes_of(stated, ranks.data_parallel, 1)
    sizes = replace(
        sizes,
        sequence_parallel=bool(sizes.tensor > 1 and sizes.sequence_parallel),
        instances=sizes.instances if sizes.distributed_optimizer else 1,
        reduces_behind=False,
    )
    return ModuleExecution(
        sizes,
        token_dispatcher=stated.in_runs("moe_token_dispatcher_type"),
        samples_in_row=_are_in_row(config, ranks.module),
        precision=precision,
        weights=_WEIGHTS.get(precision, "bf16"),
        overlap_reduction=stated.in_runs("overlap_grad_reduce"),
        frozen_parts=frozenset() if network is None else network.frozen_parts,
        learning_rate=None if section is None else section.lr,
        weight_decay=None if section is None else section.weight_decay,
    )


def _are_in_row(config: ExperimentSections, module: str) -> bool:
    # The language model sends all text decoders the same rows, without padding where experts count
    # tokens.
    model, packed = config.model, config.data.pack_sequences_in_batch
    writing = [n for n in model.decoder_module_names if n not in model.reconstructing_names]
    if module not in writing:
        return packed and module == model.llm_module_name
    networks = map(model.module_architectures.get, writing)
    return packed or any(network is not None and network.counts_tokens for network in networks)
