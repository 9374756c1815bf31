# Two commands matter: `make run` and `make test`. Both set up what they need.

export WSDATA_HOME ?= $(CURDIR)/.wsdata
export PYTHONPATH := $(CURDIR)
PY := .venv/bin/python
WSDATA := .venv/bin/wsdata

.PHONY: run ui example test test-slow cluster conformance lint setup clean help

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

setup: .venv/.installed  ## make .venv with the pinned packages

.venv/.installed: requirements.lock pyproject.toml tools/setup.sh wsdata/loader/_straight.c
	@bash tools/setup.sh

run: setup  ## the main job, on the sample drops or on DROP=folder
ifdef DROP
	@$(WSDATA) run --drop "$(DROP)"
else
	@$(PY) samples/make_drops.py
	@$(WSDATA) run
endif

ui: setup  ## the Dagster UI on the same state, at http://127.0.0.1:3000
	@$(PY) launch.py ui

example: setup  ## train a toy DiT on what `make run` made; kill it, resume it, compare the losses
	@$(PY) examples/train_toy_dit.py --prove --store "$(WSDATA_HOME)/store" --out "$(WSDATA_HOME)/example" --world-size 2

test: setup lint  ## lint, types, import contracts, default tests
	@$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu and not conformance"

test-slow: setup lint  ## the long tests too; they install a Ceph gateway, the peers' readers and diffusers
	@bash tools/cluster_setup.sh
	@bash tools/interop.sh .venv/interop
	@bash tools/vae.sh .venv/vae
	@$(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m "not gpu and not conformance"

cluster: setup  ## the sample drops through S3, Postgres and Kubernetes on loopback: the same bytes
	@$(PY) -m wsdata_tests.cluster.rehearsal $(ARGS)

conformance: setup  ## what the project relies on, asked of a real cluster: KUBECONFIG=file
ifneq ($(origin KUBECONFIG),command line)
	$(error say which cluster: make conformance KUBECONFIG=file; docs/conformance.md tells what it does there)
endif
	@WSDATA_KUBECONFIG="$(abspath $(KUBECONFIG))" $(PY) -m pytest -q -m conformance wsdata_tests/cluster

lint: setup
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/pyright
	@.venv/bin/lint-imports

clean:  ## forget the state of `make run` (not .venv)
	rm -rf "$(WSDATA_HOME)"
