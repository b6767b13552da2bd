"""Programs of modules that share their ranks: homogeneous and colocated."""

from __future__ import annotations

from mimokit.planning.types import ColocatedBridge
from mimokit.prediction.local_cpu.simulator import Operation
from mimokit.prediction.local_cpu.step_costs import SCALAR_BYTES, StepCosts


def programs_together(step: StepCosts) -> list[list[Operation]]:
    """Return the program of every rank."""
    return [_program(step, rank) for rank in range(step.plan.world_size)]


def _program(step: StepCosts, rank: int) -> list[Operation]:
    program: list[Operation] = []
    for _ in range(step.plan.batch.num_microbatches):
        program += _microbatch(step, rank)
    return program + step.update(rank)


def _microbatch(step: StepCosts, rank: int) -> list[Operation]:
    language = step.plan.llm_module_name
    start, stop = step.plan.batch.modules[language].loaded[rank]
    program: list[Operation] = [step.load(stop - start)]
    bridges = step.plan.colocated_bridges
    for bridge in bridges:
        program.append(step.one_pass(bridge.source, "forward", rank))
        tensor_group = step.plan.modules[bridge.source].group_of(rank, "tp")
        program += step.gather(f"{bridge.source} check", tensor_group, 3.0 * SCALAR_BYTES)
        if bridge.direction == "fan_in":
            program += _gather(step, bridge, rank)
    program.append(step.one_pass(language, "forward", rank))
    program.append(step.one_pass(language, "backward", rank))
    for bridge in bridges:
        if bridge.direction == "fan_out":
            program += _gather(step, bridge, rank)
        program.append(step.one_pass(bridge.source, "backward", rank))
    return program


def _gather(step: StepCosts, bridge: ColocatedBridge, rank: int) -> list[Operation]:
    """Return the gather of a bridge: the rows of the micro-batch of the module with fewer."""
    members = next(group for group in bridge.gather_groups if rank in group)
    samples = max(step.samples(name) for name in (bridge.source, bridge.destination))
    size = step.module(bridge.source).row_bytes(samples)
    return step.gather(f"{bridge.source} bridge", members, size)
