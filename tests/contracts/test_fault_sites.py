"""The sites of fault injection: the table names all that are in the code, and every primitive has one before it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from offpolicy.fault import SITES
from tests.chaos.disturbances import NOT_PASSED, PASSED_BY

REPOSITORY = Path(__file__).resolve().parents[2]
# Commands on finished runs: what fails there loses nothing of a run.
OUTSIDE_RUNS = (
    *("offpolicy/analysis/", "offpolicy/commands/", "offpolicy/export/", "offpolicy/envs/toy.py"),
    "offpolicy/fault.py",
)
FUNCTIONS = {
    *("os.write", "os.rename", "os.replace", "os.fsync", "os.ftruncate", "os.posix_fallocate", "os.eventfd_write"),
    *("subprocess.Popen", "subprocess.run", "select.select", "select.poll", "socket.send_fds"),
    *("dist.init_process_group", "dist.all_reduce", "dist.broadcast"),
    *("os.link", "os.unlink", "os.remove", "os.pwrite", "os.mkdir", "os.symlink", "shutil.rmtree"),
}
METHODS = {
    *(
        "write_text",
        "write_bytes",
        "symlink_to",
        "hardlink_to",
        "rename",
        "mkdir",
        "unlink",
        "sendall",
        "wait",
        "madvise",
    ),
}
# Objects of ours that have the site themselves, and the device, whose work is on no other process.
OURS = (
    "_disk.rename",
    "_disk.mkdir",
    "_wake_event.wait",
    "_device_sync.wait",
    "_sync.wait",
    "self.wait",
    "self.children.wait",
)
WRITING_MODES = ("w", "x", "a", "r+")
# function -> why it needs no site of its own
WITHOUT_SITE = {
    "offpolicy/children.py:call_in_child": "a check before the run; the run refuses where it fails",
    "offpolicy/collect/episode_hook.py:_end": "has a deadline, after which the hook's process is killed",
    "offpolicy/envs/worker_pool.py:_answer": "does not wait",
    "offpolicy/envs/worker_pool.py:_death": "has a deadline of 2 s",
    "offpolicy/files.py:output_file": "a pipe or a device that a user has named; `atomic_file` has its own site",
    "offpolicy/files.py:remove_temporaries": "what killed writers have left; refusals are ignored",
    "offpolicy/launch/host_check.py:shared_memory": "a check of `offpolicy doctor`; its failure is a finding",
    "offpolicy/launch/run_dir.py:_remove_left_over": "what killed runs have left; refusals are ignored",
    "offpolicy/launch/run_lock.py:withdraw": "of a start that was refused, or of a command; its lock file is empty",
    "offpolicy/logger/otlp.py:_send_all": "a thread that nobody waits for longer than `STOP_S`",
    "offpolicy/timing/flight_recorder.py:_next_path": "an old file of an outlier; file.write comes next",
    "offpolicy/training/checkpointer.py:_drop_collector_parts": "parts that no checkpoint needs; refusals are ignored",
    "runners/collector.py:take_snapshot": "what a failed save has left; refusals are ignored",
    "offpolicy/distributed/process_group.py:init": "after `rank.join`",
    "offpolicy/distributed/process_group.py:broadcast": "once, after `rank.join`",
    "offpolicy/distributed/peer_sockets.py:_call": "after `rank.join`",
    "offpolicy/distributed/peer_sockets.py:_name_of": "after `rank.join`",
    "offpolicy/distributed/peer_sockets.py:_answer": "after `rank.join`",
    "offpolicy/distributed/peer_sockets.py:receive": "after `rank.send`",
    "offpolicy/distributed/rank_group.py:_missing": "names the lost ranks after a failure",
    "offpolicy/distributed/rendezvous.py:_pause": "before the run; its own deadline ends it",
    "offpolicy/logger/keyboard.py:read": "does not wait",
    "offpolicy/logger/nonblocking_stream.py:drain": "has a deadline",
    "offpolicy/descendants.py:environment_of": "waits for a process that begins another program, for a bounded time",
    "offpolicy/descendants.py:_wait_for": "waits for killed processes, for a bounded time",
    "offpolicy/logger/logger.py:open_step_logger": "for training loops of others",
    "offpolicy/logger/provenance.py:git_commit": "has a deadline; its failure is an empty field",
    "offpolicy/machine.py:gives_memory_back": "tries it on a page of its own; a refusal is the answer",
    "offpolicy/processes/oom.py:be_killed_first": "a wish to the kernel; nothing is lost where it is refused",
    "offpolicy/processes/child.py:name_threads": "names of threads, for people",
    "offpolicy/processes/hang_check.py:check": "a pause of 0.2 s",
    "offpolicy/processes/shared_memory.py:close": "gives memory back, and takes none",
    "offpolicy/processes/shared_memory.py:attach": "the pages exist, but for two headers",
    "offpolicy/start.py:_exit": "a line on stderr, just before the process ends",
    "offpolicy/timing/attainable.py:remembered": "a cache; file.write comes next",
    "offpolicy/timing/chrome_trace.py:_write": "the profile of torch, once",
    "offpolicy/timing/trace_writer.py:create_tracks": "before the run; refused with its size",
    "offpolicy/timing/trace_writer.py:__init__": "opens what create_tracks has made",
}


def sources() -> Iterator[Path]:
    for package in ("offpolicy", "runners"):
        yield from sorted((REPOSITORY / package).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """`os.write` of a call's function; "" where it is no plain name."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def calls(node: ast.AST) -> Iterator[ast.Call]:
    return (found for found in ast.walk(node) if isinstance(found, ast.Call))


def sites_of(node: ast.AST) -> list[str]:
    hits = [call for call in calls(node) if dotted(call.func) == "fault.hit"]
    assert all(isinstance(call.args[0], ast.Constant) for call in hits), "a site is named by a literal"
    return [call.args[0].value for call in hits if isinstance(call.args[0], ast.Constant)]


def is_primitive(call: ast.Call) -> bool:
    """True for a call that changes a disk, sends, waits or starts a process."""
    if dotted(call.func) in FUNCTIONS:
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    name, literals = call.func.attr, [arg.value for arg in call.args if isinstance(arg, ast.Constant)]
    is_path_replace = name == "replace" and len(call.args) == 1 and not call.keywords and not literals
    literals += [word.value.value for word in call.keywords if isinstance(word.value, ast.Constant)]
    is_open = name == "open" and any(isinstance(mode, str) and mode.startswith(WRITING_MODES) for mode in literals)
    return (name in METHODS or is_path_replace or is_open) and not dotted(call.func).endswith(OURS)


def functions_without_site(path: Path) -> Iterator[str]:
    relative = path.relative_to(REPOSITORY).as_posix()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and any(map(is_primitive, calls(node))) and not sites_of(node):
            yield f"{relative}:{node.name}"


def test_the_table_holds_exactly_the_sites_of_the_code() -> None:
    found = {site for path in sources() for site in sites_of(ast.parse(path.read_text()))}
    assert found == set(SITES)


def test_every_write_rename_send_wait_and_spawn_of_a_run_has_a_site() -> None:
    missing = {
        function
        for path in sources()
        if not path.relative_to(REPOSITORY).as_posix().startswith(OUTSIDE_RUNS)
        for function in functions_without_site(path)
    }
    assert missing == set(WITHOUT_SITE)


@pytest.mark.parametrize(
    "call",
    ["path.with_name('x').rename(path)", "os.link(a, b)", "path.unlink()", "shutil.rmtree(path)", "child.wait(1.0)",
     "os.pwrite(d, b'', 0)", "socket.sendall(b'')", "path.open('w')", "path.open(mode='ab')", "page.madvise(9)"],
)  # fmt: skip
def test_a_write_without_a_site_is_found(call: str) -> None:
    tree = ast.parse(f"def save(path):\n    {call}\n")
    assert any(map(is_primitive, calls(tree)))
    assert not sites_of(tree)
    assert not any(map(is_primitive, calls(ast.parse("path.open(); path.open('rb'); text.replace('a', 'b')"))))


def test_chaos_knows_who_comes_by_at_every_site() -> None:
    assert PASSED_BY.keys() | NOT_PASSED == SITES.keys()
