"""The documents: paths of calls that exist, commands that are accepted, links that lead somewhere, lines that fit."""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from offpolicy import cli
from offpolicy.config.overrides import load_config, load_values
from offpolicy.nets.policy import flat_size, make_policy
from offpolicy.processes.mailbox import EvaluationRequests, Mailbox
from offpolicy.training.run_memory import RunMemory, transport_nbytes
from offpolicy.types import SpaceSpec
from tests.documents import anchors, blocks, commands, is_template, links, made

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
NAMED = re.compile(r"`(?:offpolicy/)?(\w+)/`")
STEP = re.compile(r"`([\w/]+\.py):([\w.]+)`")
PAGES = [*sorted(DOCS.rglob("*.md")), *(REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
FOLLOWED = [REPOSITORY / "README.md", DOCS / "tutorial.md"]  # typed line by line by newcomers
MAX_WIDTH = 100  # characters of a line; tables, code and long links cannot be wrapped


def section(title: str) -> str:
    text = (DOCS / "architecture.md").read_text()
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def defined_names(path: Path) -> set[str]:
    """Functions and classes of a module, and methods as `Class.method`."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
    return names


@pytest.mark.parametrize(
    ("title", "most"),
    [
        ("From the command to the first gradient", 30),
        ("One transition, from the environment to a gradient", 25),
    ],
)
def test_every_step_of_a_path_exists(title: str, most: int) -> None:
    steps = STEP.findall(section(title))
    assert 15 <= len(steps) <= most
    for file, name in steps:
        path = next(root / file for root in (REPOSITORY / "offpolicy", REPOSITORY) if (root / file).is_file())
        assert name in defined_names(path), f"{file}:{name}"


def test_the_layers_are_those_that_are_checked() -> None:
    drawn = next(block for block in section("The house").split("```")[1::2] if "cli" in block and "│" not in block)
    names = [re.split(r" {4,}", line)[0] for line in drawn.strip().splitlines()]  # before the comment
    contracts = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    checked = [sorted(re.findall(r"\w+", layer)) for layer in layers if layer != "__main__"]
    assert [sorted(re.findall(r"\w+", row)) for row in names] == [["runners"], *checked]


def test_every_package_has_a_row_in_the_table_of_folders() -> None:
    packages = {path.parent.name for path in (REPOSITORY / "offpolicy").glob("*/__init__.py")}
    named = {name for row in section("The house").splitlines() if row.startswith("|") for name in NAMED.findall(row)}
    assert len(packages) > 10
    assert packages - named == set()


def test_the_blocks_of_shared_memory_are_as_large_as_the_table_says() -> None:
    cfg = load_config(["algo=sac", "env=pendulum", "eval.beside=true"])
    spec = SpaceSpec(3, 1, (-2.0,), (2.0,))
    memory = RunMemory(cfg, spec, 1, has_evaluator=True)
    sizes = {name: len(block.buffer) for name, block in memory.blocks.items()}
    num_weights = flat_size(make_policy(cfg.algo, spec))
    grown = {  # by the processes that know the networks; a replay has room for more than it needs at first
        "weights": Mailbox.nbytes(4 * num_weights),
        "evaluation": EvaluationRequests.nbytes(4 * num_weights),
        "replay-0": transport_nbytes(cfg, spec),
    }
    cells = [[cell.strip() for cell in row.split("|")] for row in section("Shared memory").splitlines()]
    rows = {row[1].strip("`").replace("<i>", "0"): row[5] for row in cells if len(row) > 5 and row[1].startswith("`")}
    said = {name: int(cell.split()[0].replace(",", "")) for name, cell in rows.items() if cell[0].isdigit()}
    assert said == sizes | grown


def test_the_path_to_the_first_gradient_is_in_few_files_of_the_shell() -> None:
    files = {file for file, _ in STEP.findall(section("From the command to the first gradient"))}
    assert len([file for file in files if file.startswith(("runners/", "launch/"))]) <= 10


def test_the_panel_is_read_in_a_page() -> None:
    assert len((DOCS / "panel.md").read_text().splitlines()) <= 60


def prose(path: Path) -> list[str]:
    """The lines of a document that can be wrapped."""
    lines, is_code = [], False
    for line in path.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith(("|", "    ", "!")) and "](" not in line[MAX_WIDTH - 40 :]:
            lines.append(line)
    return lines


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_lines_fit(path: Path) -> None:
    assert [line for line in prose(path) if len(line) > MAX_WIDTH] == []


def check_accepted(words: list[str]) -> None:
    """Fails unless the command line accepts the words after `offpolicy`. Nothing runs.

    The configuration of a run is written: a later command may start from it.
    """
    if words in (["--help"], ["--version"]):
        return
    arguments = cli._parser().parse_args(words)
    if arguments.command in (cli._train, cli._tune) and "--help" not in words:
        config = load_config(arguments.overrides)
        if config.run_dir and not Path(config.run_dir).is_absolute():
            Path(config.run_dir).mkdir(parents=True, exist_ok=True)
            (Path(config.run_dir) / "config.yaml").write_text(yaml.safe_dump(config.to_mapping()))
    if arguments.command is cli._resume:
        load_values([word for word in arguments.words if "=" in word])


@pytest.fixture
def some_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory with one run, which every name of a run is taken for."""
    run = tmp_path / "runs/one"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(yaml.safe_dump(load_config(["run_dir=one"]).to_mapping()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "_existing_run", lambda word: run)


@pytest.mark.usefixtures("some_run")
@pytest.mark.parametrize("path", [path for path in PAGES if blocks(path.read_text())], ids=lambda path: path.name)
def test_every_command_of_a_page_is_accepted(path: Path) -> None:
    for program, *words in commands(path.read_text()):
        if not is_template(words):
            for typed in made(words) if program == "make" else [words]:
                check_accepted(typed)


@pytest.mark.parametrize("path", FOLLOWED, ids=lambda path: path.name)
def test_what_newcomers_type_has_no_placeholder(path: Path) -> None:
    shown = list(commands(path.read_text()))
    assert len(shown) >= 8
    assert [words for words in shown if is_template(words)] == []


@pytest.mark.parametrize("path", FOLLOWED, ids=lambda path: path.name)
def test_what_newcomers_type_names_runs_that_an_earlier_command_made(path: Path) -> None:
    made_runs: set[str] = set()
    for words in commands(path.read_text()):
        named = {run for word in words for run in re.findall(r"runs/\w+", word)}
        new = {word.removeprefix("run_dir=") for word in words if word.startswith("run_dir=")}
        assert named <= made_runs | new, shlex.join(words)
        made_runs |= new


def test_the_first_page_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 190


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_to_pages_and_headings_that_exist(path: Path) -> None:
    for link in links(path.read_text()):
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        if heading:
            assert heading in anchors(target.read_text()), link


def test_every_page_is_in_the_index() -> None:
    listed = {name.partition("#")[0] for name in links((DOCS / "README.md").read_text())}
    assert {path.name for path in DOCS.glob("*.md")} - {"README.md"} <= listed
