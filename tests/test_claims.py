"""Every claim is proved, and its fault breaks the proof; the page claims nothing else."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mimokit.cluster import ClusterError, EngineCluster
from mimokit.experiment import VerificationReport, verify
from tests.claims import CLAIMS, Claim
from tests.claims.__main__ import PAGE, written
from tests.claims.faults import RATES_EXCHANGED, Plant
from tests.invariance import assert_computes_the_same, assert_within_its_noise, oracle_of
from tests.planted import planted
from tests.shared_cluster import SharedCluster

ORDERED = sorted(CLAIMS, key=lambda claim: claim.ranks)  # few worlds are formed
BY_NAME = {claim.name.replace(",", "").replace(" ", "-"): claim for claim in ORDERED}


def different(claims: Mapping[str, Claim]) -> dict[str, Claim]:
    """Return one claim of each layout that several have, as they differ in their faults alone."""
    found: dict[str, Claim] = {}
    for name, claim in claims.items():
        same = ((other.config, other.steps) for other in found.values())
        if (claim.config, claim.steps) not in same:
            found[name] = claim
    return found


@pytest.fixture(scope="module")
def _oracles(request: pytest.FixtureRequest, shared_cluster: SharedCluster) -> None:
    """Compute all oracles one after another: each needs a world of one rank.

    A test computes again, and tells of, what fails here.
    """
    ours = (one for one in request.session.items if one.path == request.path)
    for name in {one.callspec.params["name"]: one for one in ours if hasattr(one, "callspec")}:
        with contextlib.suppress(ClusterError):
            oracle_of(shared_cluster.get(), BY_NAME[name].config, BY_NAME[name].steps)


@pytest.mark.usefixtures("_oracles")
@pytest.mark.parametrize("name", different(BY_NAME))
def test_a_layout_computes_what_one_process_computes(cluster: EngineCluster, name: str) -> None:
    claim = BY_NAME[name]
    exact = claim.config.runtime.precision in (None, "fp32")
    check = assert_computes_the_same if exact else assert_within_its_noise
    check(cluster, claim.config, claim.steps)


@pytest.mark.usefixtures("_oracles")
@pytest.mark.parametrize("name", BY_NAME)
def test_its_fault_is_found(cluster: EngineCluster, name: str) -> None:
    check_fault(cluster, BY_NAME[name])


def check_fault(cluster: EngineCluster, claim: Claim) -> None:
    """Plant the fault of a claim, which must fail its run and change what the claim says."""
    config = claim.config
    oracle = oracle_of(cluster, config, claim.steps)
    steps = claim.steps if config.strategy else 1
    with planted(cluster, claim.fault.target, claim.fault.make, claim.ranks):
        report = verify(cluster, config, steps=steps, oracle=oracle)
    assert not report.passed, "the fault is not found"
    assert shown(report, claim) >= claim.least


def shown(report: VerificationReport, claim: Claim) -> float:
    """Return how much a fault changes what its claim says that it changes."""
    differences = {
        "loss": report.max_loss_difference,
        "gradients": report.max_gradient_difference,
        "weights": report.max_weight_difference,
    }
    return differences[claim.shows]


def test_a_fault_that_changes_nothing_is_not_taken_for_one(cluster: EngineCluster) -> None:
    claim = next(iter(CLAIMS))
    idle = replace(claim, fault=Plant(claim.fault.target, lambda original: original))
    with pytest.raises(AssertionError, match="the fault is not found"):
        check_fault(cluster, idle)


def test_two_modules_that_exchange_their_rates_are_found(cluster: EngineCluster) -> None:
    claim = next(claim for claim in CLAIMS if claim.title == "rates of each module")
    check_fault(cluster, replace(claim, fault=RATES_EXCHANGED))


def test_no_two_claims_share_a_name() -> None:
    assert len(BY_NAME) == len(CLAIMS)


def test_the_page_claims_what_is_proved_and_nothing_else() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written(text), "write it with python -m tests.claims"
