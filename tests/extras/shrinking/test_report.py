"""`verify --shrink`: small layouts in place of one that has no room."""

from mimokit.extras.shrinking import explain_shrunk


def test_small_layouts_stand_for_one_that_has_no_room(cluster):
    report = explain_shrunk(cluster, "preset:llava_7b_colocated", steps=1)
    assert report.passed, report.verdict
    assert [layout.total_world_size for layout in report.layouts] == [2]
    assert report.verdict.startswith("In place of 8 ranks of 'llava_7b_colocated': 2 ranks, with")
    assert "images DP2 · language_module TP2" in str(report)
