"""The command line refuses all that is wrong at once, composes with the promised precedence, and hands over."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offpolicy import cli
from offpolicy.commands.saved_run import PolicyChoice
from offpolicy.config.overrides import load_config, load_values
from offpolicy.config.schema import all_keys
from offpolicy.errors import CheckpointError, ConfigError, RunDirBusyError


def problems(*tokens: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        load_config(tokens)
    return caught.value.problems


def test_no_override_trains_sac_on_pendulum() -> None:
    config = load_config([])
    assert (config.algo.name, config.env.id, config.total_timesteps) == ("sac", "Pendulum-v1", 20_000)


def test_groups_and_values_are_composed() -> None:
    tokens = ["algo=td3", "env=halfcheetah", "seed=3", "env.num_envs=8", "algo.hidden_dims=[64,64]", "algo.tau=1e-2"]
    config = load_config(tokens)
    assert (config.algo.name, config.algo.policy_delay, config.env.id) == ("td3", 2, "HalfCheetah-v5")
    assert (config.seed, config.env.num_envs, config.algo.hidden_dims, config.algo.tau) == (3, 8, (64, 64), 0.01)


def test_the_id_may_be_given_with_any_group() -> None:
    assert load_config(["env=halfcheetah", "env.id=my_module:Hand-v0"]).env.id == "my_module:Hand-v0"


def test_kwargs_of_the_environment_are_free_and_need_no_plus() -> None:
    config = load_config(["env.kwargs.g=9.5", "env.kwargs.nested.deep=[a,2]", "env.kwargs={flag: true}"])
    assert config.env.kwargs == {"g": 9.5, "nested": {"deep": ["a", 2]}, "flag": True}


def test_the_pluses_of_hydra_are_accepted_too() -> None:
    assert load_config(["+env.kwargs.x=1", "++seed=7"]).env.kwargs == {"x": 1}


@pytest.fixture
def tiny_conf(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A conf/ where each level sets one key more than the level below it leaves to it."""
    files = {
        "config": "defaults: [{algo: a}, {env: e}, {experiment: null}, _self_]",
        "algo/a": "tau: 0.1\ngamma: 0.1\nactor_lr: 0.1\ncritic_lr: 0.1",
        "env/e": "# @package _global_\nalgo: {gamma: 0.2, actor_lr: 0.2, critic_lr: 0.2}",
        "experiment/x": "# @package _global_\nalgo: {actor_lr: 0.3, critic_lr: 0.3}",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(text)
    monkeypatch.setattr("offpolicy.config.overrides.conf_dir", lambda: tmp_path)


@pytest.mark.usefixtures("tiny_conf")
@pytest.mark.parametrize("tokens", [["algo.critic_lr=0.4", "experiment=x"], ["experiment=x", "algo.critic_lr=0.4"]])
def test_command_line_beats_experiment_beats_env_beats_algo_beats_default(tokens: list[str]) -> None:
    algo = load_config(tokens).algo
    assert (algo.batch_size, algo.tau, algo.gamma, algo.actor_lr, algo.critic_lr) == (256, 0.1, 0.2, 0.3, 0.4)


@pytest.fixture
def tiny_pair(tiny_conf: None, tmp_path: Path) -> None:
    """The same with a file for algorithm `a` in environment `e`, and none for it in `f`."""
    config = "defaults: [{algo: a}, {env: e}, {optional algo_env: '${algo}_${env}'}, {experiment: null}, _self_]"
    (tmp_path / "config.yaml").write_text(config)
    (tmp_path / "env/f.yaml").write_text("# @package _global_\nalgo: {gamma: 0.5}")
    (tmp_path / "algo_env").mkdir()
    (tmp_path / "algo_env/a_e.yaml").write_text(
        "# @package _global_\nalgo: {gamma: 0.25, actor_lr: 0.25, critic_lr: 0.25}"
    )


@pytest.mark.usefixtures("tiny_pair")
@pytest.mark.parametrize(
    ("tokens", "values"),
    [
        ([], (0.1, 0.25, 0.25, 0.25)),
        (["experiment=x"], (0.1, 0.25, 0.3, 0.3)),
        (["algo.critic_lr=0.4", "experiment=x"], (0.1, 0.25, 0.3, 0.4)),
        (["algo.gamma=0.4"], (0.1, 0.4, 0.25, 0.25)),
        (["env=f"], (0.1, 0.5, 0.1, 0.1)),
    ],
)
def test_command_line_beats_experiment_beats_algo_env_beats_env(tokens: list[str], values: tuple[float, ...]) -> None:
    algo = load_config(tokens).algo
    assert (algo.tau, algo.gamma, algo.actor_lr, algo.critic_lr) == values


def test_appo_brings_its_runner_and_many_environments() -> None:
    config = load_config(["algo=appo", "env=gym", "env.id=Pendulum-v1"])
    assert (config.algo.name, config.runner.name, config.env.num_envs) == ("appo", "appo", 8)


def test_what_appo_needs_in_an_environment_is_loaded_with_it_and_yields_to_the_command_line() -> None:
    own, other = load_config(["algo=appo", "env=pendulum"]), load_config(["algo=sac", "env=pendulum"])
    assert (own.algo.gamma, own.algo.lr_schedule, other.algo.gamma) == (0.9, "linear", 0.99)
    assert load_config(["algo=appo", "env=pendulum", "algo.gamma=0.5"]).algo.gamma == 0.5


def test_a_runner_that_cannot_carry_the_algorithm_is_refused() -> None:
    assert problems("algo=appo", "runner=single_gpu") == ("runner: got single_gpu, allowed appo with algo=appo",)
    assert problems("runner=appo") == (
        "runner: got appo, allowed single_gpu, double_buffer or multi_gpu with algo=sac",
    )


@pytest.mark.usefixtures("tiny_conf")
def test_an_experiment_is_optional_and_null_leaves_it_out() -> None:
    assert [load_config(tokens).algo.actor_lr for tokens in ([], ["experiment=x", "experiment=null"])] == [0.2, 0.2]


def test_the_last_of_two_overrides_wins() -> None:
    assert load_config(["seed=1", "algo=td3", "seed=2", "algo=sac"]).seed == 2


def test_a_group_of_an_experiment_yields_to_the_command_line() -> None:
    config = load_config(["algo=sac", "experiment=halfcheetah_td3_author"])
    assert (config.algo.name, config.env.id) == ("sac", "HalfCheetah-v5")


def test_references_to_other_keys_are_filled_in() -> None:
    config = load_config(["run_dir=out/${algo.name}-${seed}", "seed=4"])
    assert config.run_dir == "out/sac-4"


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("algo=sca", "algo: got 'sca', allowed one of appo, hora, sac, td3; did you mean sac?"),
        (
            "algo.stage=adapt",
            "algo.stage=adapt: alone it would leave the group's other values behind; write stage=adapt",
        ),
        ("stage=adapt", "stage: got adapt, allowed nothing with algo=sac: only algo=hora has stages"),
        ("algo=null", "algo: got None, allowed one of appo, hora, sac, td3"),
        ("algo=", "algo: got '', allowed one of appo, hora, sac, td3"),
        ("--seed=3", "--seed=3: overrides have no dashes; write seed=3"),
        ("--resume", "--resume: overrides have no dashes; write resume=<value>"),
        ("td3", "td3: no '=' in it; write algo=td3"),
        ("seed", "seed: no '=' in it; write seed=<value>"),
        ("~seed", "~seed: keys cannot be deleted; write seed=<value>"),
        ("seed=1,2", "seed=1,2: one run takes one value; write a list as seed=[1,2], text as seed='\"1,2\"'"),
        ("run_dir=a=b", "run_dir=a=b: not understood; quote the value: run_dir='\"a=b\"'"),
        ("algo.name=td3", "algo.name=td3: alone it would leave the group's other values behind; write algo=td3"),
        ("env=gym", "env.id: not given; write env.id=<value>"),
        ("run_dir=${nosuch}", "run_dir: Interpolation key 'nosuch' not found"),
    ],
)
def test_a_wrong_override_is_refused_with_what_to_write(token: str, problem: str) -> None:
    assert problems(token) == (problem,)


def test_an_option_with_its_value_as_the_next_word_is_one_problem() -> None:
    assert problems("--algo", "td3", "seed=1") == ("--algo td3: overrides have no dashes; write algo=td3",)


def test_an_environment_that_is_no_file_is_refused_with_the_way_to_any_id() -> None:
    (problem,) = problems("env=MyRobot-v0")
    assert problem.endswith("walker2d; any other Gymnasium id: env.id=MyRobot-v0")


def test_a_package_or_a_path_of_groups_is_refused() -> None:
    assert [problem.split(":")[0] for problem in problems("algo@x=sac", "env/id=a")] == ["algo@x=sac", "env/id=a"]


def test_every_problem_is_reported_at_once() -> None:
    found = problems("algo=sca", "--seed", "3", "td3", "algo.gama=1", "nosuch=1", "algo.gamma=3", "total_timesteps=x")
    starts = ["algo: ", "--seed 3: ", "td3: ", "nosuch: ", "algo.gama: ", "algo.gamma: ", "total_timesteps: "]
    assert len(found) == len(starts)
    assert [start for start in starts if any(problem.startswith(start) for problem in found)] == starts


def test_a_broken_file_is_a_configuration_problem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: [1\n")
    monkeypatch.setattr("offpolicy.config.overrides.conf_dir", lambda: tmp_path)
    (problem,) = problems()
    assert str(tmp_path) in problem


def test_a_resumed_run_takes_values_but_no_groups() -> None:
    assert load_values(["total_timesteps=50000", "log.panel=off"]) == {
        "total_timesteps": 50_000,
        "log": {"panel": "off"},
    }
    with pytest.raises(ConfigError, match="algo: got 'td3', but a saved run keeps its groups"):
        load_values(["algo=td3"])


class Runners:
    """Records what it is asked to do, in place of the runners, and answers as told."""

    def __init__(self, answer: int | BaseException = 0) -> None:
        self.asked: list[Any] = []
        self.answer = answer

    @property
    def train_module(self) -> SimpleNamespace:
        return SimpleNamespace(train=self._record, resume=self._record)

    def replace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cli, "_train_module", lambda: self.train_module)
        for name in ("evaluate", "play", "compare"):
            monkeypatch.setattr(f"offpolicy.commands.{name}.{name}", self._record)

    def _record(self, *args: Any, **options: Any) -> int:
        self.asked.append((*args, options) if options else args)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def run_with(monkeypatch: pytest.MonkeyPatch, runners: Runners, *argv: str) -> int:
    runners.replace(monkeypatch)
    return cli.main(argv)


def test_train_hands_the_checked_configuration_over(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners()
    assert run_with(monkeypatch, runners, "train", "algo=td3", "seed=5") == 0
    assert runners.asked == [(load_config(["algo=td3", "seed=5"]),)]


def test_resume_hands_the_run_and_the_overrides_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    runners = Runners()
    assert run_with(monkeypatch, runners, "resume", str(tmp_path), "log.every_s=1") == 0
    assert runners.asked == [(tmp_path, {"log": {"every_s": 1}})]


def test_eval_hands_its_options_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    runners = Runners()
    words = ("--episodes", "3", "--device", "cpu", "--random", "--set", "env.kwargs.x=1", "--set", "env.kwargs.y=[2]")
    assert run_with(monkeypatch, runners, "eval", f"mine={tmp_path}", str(tmp_path), *words) == 0
    choice = PolicyChoice(None, None, "cpu", {"env": {"kwargs": {"x": 1, "y": [2]}}})
    runs = {"mine": tmp_path, tmp_path.name: tmp_path}
    assert runners.asked == [(runs, choice, {"episodes": 3, "with_random": True})]


def test_play_hands_its_options_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    runners = Runners()
    assert run_with(monkeypatch, runners, "play", str(tmp_path), "--video", "x.gif", "--seed", "4") == 0
    choice = PolicyChoice(4, None, "auto", {})
    assert runners.asked == [(tmp_path, choice, {"video": Path("x.gif"), "episodes": 1})]


def test_a_directory_with_an_equals_sign_in_its_name_needs_no_label(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lr=0.1").mkdir()
    (tmp_path / "lr=0.1" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    runners = Runners()
    assert run_with(monkeypatch, runners, "eval", "lr=0.1", "b=lr=0.1") == 0
    assert runners.asked[0][0] == {"lr=0.1": Path("lr=0.1"), "b": Path("lr=0.1")}


@pytest.mark.parametrize("option", ["--seed", "--step", "--episodes"])
def test_a_negative_number_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_with(monkeypatch, Runners(), "eval", str(tmp_path), option, "-1")
    assert f"argument {option}: got -1, allowed a whole number in [" in capsys.readouterr().err


def test_compare_hands_over_runs_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners()
    argv = ["compare", "a=x", "a=y", "z", "--reference", "-200", "--html", "c.html"]
    assert run_with(monkeypatch, runners, *argv) == 0
    files = {"png": None, "markdown": None, "html": Path("c.html")}
    assert runners.asked == [(["a=x", "a=y", "z"], -200.0, files)]


def test_two_runs_under_one_label_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").touch()
    assert run_with(monkeypatch, Runners(), "eval", f"a={tmp_path}", f"a={tmp_path}") == 2
    assert "run: the label 'a' is given twice" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["resume", "eval"])
def test_a_directory_that_is_no_run_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert run_with(monkeypatch, Runners(), command, str(tmp_path)) == 2
    assert f"run: got '{tmp_path}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (0, 0),
        (143, 143),
        (ConfigError("device: no CUDA here"), 2),
        (CheckpointError("none is valid"), 66),
        (RunDirBusyError("held by pid 7"), 73),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_code_is_that_of_the_run_or_of_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], answer: int | BaseException, code: int
) -> None:
    assert run_with(monkeypatch, Runners(answer), "train") == code
    assert str(answer) in capsys.readouterr().err or isinstance(answer, int)


def test_an_unexpected_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        run_with(monkeypatch, Runners(ZeroDivisionError()), "train")


def test_a_wrong_configuration_exits_2_with_one_problem_per_line(run_cli: Any) -> None:
    result = run_cli(["train", "algo=sca", "algo.gama=1", "--seed", "3"])
    lines = result.stderr.splitlines()
    assert (result.returncode, result.stdout, lines[0]) == (2, "", "offpolicy: 3 configuration problems")
    assert [line.split(":")[0] for line in lines[1:]] == ["  algo", "  --seed 3", "  algo.gama"]


def test_a_wrong_configuration_is_refused_within_a_second_and_a_half(run_cli: Any) -> None:
    walls: list[float] = []
    for _ in range(3):  # the fastest: others use the machine too
        start = time.monotonic()
        assert run_cli(["train", "algo=sca"]).returncode == 2
        walls.append(time.monotonic() - start)
    assert min(walls) < 1.5


def test_refusing_starts_no_run(run_cli: Any, tmp_path: Path) -> None:
    run_cli(["train", "seed=x"])
    assert list(tmp_path.iterdir()) == []


def test_help_names_every_command_and_train_help_every_key(run_cli: Any) -> None:
    text = run_cli(["--help"]).stdout
    assert [command for command in ("train", "resume", "eval") if f"\n    {command} " not in text] == []
    text = run_cli(["train", "--help"]).stdout
    assert [key for key in all_keys() if f"\n  {key}=" not in text] == []
    assert "algo.gamma=0.99" in text
    assert "a number in [0.0, 1.0]" in text


@pytest.mark.parametrize("argv", [[], ["nosuch"], ["eval"], ["eval", "x", "--episodes", "0"]])
def test_a_wrong_command_exits_2(run_cli: Any, argv: list[str]) -> None:
    assert run_cli(argv).returncode == 2
