"""Groups, weights and random numbers that a rank is given."""

import pytest
import torch

import mimokit
from mimokit.cluster import RankError
from mimokit.engine.models.rng import ModuleRngTracker, module_seed
from tests.layouts import digits_config
from tests.layouts_apart import apart_config
from tests.rank_steps import run_step, state_of


def _groups(plan):
    import torch.distributed as dist

    from mimokit.engine.parallel.grids import create_grids, is_current_rank_in_grid

    grids, collections = create_grids(plan)
    return {
        name: {
            "tp": dist.get_process_group_ranks(groups.tp),
            "dp": dist.get_process_group_ranks(groups.dp),
            "tp_dp_cp": dist.get_process_group_ranks(groups.tp_dp_cp),
            "in_grid": is_current_rank_in_grid(dist.get_rank(), grids[name]),
            "embd": groups.embd,
        }
        for name, groups in collections.items()
    }


def _groups_by_dimensions(plan):
    import torch.distributed as dist

    from mimokit.engine.device import open_groups
    from mimokit.engine.parallel.grids import create_grids

    before = open_groups()
    _, collections = create_grids(plan)
    groups = collections["images"]
    assert groups.tp is groups.tp_cp is groups.mp
    assert groups.dp is groups.dp_cp
    assert groups.expt_dp is groups.tp_dp_cp
    assert groups.cp is groups.pp is groups.ep
    sizes = sorted(dist.get_world_size(group) for group in open_groups() - before)
    return sizes


def test_dimensions_over_the_same_ranks_share_a_group(cluster):
    plan = mimokit.plan(digits_config((2, 2), (2, 2)))
    # tensor parallel, data parallel, this rank alone, all ranks
    assert cluster.run(_groups_by_dimensions, plan, world_size=4) == [[1, 2, 2, 4]] * 4


def _threads_after_models(plan, config, models):
    """Return how many threads a rank has after each of some models."""
    import gc
    import os

    counts = []
    for _ in range(models):
        with state_of(plan, config) as state:
            run_step(state)
        del state
        gc.collect()
        counts.append(len(os.listdir("/proc/self/task")))
    return counts


def test_a_model_that_is_gone_leaves_no_threads(cluster):
    config = digits_config((1, 2), (2, 1))
    for counts in cluster.run(_threads_after_models, mimokit.plan(config), config, 6, world_size=2):
        # A leak of one group is 3 threads per model. Threads of earlier tests may end meanwhile,
        # most of them with the first model.
        assert counts[-1] <= counts[1]


def test_ranks_are_in_the_groups_of_the_plan(cluster):
    plan = mimokit.plan(digits_config((1, 4), (2, 2)))
    results = cluster.run(_groups, plan, world_size=4)
    for rank, modules in enumerate(results):
        for name, groups in modules.items():
            for dimension in ("tp", "dp"):
                expected = next(g for g in plan.modules[name].groups(dimension) if rank in g)
                assert groups[dimension] == list(expected)
            assert groups["tp_dp_cp"] == [0, 1, 2, 3]
            assert groups["in_grid"]
            assert groups["embd"] is None


def _provide_for(plan, config):
    from mimokit.engine.models.specs import multimodal_provider

    multimodal_provider(config.model, plan, 1).provide(plan)


def test_a_plan_for_another_world_is_refused(cluster):
    config = digits_config((1, 4), (2, 2))
    with pytest.raises(RankError, match="plan is for 4 ranks but the world has 2"):
        cluster.run(_provide_for, mimokit.plan(config), config, world_size=2)


def _parts(plan, config):
    """Return what `provide` gives this rank: its modules, layers, first and last stage."""
    from mimokit.engine.models.specs import multimodal_provider
    from mimokit.engine.parallel.update import get_module_to_grid_tuple

    provided = multimodal_provider(config.model, plan, 1).provide(plan)
    if provided.model is None:
        return None, list(provided.module_to_grid_map), []
    found = {}
    for name, wrapped in provided.model.parts():
        module = wrapped.module
        if name == "images":
            (encoder,) = module.encoders.values()
            first, last = encoder.part.first, bool(module.input_projections)
            found[name] = (len(encoder.decoder.layers), first, last)
        else:
            found[name] = (len(module.decoder.layers), module.pre_process, module.post_process)
    pairs = get_module_to_grid_tuple(provided.model, provided.module_to_grid_map)
    assert [module for module, _ in pairs] == [module for _, module in provided.model.parts()]
    return found, list(provided.module_to_grid_map), list(provided.pg_collections)


def test_separate_ranks_are_given_their_module_and_stage(cluster):
    config = apart_config((1, 2, 1), (1, 2, 1))
    ranks = cluster.run(_parts, mimokit.plan(config), config, world_size=4)
    assert [modules for modules, _, _ in ranks] == [
        {"images": (2, True, False)},
        {"images": (2, False, True)},
        {"language_module": (2, True, False)},
        {"language_module": (2, False, True)},
    ]
    assert [own for _, _, own in ranks] == [["images"]] * 2 + [["language_module"]] * 2
    assert {tuple(grids) for _, grids, _ in ranks} == {("images", "language_module")}


def test_a_rank_of_no_module_is_given_none(cluster):
    config = apart_config((1, 1, 1), (1, 1, 1))
    config.model.allow_rank_gaps = True
    config.model.get_parallelism("language_module").rank_offset = 2
    with pytest.warns(UserWarning, match="rank 1 has no module"):
        plan = mimokit.plan(config)
    ranks = cluster.run(_parts, plan, config, world_size=3)
    assert [modules and list(modules) for modules, _, _ in ranks] == [
        ["images"],
        None,
        ["language_module"],
    ]


def test_modules_draw_from_states_of_their_own():
    tracker = ModuleRngTracker()
    for module in ("images", "language_module"):
        tracker.add(f"{module}/model-parallel-rng", module_seed(42, module))
    before = torch.get_rng_state()

    def draw(module):
        with tracker.computing(module), tracker.fork():
            return float(torch.rand(1))

    first = draw("images")
    other = draw("language_module")
    second = draw("images")
    assert len({first, other, second}) == 3
    assert torch.equal(torch.get_rng_state(), before), "code outside sees nothing of it"
    with pytest.raises(ValueError, match="exists already"):
        tracker.add("images/model-parallel-rng", 1)
