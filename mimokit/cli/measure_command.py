"""`mimokit measure`: what samples are made of, as a table, a picture and a Parquet file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from mimokit.cli.shared import Json, console, failures
from mimokit.tables import Section


def measure(
    source: Annotated[
        str,
        typer.Argument(
            help="An experiment (.yaml, or preset:NAME), a .parquet, .csv or .jsonl file of "
            "counts, or image_captions, interleaved_pages, videos, speech."
        ),
    ],
    samples: Annotated[int, typer.Option(help="Samples to read, or rows to keep.")] = 10_000,
    output: Annotated[
        Path | None,
        typer.Option(help="A .parquet file to write; a picture (.html) is written next to it."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure what samples are made of: text, images, frames, seconds, and their tails."""
    from mimokit.experiment.measuring import measure as measured
    from mimokit.workload.files import write_mix
    from mimokit.workload.presets import PUBLISHED

    with failures():
        mix = measured(source, samples)
        if output is not None:
            write_mix(mix, output)
    rows = mix.table()
    if as_json:
        typer.echo(json.dumps({"source": mix.source, "rows": mix.rows, "columns": rows}))
    else:
        cells = [
            [row["column"], *(f"{row[key]:,.4g}" for key in list(row)[1:-1]), f"{row['sum']:,.0f}"]
            for row in rows
        ]
        heading = f"{mix.source}: {mix.rows:,} samples"
        together = [f"{first} and {second}: r = {r:.2f}" for first, second, r in mix.correlations()]
        said = [] if source not in PUBLISHED else list(PUBLISHED[source].sentences())
        if mix.left_out:
            said.append(
                f"Left out: {', '.join(mix.left_out)}; a count is text, or MODALITY.items, "
                ".frames, .seconds, .size."
            )
        console().print(Section(heading, tuple(rows[0]), cells, [*together, *said]))
    if output is not None:
        from mimokit.charts import sample_histograms

        picture = output.with_suffix(".html")
        sample_histograms(mix).save(picture, inline=True)
        if not as_json:
            typer.echo(f"Written to {output} and {picture}")
