"""Ranks that share the states of an optimizer compute what one process computes, in less memory."""

import mimokit
from tests.engine.user_loop.test_documents_loop import homogeneous
from tests.layouts import digits_config
from tests.rank_steps import run_step, state_of
from tests.whole_runs import IN_FULL, LANGUAGE, SHARDED_STATES, with_sizes


def _held(plan, config):
    """Train one step; return the numbers of optimizer states and main weights on this rank."""

    with state_of(plan, config) as state:
        run_step(state)
        optimizer = state.update.optimizer
        moments = sum(
            s["exp_avg"].numel() + s["exp_avg_sq"].numel() for s in optimizer.state.values()
        )
        copies = sum(
            main.numel() for main, p in optimizer.of_model.items() if p.dtype != main.dtype
        )
        return moments, copies


def test_ranks_that_share_states_hold_a_part_of_them(cluster):
    held = []
    for fields in ({}, SHARDED_STATES):
        config = digits_config((1, 4), (1, 4), precision="bf16")
        config = with_sizes(config, ("images", LANGUAGE), **fields)
        held.append(cluster.run(_held, mimokit.plan(config), config, world_size=4))
    whole, shared = held
    assert len(set(whole)) == 1, "every replica has all states"
    for number in range(2):
        assert sum(rank[number] for rank in shared) == whole[0][number]
        assert max(rank[number] for rank in shared) < 0.35 * whole[0][number]


def _bytes_held(plan, config):
    """Train one step; return the bytes of weights and of gradients on this rank."""
    from mimokit.engine.training.module_bytes import bytes_of_states

    with state_of(plan, config) as state:
        run_step(state)
        held = bytes_of_states(state.model.modules(), state.update.optimizer).values()
        return [sum(module[kind] for module in held) for kind in ("weights", "gradients")]


def test_ranks_of_full_shards_hold_a_part_of_weights_and_gradients(cluster):
    held = []
    for fields in ({}, IN_FULL):
        config = with_sizes(digits_config((1, 4), (1, 4)), ("images", LANGUAGE), **fields)
        held.append(cluster.run(_bytes_held, mimokit.plan(config), config, world_size=4))
    whole, sharded = held
    for kind in range(2):
        assert max(rank[kind] for rank in sharded) < 0.5 * whole[0][kind]
        assert sum(rank[kind] for rank in sharded) >= whole[0][kind]


def _weights_of_a_users_loop(plan, config):
    """Run two steps of the document's loop; return the weights of all modules."""
    from mimokit import engine

    model, grids, run = homogeneous(plan, config, engine.default_data(config), 1)
    modules = engine.get_module_to_grid_tuple(model, grids)
    optimizer = engine.MainGradAdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        run()
        engine.finalize_model_grads(modules)
        optimizer.step()
        engine.zero_grad_buffer_for_multimodule(modules)
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    model.release()
    return weights


def test_a_users_loop_shares_states(cluster):
    found = []
    for fields in ({}, SHARDED_STATES):
        config = with_sizes(digits_config((1, 2), (1, 2)), ("images", LANGUAGE), **fields)
        arguments = mimokit.plan(config), config
        found.append(cluster.run(_weights_of_a_users_loop, *arguments, world_size=2))
    whole, shared = found
    for rank in shared:
        for weight, expected in zip(rank, whole[0], strict=True):
            assert float((weight - expected).abs().max()) < 1e-6
