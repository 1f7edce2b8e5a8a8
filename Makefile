# The two commands that matter are `make run` and `make test`; the work is done by scripts in tools/.
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build run test clean

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
	@echo 'make clean   remove what was built (the fetched model stays)'

build:
	@tools/setup.sh build
	@tools/build.sh release cachalot

run:
	@tools/run.sh

test:
	@tools/test.sh

clean:
	rm -rf build build-relassert build-debug
