# Everything runs in .venv, which every target sets up by itself. Needs Python 3.11+, pip and make.
PYTHON ?= python3
BIN := .venv/bin

ONLY ?= replay

SPELLED := README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs src examples bench

PAGES := docs/tutorial.md docs/seed-analysis.md $(wildcard docs/how-to/*.md)

.PHONY: help setup demo demo-pqn ray-demo test test-ray test-compat test-full check bench bench-gpu docs docs-pages docs-code lock clean
help:
	@echo "make setup      set up .venv: everything else does it by itself"
	@echo "make demo       set up and train a small mixture on MinAtar Breakout, with a live page, report and curve"
	@echo "make demo-pqn   the same for a single PQN agent (one to two minutes)"
	@echo "make ray-demo   set up with Ray and train on a local Ray: two actors, two replay shards"
	@echo "make test       set up and run the tests"
	@echo "make test-ray   the tests of mode ray, with faults, on a Ray of two nodes on this machine"
	@echo "make test-compat   the tests of millpond.compat with PyTorch, Stable-Baselines3 and others"
	@echo "make check      ruff and pyright"
	@echo "make docs       build the documentation into build/docs, check its links and spelling, run its code"
	@echo "make test-full  long property, soak and fault tests"
	@echo "make bench ONLY=replay      speed against the peers, each in its own environment"
	@echo "make bench ONLY=sequences   the same for sequences of 64 rows, in memory and on disk, and qlambda's updates"
	@echo "make bench ONLY=lake        the same for replay on disk, with recorded Atari play"
	@echo "make bench ONLY=channel     rows between two processes against the peers, with torn rows counted"
	@echo "make bench ONLY=processes   actors and learners at the same time against in turn"
	@echo "make bench ONLY=ray         mode ray against processes, and rows/s with 1, 2, 4 shards"
	@echo "make bench ONLY=compat      Stable-Baselines3 with our replay buffer against its own"
	@echo "make bench ONLY=patches     a convolution as one matmul against lax.conv"
	@echo "make bench ONLY=pqn         PQN against a bare single-file one"
	@echo "make bench ONLY=sac         SAC on Pendulum against a bare single-file one, PyTorch and SBX"
	@echo "make bench ONLY=layouts     what the layout of a ring does to learning, and what it costs"
	@echo "make bench ONLY=watch       the live page: answers, updates, and what it costs a run"
	@echo "make bench-gpu ONLY=pond    speed on a CUDA GPU; ONLY=fill: from disk to it; ONLY=mixture; ONLY=brax"

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'millpond needs Python 3.11 or newer; set PYTHON=')"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

setup: .venv/ready

# Three cycles of four agents with a quarter of the usual batch, so that they end within minutes.
demo: .venv/ready
	$(BIN)/millpond mix minatar/breakout --watch --frames 3e5 --envs 32 --updates 24 --pond 16384 \
	    --big.capacity 131072 --eval-updates 12 --eval-episodes 32 --eval-turns 500

# The preset is made for 10M steps; so short a run learns more from each rollout, and faster.
demo-pqn: .venv/ready
	$(BIN)/millpond train minatar/breakout --steps 400000 --eval-every 40000 \
		--pqn.epochs 4 --pqn.optimizer.rate.start 1e-3

# What only mode ray needs; names and versions in tests_ray/requirements.lock.
.venv/ray: .venv/ready tests_ray/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r tests_ray/requirements.lock
	touch $@

ray-demo: .venv/ray
	$(BIN)/millpond train treasurehunt-small --mode ray --actors 2 --replay-shards 2

test-ray: .venv/ray
	$(BIN)/python -m pytest -q tests_ray

# The packages that millpond.compat works with lie on top of .venv, whose packages they see. Every one
# of them is named in the lock and nothing else is installed, so that torch stays the build it is.
COMPAT := .venv-compat/bin
.venv-compat/ready: .venv/ready tests_compat/requirements.lock
	$(PYTHON) -m venv --clear --without-pip .venv-compat
	$(BIN)/python -c "import site; print('import site; site.addsitedir(%r)' % site.getsitepackages()[0])" \
	    > "$$($(COMPAT)/python -c 'import site; print(site.getsitepackages()[0])')/core.pth"
	$(BIN)/python -m pip --python $(COMPAT)/python install --quiet --disable-pip-version-check --no-deps \
	    -r tests_compat/requirements.lock
	$(BIN)/python -m pip --python $(COMPAT)/python check
	touch $@

# PyTorch's workers are forked in some tests, which must not share a process with what runs JAX.
test-compat: .venv-compat/ready
	$(COMPAT)/python -m pytest -q tests_compat/test_torch.py
	$(COMPAT)/python -m pytest -q tests_compat --ignore=tests_compat/test_torch.py

# With bytecode written, whatever the shell says: else each of the hundred processes that tests start
# compiles our sources anew.
test: .venv/ready
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal tests

test-full: .venv/ready
	XLA_FLAGS= $(BIN)/python -m pytest -q -n 2 tests --full --examples 60

check: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: docs-pages docs-code
	@echo "build/docs/index.html"

# What only the documentation needs; names and versions in docs/requirements.lock.
.venv/docs: .venv/ready docs/requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.lock
	touch $@

docs-pages: .venv/docs
	$(BIN)/python docs/run_notebooks.py $(wildcard docs/notebooks/*.ipynb)
	$(BIN)/python docs/make_cli.py --check
	$(BIN)/python docs/check_words.py
	$(BIN)/codespell $(SPELLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs

# Every command and code block of the tutorial and the how-to guides, as a reader would run them.
docs-code: .venv/ready
	$(BIN)/python docs/run_blocks.py $(PAGES)

# mode ray needs Ray, and compat the packages that it is about; no other benchmark does.
bench: $(if $(filter ray,$(ONLY)),.venv/ray,$(if $(filter compat,$(ONLY)),.venv-compat/ready,.venv/ready))
	$(if $(filter compat,$(ONLY)),$(COMPAT),$(BIN))/python $(firstword $(wildcard bench/$(ONLY)_bench.py) bench/$(ONLY).py)

# On a machine with a CUDA build of jax, which the lock does not hold: GPU_PYTHON names it.
GPU_PYTHON ?= $(PYTHON)
bench-gpu:
	PYTHONPATH=src $(GPU_PYTHON) $(firstword $(wildcard bench/$(ONLY)_gpu.py) bench/$(ONLY).py)

# Pin what is installed now. Names and versions only: no index addresses, no local paths.
lock: .venv/ready
	$(BIN)/python -m pip freeze --exclude-editable | grep -v " @ " \
	    | grep -vxF -f docs/requirements.lock -f tests_ray/requirements.lock > requirements.lock

clean:
	rm -rf .venv .venv-compat runs build
