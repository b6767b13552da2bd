"""Faults in training, sweeps and fits: `python -m tests.chaos --seed N --minutes M` replays them.

The seed decides what is run, what befalls it and when, in optimizer steps. Of a run that ends it
asserts that it has every step once, with the losses of the undisturbed run bit for bit, and that
the error or the note of each new attempt names the rank; of all, that nothing is left: processes of
engines, descriptors, threads, shared memory, files next to the results.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from mimokit.analysis import read_run
from mimokit.cluster import EngineCluster, RankDied
from mimokit.config import ExperimentConfig
from mimokit.experiment import sweep, train
from mimokit.planning.checkpoints import PARTIAL
from tests.commands import run_to_end
from tests.disks import fill, small_disk
from tests.evaluations import QUICK
from tests.layouts import digits_config
from tests.leaks import held, leaks

STEPS, EVERY, RESTARTS = 24, 2, 4
PATIENCE = 600.0
SLEEPS = "MIMOKIT_CHAOS_SLEEPS"
"""A file; while it is there, the rank that it names sleeps in its loss."""
NARROW = ["tbf", "rate", "200mbit", "burst", "6kb", "limit", "12kb"]
"""A queue of the kernel that drops what comes while it is full; netem, which drops by chance, is
missing in many kernels."""
NOT_MEASURED: list[str] = []
"""Why packets could not be dropped, once for each fault that did not befall."""
CLIENT = "import sys; from tests.chaos import be_a_client; be_a_client(sys.argv[1])"


@dataclass(frozen=True)
class Fault:
    """What befalls a run: which fault, on which rank, after which step."""

    name: str
    rank: int
    step: int

    def __str__(self) -> str:
        return f"{self.name} of rank {self.rank} after step {self.step}"


@dataclass
class Chaos:
    """A cluster, the losses of the undisturbed run, and where faults leave their files."""

    cluster: EngineCluster
    folder: Path
    losses: list[float]

    def pid(self, rank: int) -> int:
        """Return the process of a rank, which is the engine of that number."""
        pid = self.cluster.pids[rank]
        assert pid is not None
        return pid


def config() -> ExperimentConfig:
    """Return what is trained: two ranks, of which each waits for the other in every step."""
    return digits_config((1, 2), (2, 1), num_iterations=STEPS)


def sleeps_if_told(loss_mask: Any, losses: Any) -> Any:
    """Return the usual loss; the rank that the file names sleeps first."""
    file = Path(os.environ[SLEEPS])
    while file.exists() and file.read_text() == os.environ["RANK"]:
        time.sleep(3600)
    return (losses * loss_mask).sum(), loss_mask.sum()


def trained(chaos: Chaos, fault: Fault) -> None:
    """Train with restarts; the fault befalls it once."""
    directory = Path(tempfile.mkdtemp(dir=chaos.folder))
    run = _begun(chaos.cluster, directory)
    _await_step(run, fault.step)
    end = FAULTS[fault.name](chaos, fault)
    _await(lambda: run.restarts or run.done)
    end()
    run.result(PATIENCE)
    causes = [restart.cause for restart in run.restarts]
    if fault.name in NAMED:
        assert causes, "nothing has befallen it"
        assert f"rank {fault.rank} " in causes[0], causes[0]
    _assert_every_step_once(chaos, directory)


def swept(chaos: Chaos, fault: Fault) -> None:
    """Sweep two experiments; a rank dies in the first, and the second is not touched."""
    one, two = config(), config()
    one.name, two.name = "one", "two"
    running = sweep(
        chaos.cluster, [one, two], results_dir=chaos.folder / "sweeps", evaluations=QUICK
    )
    _await(lambda: any(record.iteration > fault.step for record in running.experiments))
    os.kill(chaos.pid(fault.rank), signal.SIGKILL)
    result = running.result(PATIENCE)
    first, second = result.experiments
    assert f"rank {fault.rank} " in first.message, first.message
    losses = read_run(second.directory).metrics["loss"].tolist()
    assert losses == chaos.losses, "the second experiment"


def client_killed(chaos: Chaos, fault: Fault) -> None:
    """End a client by SIGKILL: its engines end, and the rows that it has written are whole."""
    directory = Path(tempfile.mkdtemp(dir=chaos.folder))
    client = subprocess.Popen([sys.executable, "-c", CLIENT, str(directory)])
    table = directory / "metrics.csv"
    _await(lambda: table.is_file() and table.read_bytes().count(b"\n") > fault.step + 1)
    family = _descendants(client.pid)
    client.kill()
    client.wait()
    _await(lambda: not any(map(_is_there, family)))
    rows = read_run(directory).metrics
    assert rows["loss"].tolist() == chaos.losses[: len(rows)]


def be_a_client(directory: str) -> None:
    """Train in a cluster of this process."""
    with EngineCluster(2, progress=False) as cluster:
        train(cluster, config(), evaluations=QUICK, directory=directory).result()


def fit(chaos: Chaos, fault: Fault) -> None:
    """Kill node 1 of a fit; one that goes on has the weights of one that was left alone."""
    from tests.extras.strategies.fits.nets import Linear, equal, places, trainer
    from tests.extras.strategies.fits.test_nodes import FEW, SGD, DiLoCoStrategy, KilledInStepNine

    folder = Path(tempfile.mkdtemp(dir=chaos.folder))
    options: dict[str, Any] = {
        **FEW, "strategy": DiLoCoStrategy(SGD, H=1 + fault.step % 4), "max_steps": 12,
        "num_nodes": 2, "checkpoint_interval": 1 + fault.step % 5,
    }  # fmt: skip
    whole = trainer(chaos.cluster, Linear).fit(**options, **places(folder / "whole"))
    broken = trainer(chaos.cluster, KilledInStepNine)
    broken.model.kill = folder / "kill"
    broken.model.kill.touch()
    try:
        broken.fit(run_name="killed", **options, **places(folder))
    except RankDied as error:
        assert "rank 1 " in str(error), error  # noqa: PT017
    else:
        raise AssertionError("nothing has befallen it")
    found = broken.start(run_name="killed", resume=True, **options, **places(folder)).result()
    assert found.train["step"].tolist() == list(range(1, 13))
    assert equal(found.model, whole)


def _kill(chaos: Chaos, fault: Fault) -> Callable[[], None]:
    os.kill(chaos.pid(fault.rank), signal.SIGKILL)
    return lambda: None


def _stop(chaos: Chaos, fault: Fault) -> Callable[[], None]:
    os.kill(chaos.pid(fault.rank), signal.SIGSTOP)
    return lambda: None


def _sleep(chaos: Chaos, fault: Fault) -> Callable[[], None]:
    file = Path(os.environ[SLEEPS])
    file.write_text(str(fault.rank))
    return file.unlink


def _lose_packets(chaos: Chaos, fault: Fault) -> Callable[[], None]:
    inside = ["nsenter", "-t", str(chaos.pid(fault.rank)), "-n"]
    for command in (["ip", "link", "set", "lo", "mtu", "1500"],
                    ["tc", "qdisc", "add", "dev", "lo", "root", *NARROW]):  # fmt: skip
        done = run_to_end([*inside, *command])
        if done.returncode:
            NOT_MEASURED.append(done.stderr.strip())
            return lambda: None

    def end() -> None:
        told = subprocess.check_output([*inside, "tc", "-s", "qdisc", "show", "dev", "lo"])
        print(f"  ({(lost := dropped(told.decode()))} packets were dropped)")
        subprocess.run([*inside, "tc", "qdisc", "del", "dev", "lo", "root"], check=True)
        subprocess.run([*inside, "ip", "link", "set", "lo", "mtu", "65536"], check=True)
        assert lost, "nothing has befallen it"

    return end


def dropped(told: str) -> int:
    """Return the packets that a queue has dropped, as `tc -s` tells it."""
    return int(told.partition("dropped ")[2].partition(",")[0])


def full_disk(chaos: Chaos, fault: Fault) -> None:
    """Fill the disk of the results: the run ends with one sentence, and no half of a file."""
    place = chaos.folder / f"disk-{fault.step}-{time.monotonic_ns()}"
    with small_disk(place, 4000):
        run = _begun(chaos.cluster, place / "run")
        _await_step(run, fault.step)
        filler = fill(place)
        try:
            run.result(PATIENCE)
        except Exception as error:
            assert "No space left" in str(error), error  # noqa: PT017
        filler.unlink()
        assert not list(place.rglob(f"*{PARTIAL}"))


FAULTS: Mapping[str, Callable[[Chaos, Fault], Callable[[], None]]] = {
    "kill": _kill, "stop": _stop, "sleep": _sleep, "lost packets": _lose_packets,
}  # fmt: skip
"""What befalls a rank in training -> what ends it."""
NAMED = ("kill", "stop", "sleep")
OTHERS: Mapping[str, Callable[[Chaos, Fault], None]] = {
    "sweep": swept, "client": client_killed, "fit": fit, "full disk": full_disk,
}  # fmt: skip


def drawn(random: Random) -> Fault:
    """Return the next fault; the same numbers draw the same ones."""
    return Fault(random.choice((*FAULTS, *OTHERS)), random.randrange(2), random.randrange(3, 15))


def befall(chaos: Chaos, fault: Fault) -> None:
    """Run what the fault is of, and assert what must hold."""
    engines = [pid for pid in chaos.cluster.pids if pid is not None]
    before = held(engines)
    OTHERS.get(fault.name, trained)(chaos, fault)
    chaos.cluster.run(os.getpid)
    engines = [pid for pid in chaos.cluster.pids if pid is not None]
    assert not (left := leaks(before, engines, PATIENCE)), f"{fault} has left {', '.join(left)}"


def begun(cluster: EngineCluster, folder: Path) -> Chaos:
    """Train undisturbed, for the losses that all others must have."""
    os.environ[SLEEPS] = str(folder / "sleeps")
    _begun(cluster, folder / "undisturbed").result(PATIENCE)
    return Chaos(cluster, folder, read_run(folder / "undisturbed").metrics["loss"].tolist())


def _begun(cluster: EngineCluster, directory: Path) -> Any:
    return train(
        cluster,
        config(),
        evaluations=QUICK,
        directory=directory,
        loss_func=sleeps_if_told,
        checkpoints=EVERY,
        restarts=RESTARTS,
    )


def _assert_every_step_once(chaos: Chaos, directory: Path) -> None:
    metrics = read_run(directory).metrics
    assert metrics["iteration"].tolist() == list(range(STEPS)), "every step once"
    assert metrics["loss"].tolist() == chaos.losses, "bit for bit"
    assert not list(directory.rglob(f"*{PARTIAL}"))


def _await_step(run: Any, step: int) -> None:
    _await(lambda: run.done or any(getattr(one, "iteration", -1) >= step for one in run.samples))


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def _descendants(pid: int) -> list[Any]:
    import psutil

    return psutil.Process(pid).children(recursive=True)


def _is_there(process: Any) -> bool:
    return bool(process.is_running() and process.status() != "zombie")


def main() -> None:
    """Draw faults until the time is over; the first that breaks a promise ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10.0)
    asked = parser.parse_args()
    random, ends = Random(asked.seed), time.monotonic() + 60 * asked.minutes
    with tempfile.TemporaryDirectory(prefix="mimokit-chaos-") as name:
        os.environ[SLEEPS] = f"{name}/sleeps"
        with EngineCluster(2, progress=False) as cluster:
            chaos, number = begun(cluster, Path(name)), 0
            while time.monotonic() < ends:
                fault, began = drawn(random), time.monotonic()
                befall(chaos, fault)
                number += 1
                print(f"{number}: {fault}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"{number} faults of seed {asked.seed}: every promise held.")
    for reason in set(NOT_MEASURED):
        print(f"Lost packets were not measured, {NOT_MEASURED.count(reason)} times: {reason}")


if __name__ == "__main__":
    main()
