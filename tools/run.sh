#!/usr/bin/env bash
# `make run`: sets the machine up, builds the program, fetches the default model and streams an answer.
# Reads PROMPT, MODEL and ARGS as set by the Makefile; ARGS holds further flags, quoted as in a shell.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$ROOT/tools/setup.sh" build
"$ROOT/tools/build.sh" release cachalot
model=${MODEL:-}
[[ -n $model ]] || model=$("$ROOT/tools/fetch_model.sh")
[[ -e $model ]] || die "MODEL=$model: no such file or folder"

declare -a args="(${ARGS:-})"
[[ " ${args[*]} " == *" -n "* ]] || args+=(-n 128)
exec "$ROOT/build/cachalot" run -m "$model" -p "${PROMPT:-What is the capital of France?}" "${args[@]}"
