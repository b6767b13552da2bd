"""The training loop of the first source document, in each mode, trains what mimokit trains.

Names, order of calls and signatures are the document's, except where it is wrong: it updates
before it reduces gradients, its optimizer does not see gradients in `main_grad`, and its forward
step knows only one layout of a batch.
"""

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest

import mimokit
from mimokit.cluster import RankError
from tests.layouts import digits_config
from tests.layouts_apart import apart_config, decoded_config
from tests.layouts_multimodal import LANGUAGE, PRESENCE, multimodal_config
from tests.rank_steps import run_step, state_of

ITERATIONS = 2
CONSTANT = {"clip_grad": 0.0, "learning_rate_warmup": 0, "learning_rate_decay": 0}


def loss_func(loss_mask, output_tensor):
    return (output_tensor * loss_mask).sum(), loss_mask.sum(), {}


def cut_for_replicas(batch, encoder_dp, llm_dp):
    """Keep the samples of this rank's replica of the module with more replicas."""
    from mimokit.engine import slice_modality, slice_text

    more, fewer = max(encoder_dp.size(), llm_dp.size()), min(encoder_dp.size(), llm_dp.size())
    size = len(batch["input_ids"]) * fewer // more
    if encoder_dp.size() > llm_dp.size():
        start = encoder_dp.rank() % (more // fewer) * size
        inputs = {
            name: slice_modality(given, start, start + size)
            for name, given in batch["modality_inputs"].items()
        }
        return {**batch, "modality_inputs": inputs}
    start = llm_dp.rank() % (more // fewer) * size
    return {**slice_text(batch, start, start + size), "modality_inputs": batch["modality_inputs"]}


def forward_step(data_iterator, model, encoder_grid=None, llm_grid=None):
    from mimokit.engine import get_batch

    data_batch = get_batch(data_iterator)
    if data_batch is None:
        return None, None
    if encoder_grid is not None:
        data_batch = cut_for_replicas(data_batch, encoder_grid.get_pg("dp"), llm_grid.get_pg("dp"))
    output_tensor, loss_mask = model(**data_batch)
    return output_tensor, partial(loss_func, loss_mask)


def homogeneous(plan, config, data, batches_per_step):
    """Return model, grids and a function that runs all micro-batches of a step."""
    from mimokit import engine

    mimo_model, shared_grid, shared_pg_collection, topology = engine.get_vlm_mimo_model_homogeneous(
        config.model, config.data.seq_length, plan=plan, seed=config.runtime.seed
    )
    assert shared_pg_collection.dp.size() == shared_grid.get_pg("dp").size()
    assert topology["images"] == ["language_module"]
    module_to_grid_map = {"images": shared_grid, "language_module": shared_grid}
    data_iterator = engine.get_data_iterator(
        model_config=config.model,
        data_config=config.data,
        module_to_grid_map=module_to_grid_map,
        plan=plan,
        data=data,
        seed=config.runtime.seed,
    )
    run = partial(
        engine.forward_backward_no_pipelining,
        forward_step_func=forward_step,
        data_iterator=data_iterator,
        model=mimo_model,
        num_microbatches=batches_per_step,
        seq_length=config.data.seq_length,
    )
    return mimo_model, module_to_grid_map, run


def colocated(plan, config, data, batches_per_step):
    from mimokit import engine

    mimo_model, module_to_grid_map, topology = engine.get_vlm_mimo_model_colocated(
        config.model, config.data.seq_length, plan=plan, seed=config.runtime.seed
    )
    encoder = config.model.encoder_module_names[0]
    assert topology[encoder] == ["language_module"]
    data_iterator = engine.get_data_iterator_colocated(
        model_config=config.model,
        data_config=config.data,
        module_to_grid_map=module_to_grid_map,
        plan=plan,
        data=data,
        seed=config.runtime.seed,
    )
    forward_step_with_slicing = partial(
        forward_step,
        encoder_grid=module_to_grid_map[encoder],
        llm_grid=module_to_grid_map["language_module"],
    )
    run = partial(
        engine.forward_backward_no_pipelining,
        forward_step_func=forward_step_with_slicing,
        data_iterator=data_iterator,
        model=mimo_model,
        num_microbatches=batches_per_step,
        seq_length=config.data.seq_length,
    )
    return mimo_model, module_to_grid_map, run


def heterogeneous(plan, config, data, batches_per_step):
    from mimokit import engine

    mimo_model, module_to_grid_map, topology = engine.get_vlm_mimo_model(
        config.model, config.data.seq_length, plan=plan, seed=config.runtime.seed
    )
    data_iterator = engine.get_data_iterator(
        model_config=config.model,
        data_config=config.data,
        module_to_grid_map=module_to_grid_map,
        plan=plan,
        data=data,
        seed=config.runtime.seed,
    )
    module_to_model_map = dict(mimo_model.decoders.items())
    for name in config.model.encoder_module_names:
        if mimo_model.modality_submodules.get(name):
            module_to_model_map[name] = mimo_model.modality_submodules[name]
    if mimo_model.language_model:
        module_to_model_map["language_module"] = mimo_model.language_model
    communicator = engine.MultiModulePipelineCommunicator(
        topology=topology,
        module_to_grid_map=module_to_grid_map,
        module_to_model_map=module_to_model_map,
        plan=plan,
    )
    run = partial(
        engine.forward_backward_1f1b_with_multimodule_communicator,
        forward_step_func=forward_step,
        data_iterator=data_iterator,
        model=mimo_model,
        communicator=communicator,
        num_microbatches=batches_per_step,
        seq_length=config.data.seq_length,
    )
    return mimo_model, module_to_grid_map, run


PREPARE = {"homogeneous": homogeneous, "colocated": colocated, "heterogeneous": heterogeneous}


def _mended(tuple_, iteration, count, optimizer):
    from mimokit import engine

    engine.finalize_model_grads(tuple_, iteration, count)
    with engine.multimodule_no_sync(tuple_, iteration, count):
        optimizer.step()


def _as_written(tuple_, iteration, count, optimizer):
    from mimokit import engine

    with engine.multimodule_no_sync(tuple_, iteration, count):
        optimizer.step()
    engine.finalize_model_grads(tuple_, iteration, count)


def _loop(plan, config, update):
    """Train as the document does; return (loss sum, tokens) per iteration, weights and metrics."""
    import torch

    from mimokit import engine
    from mimokit.engine.device import close_groups_since, open_groups

    before, runtime, count = open_groups(), config.runtime, config.data.num_microbatches
    prepare = PREPARE[plan.deployment_mode]
    mimo_model, grids, run = prepare(plan, config, engine.default_data(config), count)
    optimizer = engine.MainGradAdamW(
        mimo_model.parameters(),
        lr=runtime.learning_rate,
        weight_decay=runtime.weight_decay,
        eps=runtime.adam_epsilon,
        fused=True,
    )
    module_to_grid_tuple = engine.get_module_to_grid_tuple(mimo_model, grids)
    perf_monitor = engine.create_performance_monitor(
        model_config=config.model, runtime_config=runtime, module_to_grid_map=grids
    )
    found = []
    for iteration in range(ITERATIONS):
        perf_monitor.start_step()
        perf_monitor.start_phase("forward_backward")
        losses = run(forward_only=False)
        perf_monitor.end_phase("forward_backward")
        perf_monitor.start_phase("optimizer")
        update(module_to_grid_tuple, iteration, count, optimizer)
        engine.zero_grad_buffer_for_multimodule(module_to_grid_tuple)
        optimizer.zero_grad()
        perf_monitor.end_phase("optimizer")
        perf_monitor.end_step(iteration)
        counts = all(grid.get_pg("tp").rank() == 0 for _, grid in module_to_grid_tuple[-1:])
        found.append(
            (
                sum(one.loss_sum for one in losses) * counts,
                sum(one.num_tokens for one in losses) * counts,
            )
        )
    weights = [p.detach().clone() for p in mimo_model.parameters()]
    metrics = perf_monitor.log_metrics(ITERATIONS - 1)
    mimo_model.release()
    close_groups_since(before)
    torch.distributed.barrier()
    return found, weights, metrics


def _both(plan, config, update):
    """Run the document's loop, then mimokit's own; return both losses and what differs."""
    import torch

    found, weights, metrics = _loop(plan, config, update)
    with state_of(plan, config) as state:
        own = [run_step(state).loss for _ in range(ITERATIONS)]
        mine = [p.detach() for m in state.model.modules().values() for p in m.parameters()]
        differ = [not torch.equal(a, b) for a, b in zip(weights, mine, strict=True)]
    return found, own, differ, metrics


def _losses(ranks):
    """Return the mean loss per token of every iteration, over all ranks."""
    found = [found for found, *_ in ranks]
    return [
        sum(rank[i][0] for rank in found) / sum(rank[i][1] for rank in found)
        for i in range(ITERATIONS)
    ]


LAYOUTS = {
    "homogeneous": digits_config((2, 2), (2, 2), 2, **CONSTANT),
    "colocated, fan-in": digits_config((1, 4), (2, 2), 2, **CONSTANT),
    "colocated, fan-out": digits_config((4, 1), (1, 4), 2, **CONSTANT),
    "heterogeneous, two stages each": apart_config((1, 2, 1), (1, 2, 1), 3, **CONSTANT),
    "heterogeneous, fan-in": apart_config((1, 1, 2), (2, 1, 1), 2, **CONSTANT),
    "colocated, replicas without items": multimodal_config(
        {"dino": (1, 4), "audio": (1, 4), LANGUAGE: (2, 2)},
        "colocated",
        num_microbatches=2,
        presence=PRESENCE,
        **CONSTANT,
    ),
    "colocated, frozen encoder": multimodal_config(
        {"dino": (2, 1), "audio": (2, 1), LANGUAGE: (1, 2)},
        "colocated",
        num_microbatches=2,
        presence=PRESENCE,
        frozen=["dino"],
        **CONSTANT,
    ),
    "heterogeneous, text decoder": decoded_config(
        {"images": (1, 1, 1), LANGUAGE: (1, 1, 1), "captions": (1, 1, 1)}, 2, **CONSTANT
    ),
}


@pytest.mark.parametrize("config", LAYOUTS.values(), ids=list(LAYOUTS))
def test_the_documents_loop_trains_what_mimokit_trains(cluster, config):
    plan = mimokit.plan(config)
    ranks = cluster.run(_both, plan, config, _mended, world_size=plan.world_size)
    own = ranks[0][1]
    assert len(set(own)) == ITERATIONS
    assert _losses(ranks) == pytest.approx(own, rel=1e-6)
    for _, _, differ, metrics in ranks:
        assert differ
        assert not any(differ)
        seconds = metrics["total_time"]
        assert metrics["loss"] == pytest.approx(own[-1], rel=1e-6)
        assert metrics["samples_per_sec"] * seconds == pytest.approx(plan.batch.global_batch_size)
        assert metrics["tokens_per_sec"] == pytest.approx(
            config.data.seq_length * metrics["samples_per_sec"]
        )
        computing = metrics["forward_time"] + metrics["backward_time"]
        assert 0 < computing < metrics["forward_backward_time"]
        parts = [metrics[f"{part}_time"] for part in ("optimizer", "communication", "report")]
        assert all(part > 0 for part in parts)
        assert computing + sum(parts) < seconds


def _mistaken(plan, config, mistake):
    """Train two steps of the document's loop with one of its mistakes."""
    import torch

    from mimokit import engine

    count = config.data.num_microbatches
    mimo_model, grids, run = PREPARE[plan.deployment_mode](
        plan, config, engine.default_data(config), count
    )
    make = torch.optim.AdamW if mistake == "plain optimizer" else engine.MainGradAdamW
    optimizer = make(mimo_model.parameters(), lr=1e-3)
    modules = engine.get_module_to_grid_tuple(mimo_model, grids)
    update = _as_written if mistake == "order" else _mended
    for iteration in range(2):
        run(forward_only=False)
        update(modules, iteration, count, optimizer)
        optimizer.zero_grad()
        if mistake != "buffers":
            engine.zero_grad_buffer_for_multimodule(modules)


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("order", r"optimizer.step\(\) was called before finalize_model_grads: the gradients are"),
        ("plain optimizer", "AdamW sees no gradients and would change nothing: .*MainGradAdamW"),
        ("buffers", r"last step are still in the buffers.*call zero_grad_buffer_for_multimodule"),
        ("none", None),
    ],
)
def test_a_mistake_of_the_document_is_answered_in_a_sentence(cluster, mistake, message):
    config = LAYOUTS["heterogeneous, fan-in"]
    plan = mimokit.plan(config)
    rejected = nullcontext() if message is None else pytest.raises(RankError, match=message)
    with rejected:
        cluster.run(_mistaken, plan, config, mistake, world_size=plan.world_size)


def _forward_only(plan, config):
    """Return the losses of the forward alone, those of the whole step, and the gradient after it.

    The data iterator goes on, so a second model reads the same batches.
    """
    from mimokit import engine

    found = []
    for forward_only in (True, False):
        mimo_model, _, run = PREPARE[plan.deployment_mode](
            plan, config, engine.default_data(config), config.data.num_microbatches
        )
        losses = run(forward_only=forward_only)
        found.append([(one.loss_sum, one.num_tokens) for one in losses])
        found.append(max(float(p.main_grad.abs().max()) for p in mimo_model.parameters()))
        mimo_model.release()
    return found


@pytest.mark.parametrize("name", ["colocated, fan-in", "heterogeneous, fan-in"])
def test_the_forward_alone_leaves_no_gradients(cluster, name):
    plan = mimokit.plan(LAYOUTS[name])
    for forward, nothing, whole, gradient in cluster.run(
        _forward_only, plan, LAYOUTS[name], world_size=plan.world_size
    ):
        assert forward == whole
        assert nothing == 0.0
        assert gradient > 0.0


@pytest.fixture
def page(monkeypatch):
    """The listings of the page of names, run; all but that of a cluster."""
    root = Path(__file__).parents[3]
    monkeypatch.chdir(root)
    listings = re.findall(r"```python\n(.*?)```", (root / "docs/names.md").read_text(), re.DOTALL)
    first, second, third = listings
    assert "cluster.run(train, plan, config, 3)" in second
    page = {"__name__": "page_of_names"}
    for listing in (first, third):
        exec(listing, page)
    return page


def _assert_trains(cluster, train, plan, config):
    ranks = cluster.run(train, plan, config, 3, world_size=8)
    replicas = {means[0] for means in ranks}
    assert len(replicas) == plan.modules["language_module"].data_parallel
    assert all(means[-1] < means[0] for means in ranks)


def test_the_loop_on_the_page_of_names_trains(cluster, page):
    _assert_trains(cluster, page["train"], page["plan"], page["config"])


@pytest.mark.parametrize("sizes", [((1, 8), (4, 2)), ((4, 2), (1, 8))], ids=["fan-in", "fan-out"])
def test_the_loop_on_the_page_of_names_slices(cluster, page, sizes):
    config = mimokit.load_experiment_config("configs/digits_colocated.yaml")
    for name, (tensor, data) in zip(("images", LANGUAGE), sizes, strict=True):
        module = config.model.module_parallelisms[name]
        module.tensor_parallel, module.data_parallel = tensor, data
    config.finalize()
    _assert_trains(cluster, page["train_colocated"], mimokit.plan(config), config)
