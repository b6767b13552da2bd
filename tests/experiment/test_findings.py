"""What one rank took in a transfer is looked at whole, from the rows of both ends."""

import numpy as np

from mimokit.experiment.stepping.findings import alike, findings_of
from mimokit.planning.stepper import Crossing, PlanDifference, SeenCrossing
from mimokit.planning.stepper.crossings import INPUT, PieceRows

HELD = np.arange(48.0).reshape(8, 6)


def _found(pieces, rows, *wrong):
    """Return the differences and findings of pieces, of which ranks answer with these rows."""
    seen = [SeenCrossing(crossing, sent, (), 0, ()) for crossing, sent in pieces]

    def ask(asked):
        return {rank: [rows.get(piece) for piece in wanted] for rank, wanted in asked.items()}

    told = [PlanDifference(crossing, "this", "that", sent=sent) for crossing, sent in wrong]
    return findings_of(told, seen, ask)


def test_what_a_rank_gathers_of_several_is_one_finding():
    ways = [
        Crossing("images", "words", False, 0, giver, 2, 4 * giver, 4 * giver + 4)
        for giver in (0, 1)
    ]
    pieces = [(way, sent) for way in ways for sent in (True, False)]
    right = [HELD[:4], HELD[4:]]
    came = np.split(np.roll(HELD, 1, 0), 2)
    rows = {(way, True): PieceRows(right[n], HELD, 4 * n) for n, way in enumerate(ways)}
    rows |= {(way, False): PieceRows(came[n]) for n, way in enumerate(ways)}
    told, findings = _found(pieces, rows, *((way, False) for way in ways))
    how = "the rows are rolled by 1: row 7 came first"
    assert [str(each) for each in findings] == [
        f"rank 2 took the output of 'images', micro-batch 0: {how}"
    ]
    assert {each.how for each in told} == {how}
    assert findings[0].module == "words"
    assert findings[0].right.rows == 8


def test_what_was_cut_elsewhere_says_which_rows_and_ranks_that_did_the_same_are_one():
    ways = [Crossing("images", "words", False, 1, rank, rank, 4, 6) for rank in (2, 3)]
    pieces = [(way, sent) for way in ways for sent in (True, False)]
    rows = {(way, True): PieceRows(HELD[4:6], HELD, 4) for way in ways}
    rows |= {(way, False): PieceRows(HELD[3:5]) for way in ways}
    _, findings = _found(pieces, rows, *((way, False) for way in ways))
    ((ranks, finding),) = alike(findings)
    assert ranks == [2, 3]
    assert finding.how == "rows 3–4 came instead of rows 4–5"
    way = ways[0]
    sent = {(way, True): PieceRows(HELD[0:2], HELD, 4)}
    _, (finding,) = _found([(way, True)], sent, (way, True))
    assert str(finding).startswith("rank 2 sent the output of 'images', micro-batch 1: rows 0–1")
    assert finding.module == "images"


def test_an_input_is_numbered_by_its_samples_and_what_is_not_kept_has_no_finding():
    way = Crossing(INPUT, "images", False, 0, 1, 1, 4, 12)
    rows = {(way, True): PieceRows(HELD, HELD), (way, False): PieceRows(HELD[::-1])}
    told, (finding,) = _found([(way, True), (way, False)], rows, (way, False))
    assert finding.how == "the samples are in reverse order: sample 11 came for sample 4"
    assert str(told[0]).startswith("The input of 'images' for samples 4 to 11 of micro-batch 0 on")
    told, findings = _found([(way, True), (way, False)], {}, (way, False))
    assert findings == ()
    assert told[0].how == ""
