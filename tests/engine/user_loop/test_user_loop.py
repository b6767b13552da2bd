"""What the functions of a user's training loop reject."""

import pytest

import mimokit
from mimokit.cluster import RankError
from tests.engine.user_loop.test_documents_loop import PREPARE, forward_step, loss_func
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.layouts_multimodal import LANGUAGE


def _run_with(plan, config, count, forward_step_func):
    from mimokit import engine

    _, _, run = PREPARE[plan.deployment_mode](plan, config, engine.default_data(config), count)
    run(forward_step_func=forward_step_func)


def mean_of_micro_batch(data_iterator, model):
    output_tensor, loss_func = forward_step(data_iterator, model)
    return output_tensor, lambda output: (loss_func(output)[0] / 8, {"loss": 0.0})


def forget_the_model(data_iterator, model):
    return next(data_iterator), loss_func


def with_a_mask(data_iterator, model):
    batch = next(data_iterator)
    output_tensor, _ = model(**batch, attention_mask=None)
    return output_tensor, loss_func


def with_half_of_the_text(data_iterator, model):
    from mimokit.engine import slice_text

    batch = next(data_iterator)
    text = slice_text(batch, 0, len(batch["input_ids"]) // 2)
    output_tensor, _ = model(**text, modality_inputs=batch["modality_inputs"])
    return output_tensor, loss_func


HOMOGENEOUS = digits_config()
FAN_IN, FAN_OUT = digits_config((1, 2), (2, 1)), digits_config((2, 1), (1, 2))
UNCUT = r"but a replica computes 4 of a micro-batch \(data_parallel 2\); cut"
APART = apart_config((1, 1, 1), (1, 1, 1), 2)


@pytest.mark.parametrize(
    ("config", "count", "step", "message"),
    [
        (HOMOGENEOUS, 1, mean_of_micro_batch, "returned no number of tokens; it must return the"),
        (HOMOGENEOUS, 1, with_a_mask, "called with attention_mask, which no stage reads; at"),
        (APART, 2, with_a_mask, "called with attention_mask, which no stage reads; at"),
        (APART, 3, forward_step, "The plan is for 2 micro-batches, not 3"),
        (APART, 2, forget_the_model, "did not call its model on the stage of 'images'"),
        (FAN_IN, 1, forward_step, f"8 samples of 'images', {UNCUT} its inputs with slice_modality"),
        (FAN_OUT, 1, forward_step, f"8 samples of '{LANGUAGE}', {UNCUT} the batch with slice_text"),
        (HOMOGENEOUS, 1, with_half_of_the_text, f"4 samples of '{LANGUAGE}', but .* give it 8"),
    ],
)
def test_the_schedules_reject_what_they_cannot_run(cluster, config, count, step, message):
    plan = mimokit.plan(config)
    with pytest.raises(RankError, match=message):
        cluster.run(_run_with, plan, config, count, step, world_size=plan.world_size)


def _make(plan, config, maker, sequence):
    from mimokit import engine

    getattr(engine, maker)(config.model, sequence, plan=plan)


@pytest.mark.parametrize(
    ("maker", "sequence", "message"),
    [
        ("get_vlm_mimo_model_colocated", 42, "The plan is homogeneous, not colocated"),
        ("get_vlm_mimo_model", 42, "The plan is homogeneous, not heterogeneous"),
        ("get_vlm_mimo_model_homogeneous", 43, "'language_module' has seq_length 42"),
    ],
)
def test_makers_reject_another_plan(cluster, maker, sequence, message):
    plan = mimokit.plan(HOMOGENEOUS)
    with pytest.raises(RankError, match=message):
        cluster.run(_make, plan, HOMOGENEOUS, maker, sequence, world_size=1)


def _read(plan, config, maker):
    from mimokit import engine
    from mimokit.engine.parallel.grids import create_grids

    grids, _ = create_grids(plan)
    data = engine.default_data(config)
    getattr(engine, maker)(config.model, config.data, grids, plan=plan, data=data)


@pytest.mark.parametrize(
    ("config", "maker", "message"),
    [
        (digits_config((1, 2), (2, 1)), "get_data_iterator", "call get_data_iterator_colocated"),
        (APART, "get_data_iterator_colocated", "where modules have separate ranks"),
    ],
)
def test_the_wrong_iterator_is_rejected(cluster, config, maker, message):
    with pytest.raises(RankError, match=message):
        cluster.run(_read, mimokit.plan(config), config, maker, world_size=2)


def _communicate(plan, config):
    from mimokit import engine
    from mimokit.engine.parallel.grids import create_grids

    grids, _ = create_grids(plan)
    topology = {name: list(fed) for name, fed in plan.topology.items()}
    engine.MultiModulePipelineCommunicator(
        topology=topology, module_to_grid_map=grids, module_to_model_map={"audio": None}, plan=plan
    )


def test_a_communicator_rejects_the_modules_of_another_rank(cluster):
    # Both ranks reject theirs; the first to do so is reported.
    message = (
        r"Rank 0 holds \['audio'\], but the plan has 'images' there"
        r"|Rank 1 holds \['audio'\], but the plan has 'language_module' there"
    )
    with pytest.raises(RankError, match=message):
        cluster.run(_communicate, mimokit.plan(APART), APART, world_size=2)
