# make run          a real Triton serves the sample models through Brisk; Ctrl-C stops it
# make run ONCE=1   the same, but ends after every model was asked; status 0 if all was right
# make test         linters, type check and all tests; TESTS=tests/unit for some of them
#                   PROCESSES=1: all in one process, else what is not timed in three (tests/two_stages.py)
#                   types are checked beside samples and what is not timed, if all tests run in several
#                   a failure of time alone is run once more, alone: FLAKY, if that passes
# make image-test   builds docker/Dockerfile.cpu, runs it and asks it; needs Docker or buildah
# make bench        the benchmark BENCH (warm); ARGS="--quick" and other options of it
# make release    VERSION=0.2.0: tests, version, sdist, wheel, image, provenance, tag (CONTRIBUTING.md)
# make clean        removes what was generated, .venv stays

VENV := .venv
TESTS ?= tests
PROCESSES ?= 3
BENCH ?= warm
SCRIPTS := $(filter-out tools/make-environment tools/publication,$(wildcard tools/*)) tools/gpu/bundle
SOURCES := triton_backend client bench tests model_repository tools/publication $(SCRIPTS)

SAMPLES = $(VENV)/bin/python model_repository/generate.py
TYPES = $(VENV)/bin/mypy triton_backend client bench tools/publication
PYTEST = $(VENV)/bin/pytest $(if $(filter-out 1,$(PROCESSES)),-n $(PROCESSES) --max-worker-restart 0) --second-run

.PHONY: help run test image-test bench release samples environment test-environment clean

help:
	@sed -n 's/^# //p' Makefile

environment:
	@tools/make-environment run

test-environment:
	@tools/make-environment run
	@tools/make-environment test

samples: environment
	@$(SAMPLES)

run: samples
	@$(VENV)/bin/brisk demo $(if $(ONCE),--once) $(if $(TRITONSERVER),--tritonserver '$(TRITONSERVER)')

test: test-environment
	$(VENV)/bin/ruff check $(SOURCES)
	$(VENV)/bin/ruff format --check $(SOURCES)
ifeq ($(TESTS)$(filter 1,$(PROCESSES)),tests)
	@mkdir -p build
	$(TYPES) >build/types.txt 2>&1 & types=$$!; \
	$(SAMPLES) && $(PYTEST) $(TESTS); tests=$$?; \
	wait $$types || { cat build/types.txt; tests=1; }; exit $$tests
else
	@$(SAMPLES)
	$(TYPES)
	$(PYTEST) $(TESTS)
endif

image-test: test-environment samples
	BRISK_TEST_IMAGES=1 $(VENV)/bin/pytest -m image --one-must-pass tests/docker

bench: test-environment samples
	@$(VENV)/bin/brisk bench $(BENCH) $(ARGS)

release: test-environment
	@$(VENV)/bin/python tools/release $(VERSION) $(if $(filter 0,$(CHECKS)),--no-checks) $(if $(filter 0,$(IMAGE)),--no-image)

clean:
	rm -rf build model_repository/*/*/model.onnx model_repository/*/expected.npz model_repository/*/accuracy.json
