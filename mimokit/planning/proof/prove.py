"""The proof of a plan: its claims, each by a function that yields what is wrong."""

from collections.abc import Iterator

from mimokit.config import ExperimentConfig
from mimokit.planning.layout import ConfigSource, checked_config, plan_checked
from mimokit.planning.proof.parameters import unheld_parts, unreduced_parts
from mimokit.planning.proof.places import broken_groups, differing_sizes, unplaced_ranks
from mimokit.planning.proof.report import Claim, PlanProof
from mimokit.planning.proof.samples import broken_bridges, uncomputed_samples, unread_samples
from mimokit.planning.proof.sizes import unequal_sizes
from mimokit.planning.proof.work import Actions, waits, wrong_work
from mimokit.planning.schedule import ScheduleError
from mimokit.planning.types import LayoutPlan
from mimokit.units import counted

EVERY = "every rank"


def prove(plan: LayoutPlan, config: ExperimentConfig) -> PlanProof:
    """Prove a plan, or say what is wrong with it."""
    actions, of_actions = _actions(plan)
    claims = [
        Claim.of("every rank has work", EVERY, unplaced_ranks(plan)),
        Claim.of("ranks and their execution have the same sizes", EVERY, differing_sizes(plan)),
    ]
    if not any(claim.faults for claim in claims):
        groups = broken_groups(plan, actions)
        claims.append(Claim.of("groups are complete and call alike", EVERY, groups))
    if not any(claim.faults for claim in claims):  # the others count on grids that are right
        claims += [
            Claim.of("each sample is computed once", EVERY, uncomputed_samples(plan)),
            Claim.of("groups give equal sizes", EVERY, unequal_sizes(plan, config)),
            Claim.of("what is computed is read", EVERY, _unread(plan, config)),
            Claim.of("bridges bring each sample once", EVERY, broken_bridges(plan)),
            Claim.of(
                "each part of a parameter is held",
                "one rank of each place in a stage",
                unheld_parts(plan, config),
            ),
            Claim.of("each part is reduced and updated once", EVERY, unreduced_parts(plan)),
        ]
    return PlanProof(config.name, plan.world_size, (*claims, *of_actions))


def _unread(plan: LayoutPlan, config: ExperimentConfig) -> Iterator[str]:
    return unread_samples(plan, config.model.reconstructing_names)


def prove_layout(config: ConfigSource) -> PlanProof:
    """Prove the plan of a layout of any number of ranks; nothing is run.

    Args:
        config: a config, the path of one, or preset:NAME.

    Raises:
        ConfigError: the config is wrong.
    """
    checked = checked_config(config)
    return prove(plan_checked(checked), checked)


def _actions(plan: LayoutPlan) -> tuple[Actions, list[Claim]]:
    workers = len(plan.program.graph.workers)
    alike = f"one rank of each of {counted(workers, 'list')} of actions"
    work, order = "each micro-batch is computed and updated once", "no rank waits indefinitely"
    try:
        actions = plan.program.schedule.all_actions()
    except ScheduleError as error:
        return [()] * workers, [Claim(work, alike, (str(error),))]
    return actions, [
        Claim.of(work, alike, wrong_work(plan, actions)),
        Claim.of(order, alike, waits(actions)),
    ]
