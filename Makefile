# Every command of the project. The first one that needs it builds .venv; nothing else is installed anywhere.
.DEFAULT_GOAL := help

# Names in capitals: a configuration key given on the command line (make train env=ant) is a make variable too, and must
# not meet one of ours.
VENV := .venv
BIN := $(VENV)/bin
# The interpreter that .venv is made with: OFFPOLICY_PYTHON, else PYTHON, else the first fit one of CANDIDATES.
CANDIDATES := $(or $(OFFPOLICY_PYTHON),$(PYTHON),python3 python3.13 python3.12 python3.11 python)
FIT_PYTHON := import sys, ensurepip; sys.exit(sys.version_info < (3, 11))

# ---- key=value words of the command line
# `make train algo.hidden_dims=[64,64]` defines the make variable `algo.hidden_dims`. GIVEN_KEYS are the names of all that
# were defined that way; GIVEN_WORDS are the same as key='value' words, quoted for the shell, the values never expanded.
# The loop variable has a name nobody would give on the command line: inside the loop it hides a variable of that name.
OUR_OWN := PYTHON OFFPOLICY_PYTHON VENV SHELL MAKEFLAGS
ORIGIN_IS_COMMAND_LINE = $(filter command,$(firstword $(origin $1)))
GIVEN_KEYS := $(sort $(foreach GIVEN_,$(.VARIABLES),$(if $(call ORIGIN_IS_COMMAND_LINE,$(GIVEN_)),$(GIVEN_))))
GIVEN_KEYS := $(filter-out $(OUR_OWN),$(GIVEN_KEYS))
SHELL_QUOTED = '$(subst ','\'',$1)'
GIVEN_WORDS = $(foreach GIVEN_,$(GIVEN_KEYS),$(call SHELL_QUOTED,$(GIVEN_)=$(value $(GIVEN_))))
# The same as options of a program: --key 'value', without the keys of $1.
GIVEN_OPTIONS = $(foreach GIVEN_,$(filter-out $1,$(GIVEN_KEYS)),--$(GIVEN_) $(call SHELL_QUOTED,$(value $(GIVEN_))))
# The words of one value, each quoted; and those of `set`, the changes of an environment, each as an option.
QUOTED_WORDS = $(foreach GIVEN_,$(if $(filter $1,$(GIVEN_KEYS)),$(value $1)),$(call SHELL_QUOTED,$(GIVEN_)))
ENV_OPTIONS = $(foreach GIVEN_,$(if $(filter set,$(GIVEN_KEYS)),$(value set)),--set $(call SHELL_QUOTED,$(GIVEN_)))
# Keep them out of the environment of the recipes, where `device` or `env` could mean something to a program.
MAKEOVERRIDES :=
ifneq ($(GIVEN_KEYS),)
unexport $(GIVEN_KEYS)
endif

# ---- installing
# A .venv that works is kept, whoever made it.
$(VENV)/.python:
	@if $(BIN)/python -c '$(FIT_PYTHON)' 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    touch $@; exit 0; \
	fi; \
	for candidate in $(CANDIDATES); do \
	    "$$candidate" -c '$(FIT_PYTHON)' 2>/dev/null || continue; \
	    "$$candidate" -m venv --clear $(VENV) && touch $@ && exit 0; \
	done; \
	echo "make: no Python >= 3.11 with the venv module among: $(CANDIDATES). Set PYTHON=/path/to/python3.11" >&2; exit 1

# pip first: the one that comes with Python 3.11 knows no dependency groups.
$(VENV)/.installed: $(VENV)/.python pyproject.toml constraints.txt
	@echo "Installing offpolicy into $(VENV); this takes minutes, once." >&2
	@$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.installed
	@echo "Installing the development tools into $(VENV)." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt --group dev
	@touch $@

# The extra `plot`, which draws the pictures of compare and trace.
$(VENV)/.plot: $(VENV)/.installed
	@echo "Installing matplotlib into $(VENV)." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[plot]'
	@touch $@

# The extra `video`, with what draws and films every shipped environment.
$(VENV)/.video: $(VENV)/.installed
	@echo "Installing pygame and ffmpeg into $(VENV)." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[video]'
	@touch $@

# The extra `export`, which writes and runs ONNX files.
$(VENV)/.export: $(VENV)/.installed
	@echo "Installing onnx and onnxruntime into $(VENV)." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[export]'
	@touch $@

# What builds the documentation site.
$(VENV)/.docs: $(VENV)/.installed
	@echo "Installing Sphinx into $(VENV)." >&2
	@$(BIN)/python -m pip install --quiet -c constraints.txt --group docs
	@touch $@

# The peers of `make bench-peers` and `make test-peers`, each in an environment of its own: never a dependency of offpolicy. They get our torch
# and mujoco, so that only the trainers differ, and choose the rest. One that cannot be installed is no error here: the
# benchmark names it, with the reason from install.log, the tests are skipped, and the next call tries again.
PEER_sb3 := stable-baselines3
PEER_sbx := sbx-rl
PEER_STAMPS := .bench/sb3/.installed .bench/sbx/.installed
$(PEER_STAMPS): .bench/%/.installed: constraints.txt | $(VENV)/.python
	@echo "Installing $(PEER_$*) into .bench/$*; this takes minutes, once." >&2
	@$(BIN)/python -m venv --clear .bench/$*
	@grep -E '^(torch|mujoco)==' constraints.txt > .bench/$*/constraints.txt
	@if .bench/$*/bin/python -m pip install --quiet -c .bench/$*/constraints.txt \
	    torch 'gymnasium[mujoco]' $(PEER_$*) 2> .bench/$*/install.log; then touch $@; \
	else echo "make: $(PEER_$*) is left out; see .bench/$*/install.log" >&2; fi

# pytest exits with 5 when it finds no test: fine when `args` chose them, an error otherwise.
UNLESS_CHOSEN = $(if $(args),|| [ $$? -eq 5 ])

# ---- commands
.PHONY: help train resume list eval play export prune compare explain trace tensorboard test test-slow test-gpu test-peers test-all chaos check lint types bench bench-check bench-peers bench-predictions learning-curves docs clean doctor

help: ## list these commands
	@echo "make train algo=td3 env=halfcheetah seed=3 env.num_envs=8    any Hydra override passes through"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

train: $(VENV)/.installed ## train a policy: make train algo=sac|td3|flashsac|appo|hora env=pendulum|halfcheetah|... key=value ...
	@$(BIN)/offpolicy train $(GIVEN_WORDS)

resume: $(VENV)/.installed ## continue a run: make resume [run=runs/sac/... total_timesteps=50000]
	@$(BIN)/offpolicy resume $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run))) \
	    $(foreach GIVEN_,$(filter-out run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(GIVEN_)=$(value $(GIVEN_))))

list: $(VENV)/.installed ## list the runs, the newest first: make list [most=50]
	@$(BIN)/offpolicy list $(call GIVEN_OPTIONS)

doctor: $(VENV)/.installed ## check the installation and this machine, and say what will be slow [json=1]
	@$(BIN)/offpolicy doctor $(call GIVEN_OPTIONS,json) $(if $(filter-out 0 false,$(json)),--json)

eval: $(VENV)/.installed ## evaluate: make eval [run=runs/sac/... episodes=20], or runs="a=runs/... b=runs/..." [random=1 set=key=value]
	@$(BIN)/offpolicy eval $(call GIVEN_OPTIONS,run runs random set) $(call ENV_OPTIONS) $(if $(filter-out 0 false,$(random)),--random) \
	    $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run))) $(call QUOTED_WORDS,runs)

play: $(VENV)/.installed $(VENV)/.video ## watch a policy, or film it: make play [run=runs/appo/... video=turning.gif episodes= seed= set=key=value]
	@$(BIN)/offpolicy play $(call GIVEN_OPTIONS,run set) $(call ENV_OPTIONS) $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run)))

export: $(VENV)/.export ## a policy as a file: make export run=runs/sac/... onnx=policy.onnx [torch=policy.pt2 step= best=1]
	@$(BIN)/offpolicy export $(call GIVEN_OPTIONS,run set best) $(call ENV_OPTIONS) $(if $(filter-out 0 false,$(best)),--best) \
	    $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run)))

prune: $(VENV)/.installed ## remove old checkpoints: make prune runs="runs/a runs/b" [keep=2 dry=1]
	@$(BIN)/offpolicy prune $(call GIVEN_OPTIONS,runs dry) $(if $(filter-out 0 false,$(dry)),--dry-run) $(call QUOTED_WORDS,runs)

compare: $(VENV)/.installed $(if $(filter png html,$(GIVEN_KEYS)),$(VENV)/.plot) ## hold runs against the first: make compare runs="a b" [png=x.png html=x.html markdown=x.md reference=-200]
	@$(BIN)/offpolicy compare $(call GIVEN_OPTIONS,runs) $(call QUOTED_WORDS,runs)

explain: $(VENV)/.installed ## where a run's time went: make explain run=runs/sac/... [before=runs/...]
	@$(BIN)/offpolicy explain $(call GIVEN_OPTIONS,run) $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run)))

trace: $(VENV)/.installed $(if $(filter svg,$(GIVEN_KEYS)),$(VENV)/.plot) ## read a trace: make trace run=runs/sac/... [svg=x.svg iterations=3 start=0]
	@$(BIN)/offpolicy trace $(call GIVEN_OPTIONS,run) $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run)))

tensorboard: $(VENV)/.installed ## show the curves of all runs, or of some: make tensorboard [runs="a=runs/... b=runs/..." port=6006]
	@$(BIN)/offpolicy tensorboard $(call GIVEN_OPTIONS,run runs) \
	    $(if $(filter run,$(GIVEN_KEYS)),$(call SHELL_QUOTED,$(value run))) $(call QUOTED_WORDS,runs)

# Two tests at a time, one per core; the tests of a file share its fixtures. (xdist's groups do nothing with pytest 9.2.)
test: $(VENV)/.dev ## the tests that a change must pass: make test [args='-k ring']
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(args) $(UNLESS_CHOSEN)

test-slow: $(VENV)/.dev $(VENV)/.video ## the nightly tests, hours: what measures time, kill loops, full matrices, learning bands [args='-k name']
	@$(BIN)/python -m tests.nightly $(args)

chaos: $(VENV)/.dev ## random faults in every runner and algorithm: make chaos [seed=3 minutes=20 scene=sac,appo story=7]
	@$(BIN)/python -m tests.chaos $(call GIVEN_OPTIONS)

test-gpu: $(VENV)/.dev ## the tests that need a CUDA device
	@$(BIN)/python -m pytest -m gpu --timeout 600 $(args)

test-peers: $(VENV)/.dev .bench/sb3/.installed ## SAC and TD3 beside Stable-Baselines3, V-trace beside rlax's formula
	@$(BIN)/python -m pytest -m "slow or not slow" -rs tests/peers $(args)

test-all: check test ## what a change must pass, and CI runs: lint, types, import layers, tests

check: lint types ## lint, format, import layers and types, without tests

lint: $(VENV)/.dev ## ruff check, ruff format --check, lint-imports
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(VENV)/.dev ## mypy --strict; the nightly tests run pyright, too
	@$(BIN)/mypy

bench: $(VENV)/.installed ## what each part costs, and scaling [only=updates,scaling rounds=3 budget=480]
	@$(BIN)/python -m benchmarks.parts $(call GIVEN_OPTIONS)

bench-check: $(VENV)/.installed ## fails if an update is 10 % slower, beside its GEMM floor, than the best result of such a machine
	@$(BIN)/python -m benchmarks.check

bench-peers: $(VENV)/.installed $(PEER_STAMPS) ## env steps/s beside SB3, SBX and one file [race=sac-1 rounds=3 only=ours,sbx budget=480]
	@$(BIN)/python -m benchmarks.peers $(call GIVEN_OPTIONS)

learning-curves: $(VENV)/.installed ## train every preset with several seeds, hours in all [only=sac-halfcheetah seeds=1 jobs=2 budget=480 again=runs/again]
	@$(BIN)/python -m benchmarks.learning $(call GIVEN_OPTIONS)

bench-predictions: $(VENV)/.installed ## how far `pred` is from what the same run does; an hour, on a quiet machine
	@$(BIN)/python -m benchmarks.predictions $(call GIVEN_OPTIONS)

docs: $(VENV)/.docs ## build the documentation site into build/site; a link that leads nowhere fails it
	@$(BIN)/sphinx-build -q -W --keep-going -b html -d build/site-cache -c docs/site . build/site
	@echo "built build/site/index.html"

clean: ## remove caches and build products; .venv and runs/ stay
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
