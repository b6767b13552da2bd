"""torchrun commands and Slurm scripts."""

import shlex

import pytest

from mimokit.config import ConfigError
from mimokit.config.sizes import ParallelSizes
from mimokit.interop import from_megatron_arguments, to_slurm, to_torchrun
from mimokit.prediction import Layout
from tests.commands import run_to_end
from tests.rows import rows

SIXTEEN = Layout("homogeneous", {"language": ParallelSizes(4, 2, data=2)})


def bash_reads(script: str) -> bool:
    done = run_to_end(["bash", "-n"], input=script)
    assert done.stderr == "" or done.returncode
    return done.returncode == 0


def test_one_command_per_host() -> None:
    text = to_torchrun(SIXTEEN, "my train.py", hosts=["left", "right"])
    assert bash_reads(text)
    lines = [shlex.split(line) for line in text.splitlines() if not line.startswith("#")]
    assert [line[3] for line in lines] == ["--node-rank=0", "--node-rank=1"]
    for line in lines:
        assert line[:3] == ["torchrun", "--nnodes=2", "--nproc-per-node=8"]
        assert line[4:6] == ["--master-addr=left", "--master-port=29500"]
        assert line[6:] == ["my train.py"]


def test_its_gpus_are_read_back() -> None:
    text = to_torchrun(SIXTEEN, "train.py", hosts=["left", "right"])
    command = text.splitlines()[1] + " --tensor-model-parallel-size 4"
    own = from_megatron_arguments(command).layout.modules["language"]
    assert (own.tensor, own.data) == (4, 4)


@rows("word", "plain", "it's", 'a "b" c', "$(rm x)", "a b")
def test_slurm_scripts_are_bash_and_quote_what_they_pass(word: str) -> None:
    script = to_slurm(SIXTEEN, word)
    assert bash_reads(script)
    assert "#SBATCH --nodes=2" in script
    assert "#SBATCH --gpus-per-node=8" in script
    # What only a node has is a function here: srun runs its command, torchrun shows it.
    pretend = [
        "scontrol() { echo left; }",
        'srun() { bash -c "$4"; }',
        "torchrun() { printf '%s\\n' \"$@\"; }",
        "export -f torchrun",
    ]
    run = run_to_end(
        ["bash", "-c", "\n".join([*pretend, script])],
        env={"SLURM_JOB_NODELIST": "x", "SLURM_NODEID": "0", "PATH": "/usr/bin:/bin"},
    )
    assert run.stdout.splitlines()[-1:] == [word], run.stderr


def test_a_broken_script_is_seen() -> None:
    assert not bash_reads("if true; then\n")


def test_a_layout_smaller_than_a_node() -> None:
    small = Layout("homogeneous", {"language": ParallelSizes(2)})
    assert "--nproc-per-node=2" in to_torchrun(small, "train.py")


@rows(
    "gpus, hosts, sentence",
    (8, ["one"], "on each of 2 hosts, and 1 host is named; name 2 different ones"),
    (8, ["one", "one"], "name 2 different ones"),
    (6, ["one", "two"], "not a whole number of nodes"),
    (0, ["one"], "gpus_per_node is 0"),
)
def test_hosts_that_do_not_fit(gpus: int, hosts: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        to_torchrun(SIXTEEN, "train.py", hosts=hosts, gpus_per_node=gpus)


def test_sizes_that_are_no_counts() -> None:
    with pytest.raises(ConfigError, match="Module 'language': data is 0"):
        to_slurm(Layout("homogeneous", {"language": ParallelSizes(data=0)}), "train.py")
    with pytest.raises(ConfigError, match="it has no modules"):
        to_torchrun(Layout("homogeneous", {}), "train.py")
