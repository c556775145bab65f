"""`offpolicy tune` from its words to its table and its file, with trials of known speeds."""

from __future__ import annotations

import io
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from offpolicy.analysis.search import Row
from offpolicy.analysis.tuning import Machine, Measured, TrialFailed
from offpolicy.commands.trial import Trial
from offpolicy.commands.tune import TuneOptions, learns_on_gpu, tries_settings, tune, tuning_table
from offpolicy.config.overrides import load_config
from offpolicy.errors import ConfigError, OffPolicyError
from offpolicy.launch.preflight import Gpus
from offpolicy.plugins import SINKS
from tests.packages import make_package
from tests.unit.config.test_extensions import TEXT

OVERLAP = "collect.mode=overlap"


@pytest.fixture
def options(tmp_path: Path) -> TuneOptions:
    return TuneOptions(minutes=10.0, out=tmp_path / "my tune.txt", keep=())


def measured_as(monkeypatch: pytest.MonkeyPatch, rate_of: dict[str, float], busy: float = 0.0) -> list[list[str]]:
    """Replaces trials: the rate is that of the first override that is listed, else 100; returns the words of each."""
    asked: list[list[str]] = []

    def measure(trial: Trial) -> Measured:
        asked.append(list(trial.words))
        rate = next((rate for word, rate in rate_of.items() if word in trial.words), 100.0)
        return Measured((rate - 1.0, rate, rate + 1.0), busy, threads=1)

    monkeypatch.setattr(Trial, "measure", measure)
    monkeypatch.setattr("offpolicy.commands.tune.preflight", lambda cfg: None)
    return asked


def test_the_fastest_overrides_are_printed_and_written_after_those_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: TuneOptions
) -> None:
    asked = measured_as(monkeypatch, {OVERLAP: 150.0}, busy=0.5)
    assert tune(["algo=td3", "env.num_envs=1"], options) == 0
    assert options.out.read_text() == f"algo=td3\nenv.num_envs=1\n{OVERLAP}\n"
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert f"offpolicy train algo=td3 env.num_envs=1 {OVERLAP}" in text
    assert f"for `offpolicy train $(cat '{options.out}')`" in text
    assert "not touched env.num_envs: given on the command line" in text
    assert "note collect.mode: overlap: the collector acts with weights that are one update older" in text
    assert "busy other programs used up to 50% of the cores" in text
    assert not any(word.startswith("env.num_envs") and word != "env.num_envs=1" for words in asked for word in words)
    for words in asked:  # a trial learns what the run would learn
        load_config(words)
        assert {word for word in words if word.startswith(("algo", "seed"))} == {"algo=td3", "algo.learning_starts=256"}


def test_the_trust_that_was_given_belongs_to_what_is_written_but_not_to_the_overrides_of_a_trial(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: TuneOptions
) -> None:
    asked = measured_as(monkeypatch, {OVERLAP: 150.0})
    assert tune(["algo=td3"], replace(options, trust=["--trust"])) == 0
    assert options.out.read_text() == f"algo=td3\n{OVERLAP}\n--trust\n"
    assert f"offpolicy train algo=td3 {OVERLAP} --trust" in " ".join(capsys.readouterr().out.split())
    assert not any("--trust" in words for words in asked)  # a trial always has it: the command has asked already


def test_a_trial_is_spared_the_options_that_nothing_reads_in_it(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions
) -> None:
    """It turns evaluations and traces off, and a run refuses what then has no reader."""
    asked = measured_as(monkeypatch, {OVERLAP: 150.0})
    words = ["eval.hook=json:dumps", "timing.trace=true", "timing.trace_mb=64", "eval.video=true", "stop.reward=5"]
    assert tune(words, options) == 0
    assert options.out.read_text().splitlines() == [*words, OVERLAP]
    for trial in asked:
        load_config(trial)


def test_a_trial_sends_nothing_to_services_and_calls_no_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: TuneOptions
) -> None:
    make_package(tmp_path, "plugs", TEXT, {SINKS: "good = plugs:GOOD"})
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = measured_as(monkeypatch, {OVERLAP: 150.0})
    words = [
        *("log.sinks=[good]", "sinks.good.path=here", "log.otlp_endpoint=http://127.0.0.1:4318"),
        *("log.prometheus_port=9100", "log.prometheus_address=0.0.0.0", "callbacks=[json:Best]"),
    ]
    assert tune(words, options) == 0
    assert options.out.read_text().splitlines() == [*words, OVERLAP]
    for trial in asked:
        cfg = load_config(trial)
        assert (cfg.log.sinks, cfg.log.otlp_endpoint, cfg.log.prometheus_port, cfg.callbacks) == ((), None, None, ())


def test_what_was_given_is_written_where_nothing_is_faster(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: TuneOptions
) -> None:
    measured_as(monkeypatch, {})
    assert tune(["algo=td3"], options) == 0
    assert options.out.read_text() == "algo=td3\n"
    assert "no change was faster" in capsys.readouterr().out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_tune_shows_what_is_known_and_writes_nothing(
    number: signal.Signals,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: TuneOptions,
) -> None:
    measured_as(monkeypatch, {})
    answers = [Measured((100.0,))]

    def measure(_: Trial) -> Measured:
        if answers:
            return answers.pop()
        os.kill(os.getpid(), number)
        raise AssertionError("the signal has ended nothing")

    monkeypatch.setattr(Trial, "measure", measure)
    assert tune([], options) == code
    out = capsys.readouterr().out
    assert "interrupted: nothing is written" in out
    assert "env steps per second" in out
    assert not options.out.exists()


def test_a_tune_without_time_says_that_nothing_was_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: TuneOptions
) -> None:
    measured_as(monkeypatch, {})
    assert tune(["algo=td3"], replace(options, minutes=1e-6)) == 0
    out = capsys.readouterr().out
    assert "no change was tried: --minutes 1e-06 leaves no time for one on this machine; give more" in out
    assert "no change was faster" not in out


def test_a_first_trial_that_fails_is_the_error_of_the_command(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions
) -> None:
    measured_as(monkeypatch, {})

    def measure(_: Trial) -> Measured:
        raise TrialFailed("learner 0 failed")

    monkeypatch.setattr(Trial, "measure", measure)
    with pytest.raises(OffPolicyError, match="its first trial failed: learner 0 failed"):
        tune([], options)


@pytest.mark.parametrize(
    ("words", "keep", "problem"),
    [
        (["algo.utdd=2"], (), "algo.utdd"),
        (["env.id=NoSuch-v0"], (), "NoSuch"),
        ([], ("algo.utd",), "--keep: got 'algo.utd', allowed collect.mode, "),
    ],
)
def test_what_train_would_refuse_is_refused_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions, words: list[str], keep: tuple[str, ...], problem: str
) -> None:
    def measure(_: Trial) -> Measured:
        raise AssertionError("a trial was run")

    monkeypatch.setattr(Trial, "measure", measure)
    with pytest.raises(ConfigError, match=problem):
        tune(words, TuneOptions(1.0, options.out, keep))


def test_a_directory_that_does_not_exist_is_refused_before_any_trial(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--out: got .*nowhere"):
        tune([], TuneOptions(1.0, tmp_path / "nowhere" / "tune.txt", ()))


def test_a_file_that_cannot_be_written_is_refused_before_any_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []  # tests may run as root, for whom all is writable
    monkeypatch.setattr("os.access", lambda path, mode: asked.append(path))
    (tmp_path / "link").symlink_to(tmp_path / "tune.txt")
    (tmp_path / "tune.txt").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("new", "link", "pipe"):
        with pytest.raises(ConfigError, match="--out: got .*, allowed a file in a directory .* and is writable"):
            tune([], TuneOptions(1.0, tmp_path / name, ()))
    assert asked == [tmp_path, tmp_path, tmp_path / "pipe"]


def test_a_run_that_tries_threads_itself_is_given_time_for_it() -> None:
    two, gpu = Machine(2, learns_on_gpu=False), Machine(2, learns_on_gpu=True)
    assert tries_settings(load_config([]), two)
    assert not tries_settings(load_config([]), gpu)
    assert tries_settings(load_config(["collect.mode=auto"]), gpu)
    assert not tries_settings(load_config(["threads.learner=1"]), two)


@pytest.mark.parametrize(
    ("gpus", "source", "is_tuning"), [([], "prefetch", True), ([8 * 2**30], "direct", False)], ids=["none", "one"]
)
def test_a_gpu_is_one_that_torch_can_use(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions, gpus: list[int], source: str, is_tuning: bool
) -> None:
    """With the driver of a GPU and a CPU build of torch, device=auto is the CPU and replay.source=auto is direct."""
    measured_as(monkeypatch, {})
    monkeypatch.setattr("offpolicy.commands.tune.has_gpu", lambda: True)
    monkeypatch.setattr("offpolicy.commands.tune.cuda_memory", lambda timeout_s: Gpus(gpus))
    monkeypatch.setattr("offpolicy.commands.tune.num_usable_cores", lambda: 2)
    trials: list[Trial] = []

    def measure(trial: Trial) -> Measured:
        trials.append(trial)
        return Measured((99.0, 100.0, 101.0))

    monkeypatch.setattr(Trial, "measure", measure)
    assert tune([], options) == 0
    words = {word for trial in trials for word in trial.words}
    sources = {one for one in ("direct", "prefetch", "resident") if f"replay.source={one}" in words}
    assert source in sources
    assert ("direct" in sources) == bool(gpus)
    assert "resident" not in sources
    assert {trial.is_tuning for trial in trials} == {is_tuning}


def test_torch_is_not_asked_for_a_gpu_of_which_there_is_no_driver_or_that_is_not_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(timeout_s: float) -> Gpus:
        raise AssertionError("torch was asked")

    monkeypatch.setattr("offpolicy.commands.tune.cuda_memory", ask)
    monkeypatch.setattr("offpolicy.commands.tune.has_gpu", lambda: False)
    assert not learns_on_gpu(load_config([]))
    monkeypatch.setattr("offpolicy.commands.tune.has_gpu", lambda: True)
    assert not learns_on_gpu(load_config(["device=cpu"]))


def test_ranks_begin_with_the_threads_that_their_collectors_leave(
    monkeypatch: pytest.MonkeyPatch, options: TuneOptions
) -> None:
    """Two ranks beside two collectors on four cores have one thread each: two are a change, and one is none."""
    for module in ("commands.tune", "launch.resources"):
        monkeypatch.setattr(f"offpolicy.{module}.num_usable_cores", lambda: 4)
    asked = measured_as(monkeypatch, {"threads.learner=2": 150.0})
    words = ["runner=multi_gpu", "runner.world_size=2", "collect.num_collectors=2", "device=cpu"]
    assert tune(words, options) == 0
    assert options.out.read_text().splitlines() == [*words, "threads.learner=2"]
    assert {word for trial in asked for word in trial if word.startswith("threads.learner")} == {"threads.learner=2"}


def test_the_table_fits_80_columns_and_names_each_trial() -> None:
    start, faster = Measured((98.0, 100.0, 103.0)), Measured((1480.0, 1500.0, 1530.0), busy=0.3)
    rows = [
        Row("(start)", None, start, "start"),
        Row("env.num_envs=2 env.vectorization=async", 1600.0, faster, "faster"),
        Row("env.vectorization=mujoco", 110.0, None, "failed: no MuJoCo model"),
        Row("collect.mode=overlap", 110.0, Measured((90.0, 110.0), is_settled=False), "noise"),
    ]
    console = Console(width=80, file=io.StringIO())
    with console.capture() as capture:
        console.print(tuning_table(rows))
    text = capture.get()
    assert max(map(len, text.splitlines())) <= 80
    words = text.split()
    assert words[words.index("env.num_envs=2") + 1 :][:5] == ["1600", "1500", "1490-1515", "15.00", "faster"]
    assert "env.vectorization=async" in words
    assert "env.vectorization=mujoco" in words
    assert {"(busy)", "MuJoCo", "(still"} <= set(words)
