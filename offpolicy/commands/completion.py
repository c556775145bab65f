"""`offpolicy completion bash|zsh|fish`: a script that completes commands, options, groups and configuration keys."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping

import shtab

from offpolicy.config.overrides import group_options
from offpolicy.config.usable import specs
from offpolicy.errors import EXIT_OK
from offpolicy.run_names import LATEST

SHELLS = ("bash", "zsh", "fish")
OVERRIDES, RUNS = ("overrides", "words"), ("run", "runs")  # dests of positional arguments
WORDS, RUN_WORDS = "_offpolicy_overrides", "_offpolicy_runs"

BASH = """
_offpolicy_words() {{ printf '%s\\n' {words}; }}
# bash breaks words at `=`: of `algo=s` it completes the `s` alone.
{name}() {{
  local typed="$1" key="" word
  local last=$((COMP_CWORD - 1))
  if [[ "$typed" == "=" ]]; then key="${{COMP_WORDS[last]}}="; typed=""
  elif [[ "${{COMP_WORDS[last]}}" == "=" ]]; then key="${{COMP_WORDS[last - 1]}}="
  fi
  for word in $(_offpolicy_words); do
    [[ "$word" == "$key$typed"* ]] && printf '%s\\n' "${{word#"$key"}}"
  done
}}
{runs}() {{ compgen -W "{latest} $(cd runs 2>/dev/null && ls -d */*/* 2>/dev/null)" -- "$1"; compgen -d -- "$1"; }}
"""
# A value follows a key at once; shtab's function cannot say so itself, it calls ours in a subshell.
BASH_END = """
_offpolicy() {
  _shtab_offpolicy "$@"
  [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null
  return 0
}
complete -o bashdefault -F _offpolicy offpolicy
"""
ZSH = """
{name}() {{ compadd -S '' -- {words} }}
{runs}() {{ compadd -- {latest} runs/*/*/*(N/) ; _path_files -/ }}
"""
FISH = """
function {name}; printf '%s\\n' {words}; end
function {runs}; printf '%s\\n' {latest} runs/*/*/*; __fish_complete_directories; end
"""
PREAMBLES = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def completion(shell: str, parser: argparse.ArgumentParser) -> int:
    """Prints the script for a shell; `parser` is the whole command line."""
    words = " ".join(f"'{word}'" for word in override_words())
    names = {"name": WORDS, "runs": RUN_WORDS, "latest": LATEST, "words": words}
    for action in _positionals(parser):
        if action.dest in OVERRIDES:
            action.complete = dict.fromkeys(SHELLS, _call(shell, WORDS))  # type: ignore[attr-defined]  # shtab reads it
        elif action.dest in RUNS:
            action.complete = dict.fromkeys(SHELLS, _call(shell, RUN_WORDS))  # type: ignore[attr-defined]
    script = shtab.complete(parser, shell, preamble=PREAMBLES[shell].format(**names))
    sys.stdout.write(script + "\n" + (BASH_END if shell == "bash" else ""))
    return EXIT_OK


def override_words() -> Iterator[str]:
    """Yields what an override may begin with: each group with its options, each key, with its words if it has some."""
    for group, options in group_options().items():
        yield from (f"{group}={option}" for option in options)
    for key, spec in specs().items():
        limits: Mapping[str, tuple[str, ...]] = spec.limits
        yield f"{key}="
        yield from (f"{key}={word}" for word in limits.get("choices", ()))
        yield from (f"{key}={word}" for word in ("true", "false") if spec.hint is bool)


def _call(shell: str, function: str) -> str:
    return f"({function})" if shell == "fish" else function


def _positionals(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the positional arguments of all commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from (each for each in command._actions if not each.option_strings)
