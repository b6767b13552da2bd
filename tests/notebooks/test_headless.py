"""A chart of a notebook that cannot be read is found."""

from typing import Any

import nbformat

from mimokit.charts import _renderer
from tests.notebooks.headless import faults_of_charts


def showing(bundle: dict[str, Any]) -> Any:
    output = nbformat.v4.new_output("display_data", bundle)
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(outputs=[output])])


def test_a_chart_that_cannot_be_read_is_found() -> None:
    import altair as alt

    bars = alt.Chart(alt.Data(values=[{"seconds": 2}])).properties(description="Times")
    drawn = bars.mark_bar().encode(x=alt.X("seconds:Q", title="seconds"))
    assert faults_of_charts(showing(_renderer.bundle_of(drawn))) == []
    unnamed = _renderer.bundle_of(drawn.encode(x=alt.X("seconds:Q", title=None)))
    (fault,) = faults_of_charts(showing(unnamed))
    assert fault.startswith("<chart: Times>: an axis has no title")
    del unnamed["image/svg+xml"]
    assert faults_of_charts(showing(unnamed)) == ["<chart: Times>: it has no picture"]
