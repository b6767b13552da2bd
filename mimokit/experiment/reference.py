"""The config and the plan of the one process that a layout is compared with."""

from mimokit.config import ExperimentConfig, ModuleArchitecture, ModuleParallelismConfig
from mimokit.config.runtime import AS_DRAWN, PRECISION_OF_RUNS, TF32
from mimokit.config.strategy import OPTIMIZER_TAKES
from mimokit.experiment.verification_report import ADAM_EPSILON, NOISY_ADAM_EPSILON


def for_verification(config: ExperimentConfig) -> ExperimentConfig:
    """Return a config with the full learning rate from the first step, above rounding noise.

    What computes in TF32 is compared in fp32.
    """
    strategy = config.strategy
    precision = None if config.runtime.precision == TF32 else config.runtime.precision
    in_fp32 = precision in (None, PRECISION_OF_RUNS)
    epsilon = ADAM_EPSILON if in_fp32 else NOISY_ADAM_EPSILON
    runtime = config.runtime.model_copy(
        update={
            "precision": precision,
            "adam_epsilon": epsilon,
            "learning_rate_warmup": 0,
            "learning_rate_decay": 0,
            "checkpoint": None,
            "resume_from": None,
        }
    )
    data = config.data.model_copy(update={"num_workers": 0})
    changed = config.model_copy(update={"runtime": runtime, "data": data})
    inner = None if strategy is None else strategy.inner_optimizer
    if strategy is not None and inner is not None:
        eps = epsilon if "eps" in OPTIMIZER_TAKES[inner.name] else None
        plain = inner.model_copy(update={"eps": eps})
        changed.strategy = strategy.model_copy(update={"inner_optimizer": plain})
    return changed


def single_rank(config: ExperimentConfig) -> ExperimentConfig:
    """Return the same encoders, language model and global batch on one rank.

    `plan_checked` plans it and asks no rules: the layout that it is of has kept them, and one
    process may be what homogeneous mode has not. Only modules behind the language model may be
    trained, and an encoder may feed several modules.

    A homogeneous layout has no modules behind the language model; see `run_oracle`.
    """
    language = config.model.get_parallelism(config.model.llm_module_name)
    behind = decoder_networks(config)
    graph = config.model.module_topology
    encoders = {name: [*graph[name]] for name in config.model.encoder_module_names}
    model = config.model.model_copy(
        update={
            "deployment_mode": "homogeneous",
            "module_parallelisms": {
                name: ModuleParallelismConfig(data_parallel=1)
                for name in config.model.module_parallelisms
                if name not in behind
            },
            "module_architectures": {
                name: network
                for name, network in config.model.module_architectures.items()
                if name not in behind
            },
            "topology": encoders if config.model.adapter_module_names else None,
        }
    )
    data = config.data.model_copy(
        update={
            "base_batch_size": config.data.base_batch_size * (language.data_parallel or 1),
            "pack_sequences_in_batch": False,
        }
    )
    whole: dict[str, object] = {
        "pipeline_schedule": "homogeneous",
        "encoder_microbatches": None,
        "pipeline_order": None,
        "patch_type": [],
        "sample_order": AS_DRAWN,
    }
    runtime = config.runtime.model_copy(update=whole)
    return ExperimentConfig(
        model=model, data=data, runtime=runtime, name="one process", strategy=config.strategy
    )


def decoder_networks(config: ExperimentConfig) -> dict[str, ModuleArchitecture]:
    """Return the networks of the modules behind the language model, by name."""
    model = config.model
    return {name: model.get_architecture(name) for name in model.decoder_module_names}
