"""The health of a training run: ranks that must hold the same bits, and entries that are finite."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult

from mimokit.planning.types import LayoutPlan
from mimokit.samples import HealthSample
from mimokit.tables import html_heading, html_table, rich_table

HEADING = "Health of the ranks"
COLUMNS = ("rank", "after iteration", "parameters", "differ from a lower rank", "not finite")
MOST_SENTENCES = 4


@dataclass(frozen=True)
class Difference:
    """A rank with other bits than a lower one.

    Attributes:
        ranks: the lower one and it.
        names: of the tensors or shards.
    """

    ranks: tuple[int, int]
    names: tuple[str, ...]


@dataclass(frozen=True)
class RunHealth:
    """What the ranks of a run said about their parameters.

    Whether the layout computes the model, `verify` says.

    Attributes:
        ranks: what each said after the first iteration with something wrong, else after the last.
        differences: of the ranks after the first iteration in which there are any.
    """

    ranks: tuple[HealthSample, ...]
    differences: tuple[Difference, ...]

    @classmethod
    def of(cls, samples: Iterable[HealthSample], plan: LayoutPlan) -> RunHealth:
        """Return the health that samples show.

        Args:
            samples: of any ranks and iterations.
            plan: of the run: ranks of different replicas of a layout may differ.
        """
        iterations: dict[int, dict[int, HealthSample]] = {}
        for sample in samples:
            iterations.setdefault(sample.iteration, {})[sample.rank] = sample
        together = plan.world_size // plan.batch.replicas
        ranks: Sequence[HealthSample] = ()
        for iteration in sorted(iterations):
            ranks = [one for _, one in sorted(iterations[iteration].items())]
            differences = tuple(_differences(ranks, together))
            if differences or any(one.not_finite for one in ranks):
                return cls(tuple(ranks), differences)
        return cls(tuple(ranks), ())

    @property
    def wrong(self) -> tuple[str, ...]:
        """A sentence for each thing that is wrong; for the last ones together if there are many."""
        found = [*self._not_finite(), *self._different()]
        more = len(found) - MOST_SENTENCES
        return (*found[:MOST_SENTENCES], *([f"And {more:,} more."] if more > 0 else []))

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def _not_finite(self) -> Iterator[str]:
        for one in self.ranks:
            if one.not_finite:
                yield (
                    f"Rank {one.rank} has an entry that is not finite in "
                    f"{_named(one.not_finite)} after iteration {one.iteration}."
                )

    def _different(self) -> Iterator[str]:
        for one in self.differences:
            yield (
                f"Ranks {one.ranks[0]} and {one.ranks[1]} have different bits of "
                f"{_named(one.names)} after iteration {self.ranks[0].iteration}, which must be "
                "alike."
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"healthy": self.healthy, "wrong": list(self.wrong)}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Show a table and the sentences."""
        yield rich_table(HEADING, COLUMNS, self._rows())
        yield from self._sentences()

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        table = html_table(COLUMNS, self._rows(), heading=HEADING)
        return table + "".join(map(html_heading, self._sentences()))

    def _sentences(self) -> tuple[str, ...]:
        if not self.ranks:
            return ("No rank has finished an iteration.",)
        return self.wrong or ("Nothing is wrong.",)

    def _rows(self) -> list[list[str]]:
        others = {one.ranks[1]: one for one in self.differences}
        return [
            [
                str(one.rank), str(one.iteration), f"{len(one.digests):,}",
                f"{len(others[one.rank].names):,}" if one.rank in others else "0",
                f"{len(one.not_finite):,}",
            ]
            for one in self.ranks
        ]  # fmt: skip


def _differences(ranks: Sequence[HealthSample], together: int) -> Iterator[Difference]:
    """Yield the ranks that differ from the first that has a tensor, in its replica of the layout.

    Args:
        ranks: what each has, after one iteration, in order.
        together: neighbours that form a replica.
    """
    first: dict[tuple[int, str], HealthSample] = {}
    for one in ranks:
        names: dict[int, list[str]] = {}
        for name, digest in one.digests.items():
            known = first.setdefault((one.rank // together, name), one)
            if known.digests[name] != digest:
                names.setdefault(known.rank, []).append(name)
        for lower, different in names.items():
            yield Difference((lower, one.rank), tuple(different))


def _named(names: Sequence[str]) -> str:
    others = len(names) - 1
    return names[0] + (f" and {others:,} other{'s' if others > 1 else ''}" if others else "")
