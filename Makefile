# What a newcomer and a developer type; `make help` lists it. CI calls the same targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
PYTHON ?= python3

# Tests run on the oldest and on the newest ansible-core that is supported: .venv has the one of PYTHON, .venv-other the other.
OTHER_PYTHON := $(shell $(PYTHON) -c 'import sys; print("3.13" if sys.version_info < (3, 12) else "3.11")')
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
PYTEST := .venv/bin/pytest

.DEFAULT_GOAL := help
.PHONY: help setup packages demo demo-fleet demo-tune demo-down show docs test test-fast lint unit plays engines lab molecule other soak soak-fleet \
  bench bench-fleet wheelhouse lock dry-run requirements format clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: .venv/.complete .ironserve/wheelhouse/uv/wheelhouse.json  ## make .venv with all that deploys and tests need here

.venv/.complete: requirements/dev.txt
	@tools/venv.sh .venv $(PYTHON)

.ironserve/wheelhouse/uv/wheelhouse.json: environments/uv.yml .venv/.complete
	@.venv/bin/python tools/wheelhouse.py && touch $@

.venv-other/.complete: requirements/dev.txt .venv/.complete
	@tools/venv.sh .venv-other $(OTHER_PYTHON)

packages:  ## install the system packages that test hosts need
	@tools/packages.sh

ENGINE ?= vllm
demo: setup packages  ## deploy the real vLLM (or ENGINE=sglang) onto a test host on this machine, and ask it something
	@tools/demo.sh $(ENGINE)

demo-fleet: setup packages  ## three hosts behind a router, under load: a good rollout, and a bad one that takes itself back
	@tools/demo_fleet.sh

demo-tune: setup packages  ## tune the real vLLM on a test host: two profiles are measured, the faster one serves, a page tells why
	@tools/demo_tune.sh

demo-down:  ## remove what the demos made, but for the caches
	@tests/lab/lab --name demo down
	@tests/lab/lab --name demo-fleet down
	@tests/lab/lab --name demo-tune down

show: setup  ## print what a profile becomes: make show PROFILE=triton_nccl GROUP=blackwell (or HOST=gpu-a01)
	@$(if $(or $(GROUP),$(HOST)),,$(error say where: GROUP=blackwell, or HOST= with a name of your inventory))\
	ansible-playbook $(if $(GROUP),-i inventory/any_host.py,-l '$(HOST)') \
	  playbooks/show.yml $(if $(PROFILE),-e 'profile=$(PROFILE)') $(if $(SERVICE),-e 'service=$(SERVICE)')

docs: setup  ## write the references in docs/ anew from the schema and from the known causes
	.venv/bin/python tools/profile_reference.py

test: setup packages lint unit plays engines lab molecule other  ## everything: lint and all tests
	@echo "make test: all passed"

test-fast: setup unit  ## pure and unit tests, under a minute

lint: setup  ## yamllint, ansible-lint (production), ruff, mypy --strict, no end by pattern
	yamllint --strict .
	ruff check . tests/lab/lab
	ruff format --check . tests/lab/lab
	mypy tests/typing/ansible/module_utils/ironserve library plugins
	.venv/bin/python tools/lint_kill.py
	ANSIBLE_INVENTORY=inventory/hosts.example.yml ansible-lint

unit: setup
	$(PYTEST) tests/unit --numprocesses 3 --dist loadfile

engines: setup packages  ## tests of the stand-ins: the engine against the logs of the real ones, GPUs
	$(PYTEST) tests/engines tests/gpu --numprocesses 2

plays: setup  ## tests of what plays decide and show, on this machine alone: Ansible runs, and no host
	$(PYTEST) tests/plays --numprocesses 2

lab: setup packages  ## tests on test hosts: real systemd, real sshd
	$(PYTEST) tests/lab --numprocesses 3 --dist loadfile --no-loadscope-reorder

molecule: setup packages  ## every role and the whole deploy, on test hosts
	tools/engines.sh standin vllm sglang router
	tools/molecule.sh engine_environment gpu_host router serve deploy real_sglang

other: setup packages .venv-other/.complete  ## unit tests and the deploy scenario with the other ansible-core
	.venv-other/bin/ansible --version | sed -n 1p
	.venv-other/bin/pytest tests/unit tests/plays --numprocesses 3 --dist loadfile
	tools/engines.sh standin
	PATH=$(CURDIR)/.venv-other/bin:$$PATH tools/molecule.sh deploy

COUNT ?= 200
SEED ?= 1
soak: setup packages  ## 200 deploys on test hosts that go wrong in known ways (COUNT=, SEED=): are the verdicts right?
	.venv/bin/python tests/lab/soak.py --count $(COUNT) --seed $(SEED)

bench: setup packages  ## measure what a deploy, a preflight, the gate, a cleanup and the plan of 1,000 hosts cost; JSON in .ironserve/bench*.json
	.venv/bin/python tests/benchmarks/deploy.py
	.venv/bin/python tests/benchmarks/preflight.py
	.venv/bin/python tests/benchmarks/gate.py
	.venv/bin/python tests/benchmarks/cleanup.py
	.venv/bin/python tests/benchmarks/plan.py

soak-fleet: setup packages  ## all rollouts under load, the controller killed at 20 moments and at every task: is every host accounted for?
	IRONSERVE_KILLS=20 $(PYTEST) tests/lab/test_rollout.py tests/lab/test_interrupted.py

bench-fleet: setup packages  ## measure fleets of 8, 16 and 32 test hosts (SIZES=); JSON in .ironserve/bench-fleet.json
	.venv/bin/python tests/benchmarks/fleet.py --raise-inotify --mitogen $(if $(SIZES),--sizes $(SIZES))

LOCK ?= vllm-0.32.0-cpu
wheelhouse: setup  ## download all files of a lock: make wheelhouse LOCK=vllm-0.32.0-cpu (a name or a path)
	.venv/bin/python tools/wheelhouse.py $(LOCK)

lock: setup  ## have a lock: make lock ENGINE=sglang VERSION=0.5.23 [PYTHON_MINOR=3.11] [VARIANT=cpu] [UPGRADE=1]
	@.venv/bin/python tools/make_lock.py $(ENGINE) $(or $(VERSION),$(error say which: VERSION=0.5.23)) \
	  $(if $(PYTHON_MINOR),--python $(PYTHON_MINOR)) $(if $(VARIANT),--variant $(VARIANT)) $(if $(UPGRADE),--upgrade)

dry-run: setup  ## ask the index whether it has every file of a lock: make dry-run LOCK=sglang-0.5.23-cuda
	@.venv/bin/python tools/dry_run.py $(LOCK)

requirements: setup  ## pin requirements/dev.txt anew from dev.in
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make requirements" requirements/dev.in -o requirements/dev.txt

format: setup  ## let ruff format
	ruff format . tests/lab/lab

clean:  ## remove test hosts, environments and caches of this checkout
	@for lab in $$(ls .ironserve/lab 2>/dev/null); do tests/lab/lab --name "$$lab" down; done
	rm -rf .ironserve .venv .venv-other .pytest_cache .mypy_cache .ruff_cache .hypothesis
