# Every command of the project. The first one that needs it builds .venv; nothing else is installed anywhere.
.DEFAULT_GOAL := help
BIN := .venv/bin
# The interpreter that .venv is made with: PYTHON, else the first of these that is new enough.
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11 python)
FIT_PYTHON := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))

# The KEY=VALUE words of the command line, quoted for the shell, never expanded, and kept out of the environment.
# `args` is passed on as it stands: make eval args="runs/a --episodes 20".
GIVEN := $(sort $(foreach _,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $_))),$_)))
WORDS = $(foreach _,$(filter-out args PYTHON,$(GIVEN)),'$(subst ','\'',$_=$(value $_))')
MAKEOVERRIDES :=
unexport $(GIVEN)

PIP := $(BIN)/python -m pip install --quiet -c constraints.txt

# ---- installing: a .venv that works is kept, whoever made it
.venv/.python:
	@if $(BIN)/python -c '$(FIT_PYTHON)' 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    touch $@; exit 0; \
	fi; \
	for candidate in $(CANDIDATES); do \
	    "$$candidate" -c '$(FIT_PYTHON)' 2>/dev/null || continue; \
	    "$$candidate" -m venv --clear .venv && touch $@ && exit 0; \
	done; \
	echo "make: no Python >= 3.11 with the venv module among: $(CANDIDATES). Set PYTHON=/path/to/python3.11" >&2; exit 1

# pip first: the one that comes with Python 3.11 knows no dependency groups.
.venv/.installed: .venv/.python pyproject.toml constraints.txt
	@echo "Installing offpolicy into .venv; this takes minutes, once." >&2
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(PIP) -e .
	@touch $@

.venv/.dev .venv/.docs: .venv/.%: .venv/.installed
	@echo "Installing the packages for $* into .venv." >&2
	@$(PIP) --group $* && touch $@

.venv/.plot .venv/.video .venv/.export .venv/.sweep .venv/.ray: .venv/.%: .venv/.installed
	@echo "Installing the extra '$*' into .venv." >&2
	@$(PIP) -e '.[$*]' && touch $@

# The peers of bench-peers and test-peers, each in its own environment with our torch and mujoco, so that only the
# trainers differ. One that cannot be installed is left out, and the next call tries again.
PEER_sb3 := stable-baselines3
PEER_sbx := sbx-rl
PEERS := .bench/sb3/.installed .bench/sbx/.installed
$(PEERS): .bench/%/.installed: constraints.txt | .venv/.python
	@echo "Installing $(PEER_$*) into .bench/$*; this takes minutes, once." >&2
	@$(BIN)/python -m venv --clear .bench/$* && grep -E '^(torch|mujoco)==' $< > .bench/$*/constraints.txt
	@.bench/$*/bin/python -m pip install --quiet -c .bench/$*/constraints.txt torch 'gymnasium[mujoco]' $(PEER_$*) \
	    2> .bench/$*/install.log && touch $@ || echo "make: $(PEER_$*) is left out; see .bench/$*/install.log" >&2

# ---- commands of the trainer; those with options take them from args
COMMANDS := train resume list eval play record export prune compare explain trace tensorboard sweep reproduce doctor
BENCHES := bench bench-check bench-peers bench-predictions learning-curves
.PHONY: help $(COMMANDS) $(BENCHES) test test-slow test-gpu test-peers test-all chaos check docs clean

help: ## list these commands
	@echo "make train algo=td3 env=halfcheetah seed=3 env.num_envs=8    any Hydra override passes through"
	@echo "make eval args='runs/a --episodes 20'                        options of a command go into args"
	@printf '  make %s\n' "$(COMMANDS)" | fold -s -w 100
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

play record: .venv/.video
export: .venv/.export
sweep: .venv/.sweep
compare trace: $(if $(filter --png% --html% --svg%,$(args)),.venv/.plot)
$(COMMANDS): .venv/.installed $(if $(filter collect.remote_hosts runner.ray,$(GIVEN)),.venv/.ray)
	@$(BIN)/offpolicy $@ $(args) $(WORDS)

# ---- tests: two at a time; those of a file share its fixtures. Exit 5, no test found, is fine where args chose them.
test: .venv/.dev ## the tests that a change must pass: make test args='-k ring'
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(args) $(if $(args),|| [ $$? -eq 5 ])

test-slow: .venv/.dev .venv/.video .venv/.ray ## the nightly tests, hours: what measures time, kill loops, matrices, learning bands
	@$(BIN)/python -m tests.nightly $(args)

test-gpu: .venv/.dev ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu --timeout 600 $(args)

test-peers: .venv/.dev .bench/sb3/.installed ## SAC and TD3 beside Stable-Baselines3, V-trace beside rlax's formula
	@$(BIN)/python -m pytest -m "slow or not slow" -rs tests/peers $(args)

test-all: check test ## what a change must pass, and CI runs: lint, types, import layers, tests

chaos: .venv/.dev ## random faults in every runner and algorithm: make chaos args='--minutes 20 --seed 3'
	@$(BIN)/python -m tests.chaos $(args)

check: .venv/.dev ## ruff check, ruff format --check, lint-imports, mypy --strict
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/lint-imports && $(BIN)/mypy

# ---- measurements
bench: ## what each part costs, and scaling: make bench args='--only updates,scaling --rounds 3'
bench-check: ## fails if an update is 10 % slower, beside its GEMM floor, than the committed results
bench-peers: $(PEERS) ## env steps/s beside SB3, SBX and one file: make bench-peers args='--race sac-1'
bench-predictions: ## how far `pred` is from what the same run does; an hour, on a quiet machine
learning-curves: ## train the presets with several seeds, hours: args='--only sac-halfcheetah --jobs 2'
$(BENCHES): .venv/.installed
	@$(BIN)/python -m benchmarks.$(or $(MODULE_$@),$(@:bench-%=%)) $(args)
MODULE_bench := parts
MODULE_learning-curves := learning

docs: .venv/.docs ## build the documentation site into build/site; a link that leads nowhere fails it
	@$(BIN)/sphinx-build -q -W --keep-going -b html -d build/site-cache -c docs/site . build/site
	@echo "built build/site/index.html"

clean: ## remove caches and build products; .venv and runs/ stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +
