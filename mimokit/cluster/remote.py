"""A cluster that others have started, possibly on many hosts."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import ipyparallel

from mimokit.cluster.errors import ClusterError
from mimokit.cluster.link import EngineLink
from mimokit.cluster.pool import DeathListener, Engine, Progress

CONNECT_SECONDS = 30.0


class ConnectedPool:
    """Engines that are not ours: they are used, watched, and left running."""

    link: EngineLink

    def __init__(
        self,
        n: int | None,
        profile: str | None,
        cluster_file: str | Path | None,
        on_death: DeathListener,
        progress: Progress,
    ) -> None:
        self.link = EngineLink(_connect(profile, cluster_file))
        self._on_death = on_death
        try:
            self._slots = self._wait_for_engines(n, progress)
        except BaseException:
            self.link.close()
            raise
        self.link.client._registration_callbacks.append(self._on_registration)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine in every slot."""
        return tuple(Engine(slot, engine_id, None) for slot, engine_id in enumerate(self._slots))

    @property
    def description(self) -> str:
        """How the engines were started."""
        return "connected"

    def alive(self, slot: int) -> bool:
        """Whether the engine in the slot can be spoken to."""
        return self._slots[slot] in self.link.live_ids()

    def kill(self, slot: int) -> None:
        """End an engine by force, through its nanny."""
        self.link.signal(self._slots[slot], signal.SIGKILL)

    def replace(self, slots: list[int]) -> None:
        """Take in engines that have joined the cluster meanwhile; we cannot start any."""
        spare = [one for one in self.link.live_ids() if one not in self._slots]
        if len(spare) < len(slots):
            raise ClusterError(
                f"{len(slots)} of {len(self._slots)} engines have died and this cluster was not "
                f"started here: start {len(slots) - len(spare)} more engines where it runs"
            )
        for slot, engine_id in zip(slots, spare, strict=False):
            self._slots[slot] = engine_id

    def close(self) -> None:
        """Disconnect; the engines go on."""
        self.link.close()

    def _wait_for_engines(self, n: int | None, progress: Progress) -> list[int]:
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            there = self.link.live_ids()
            progress.show(min(len(there), n or len(there)))
            if len(there) >= (n or 1):
                return sorted(there)[: n or len(there)]
            if time.monotonic() > deadline:
                raise ClusterError(
                    f"the cluster has {len(there)} engines, {n or 1} are needed: start more"
                )
            time.sleep(0.05)

    def _on_registration(self, event: dict[str, object]) -> None:
        if event["event"] == "unregister":
            self._on_death(int(str(event["id"])), None)


def _connect(profile: str | None, cluster_file: str | Path | None) -> object:
    try:
        if cluster_file is None:
            return ipyparallel.Client(profile=profile, timeout=CONNECT_SECONDS)
        path = Path(cluster_file)
        if "registration" in json.loads(path.read_text()):
            return ipyparallel.Client(str(path), timeout=CONNECT_SECONDS)
        return ipyparallel.Cluster.from_file(str(path)).connect_client_sync()
    except (OSError, TimeoutError, ValueError) as error:
        place = f"profile {profile!r}" if cluster_file is None else f"{cluster_file}"
        raise ClusterError(f"no running cluster was found by {place}: {error}") from error
