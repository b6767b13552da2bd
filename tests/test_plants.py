"""Every planted fault belongs to a claim."""

from tests.claims.plants import OWNERS, claimed, faults, planted_by_tests, planting_tests


def test_every_fault_belongs_to_a_claim() -> None:
    of_claims = claimed()
    without = [fault for fault, claim in faults() if claim not in of_claims]
    assert not without, "say in OWNERS of tests/claims/plants.py what each breaks"


def test_no_file_is_listed_that_plants_nothing() -> None:
    assert {*OWNERS} == {*planted_by_tests()}


def test_a_fault_is_seen_however_deep_it_is_planted() -> None:
    source = """
from tests.planted import planted
from somewhere import planted as other
def _deep(cluster):
    with planted(cluster, "a", "b", 2):
        pass
def _deeper(cluster):
    _deep(cluster)
def test_one(cluster):
    _deeper(cluster)
def test_two():
    pass
def test_it_is_caught():
    pass
"""
    assert [*planting_tests(source)] == ["test_one", "test_it_is_caught"]
    assert not [*planting_tests(source.replace("tests.planted", "elsewhere"))][1:]
