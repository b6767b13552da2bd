"""What README and pages show is what there is."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.main import get_command

import mimokit
from mimokit.cli.main import app
from mimokit.config.strategy import StrategyName
from mimokit.experiment.sweeps.experiments import choose, collect
from tests import seams
from tests.cli.call import call
from tests.extras.strategies.fits.in_process import OneNode
from tests.rows import rows

ROOT = Path(__file__).parents[2]
PAGES = {
    file.relative_to(ROOT).as_posix(): file.read_text()
    for file in [*ROOT.glob("*.md"), ROOT / "llms.txt", *(ROOT / "docs").glob("*.md")]
}
START, AGENTS = PAGES["docs/start.md"], PAGES["AGENTS.md"]
OF_WEIGHTS = ("weights", "convert", "check", "generate", "memory", "advise")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(text: str) -> list[list[str]]:
    """Return the arguments of each command `mimokit` of a text's blocks, without its comment."""
    lines = "\n".join(blocks(text, "console")).replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    return [
        words[1:] for words in found if words and words[0].removeprefix(".venv/bin/") == "mimokit"
    ]


def test_the_config_of_a_page_can_be_planned(tmp_path: Path) -> None:
    file = tmp_path / "page.yaml"
    file.write_text(blocks(PAGES["docs/files.md"], "yaml")[0])
    plan = mimokit.plan(mimokit.load_experiment_config(file))
    assert plan == mimokit.plan(ROOT / "configs" / "digits_colocated.yaml")


@rows("page", "README.md", "docs/start.md", "docs/strategies.md")
def test_imported_names_exist(page: str) -> None:
    for statement in ast.parse("\n".join(blocks(PAGES[page], "python"))).body:
        if isinstance(statement, ast.ImportFrom):
            assert statement.module is not None
            for name in statement.names:
                assert hasattr(importlib.import_module(statement.module), name.name)


def test_the_readme_is_one_screen() -> None:
    text = PAGES["README.md"]
    assert len(text.splitlines()) <= 50
    assert len(re.findall(r"^- \*\*", text, re.MULTILINE)) == 6
    first, _, rest = text.partition("```console")
    assert first.count("![") == 1  # a picture comes before any command
    assert rest.partition("## ")[0].count("![") == 1
    assert len(commands(text)) == 1
    assert "make demo" in rest


class Nodes(OneNode):
    def close(self) -> None: ...


def test_the_trainer_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it stands, but on one node, which needs no engine."""
    (snippet,) = blocks(PAGES["docs/strategies.md"], "python")
    assert "num_nodes=2" in snippet
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(seams.ENGINE_CLUSTER_OF_TRAINER, lambda *_, **__: Nodes())
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(snippet.replace("num_nodes=2", "num_nodes=1"), names)
    weight = names["model"].layer.weight
    assert (weight - 1).abs().max() < (names["trainer"].model.layer.weight - 1).abs().max()
    assert (tmp_path / "logs" / "first" / "train.csv").exists()
    assert (tmp_path / "checkpoints" / "mimokit" / "first" / "0" / "checkpoint.pt").exists()


def test_the_rooms_of_contributing_exist() -> None:
    for path in re.findall(
        r"`((?:mimokit|widgets|tests|benchmarks|notebooks)/[\w/.]*)`", PAGES["CONTRIBUTING.md"]
    ):
        assert (ROOT / path).exists(), path


def test_sweeps_have_experiments_that_can_run() -> None:
    folders = set(re.findall(r"--experiments-dir (\S+)", "\n".join(PAGES.values())))
    assert folders
    for folder in folders:
        chosen = choose(collect(ROOT / folder), engines=8)
        assert [one.name for one in chosen if one.refusal is None]


@rows("page", *sorted(page for page in PAGES if commands(PAGES[page])))
def test_commands_and_their_options_exist(page: str) -> None:
    group = get_command(app)
    for name, *words in commands(PAGES[page]):
        if name.startswith("--"):
            continue
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        options = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
        assert {word for word in words if word.startswith("--")} <= options, (page, name)


RESULTS = {"analyze", "checkpoints"}


def test_what_commands_are_given_exists() -> None:
    """Every command but `import` and `frames` is shown with something that is there."""
    shown = set()
    for name, *words in commands(START):
        source = words[0] if words else "--"
        shown |= {name} if not source.startswith("--") else set()
        if name == "search":
            assert source in mimokit.architecture.model_names()
        elif name in RESULTS:
            assert f"--results-dir {source}\n" in START, "what an example before it has made"
        elif name in OF_WEIGHTS:
            assert source == "DIR", "weights of the reader's"
        elif name == "strategy":
            assert source in get_args(StrategyName)
        elif not source.startswith("--"):
            mimokit.plan(source if source.startswith("preset:") else ROOT / source)
    layouts = {"plan", "run", "verify", "predict", "search", "export", "config"}
    assert shown == {*layouts, *RESULTS, *OF_WEIGHTS, "strategy"}


@rows("name", "predict", "search", "export")
def test_commands_about_layouts_run(name: str) -> None:
    words = next(words for words in commands(START) if words[0] == name)
    ended = call(*words)
    assert ended.exit_code == 0, ended.output


def test_five_commands_lead_to_a_verified_layout() -> None:
    """From an empty clone; `make` knows the first, and the files of the others exist."""
    (block,) = blocks(AGENTS, "console")
    first, *others = block.splitlines()
    assert len(others) == 4
    assert re.search(rf"^{first.split()[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [words[0] for words in commands(AGENTS)] == ["plan", "verify", "run", "analyze"]
    for _, source, *_ in commands(AGENTS)[:3]:
        assert (ROOT / source).exists()


def test_programs_are_led_to_pages_that_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", PAGES["llms.txt"])
    assert len(links) > 10
    assert all((ROOT / link).exists() for link in links)
