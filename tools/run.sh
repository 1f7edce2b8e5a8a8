#!/usr/bin/env bash
# `make run`: sets the machine up, builds the program, fetches the default model and streams an answer.
# Reads PROMPT, MODEL and ARGS as set by the Makefile; ARGS holds further flags, quoted as in a shell.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$ROOT/tools/setup.sh" build
"$ROOT/tools/build.sh" release cachalot
# Defaults stand before ARGS, and the last of a flag counts. The default model is very small: its best tokens make the
# better answer, where sampling often leads it astray.
defaults=(-n 128)
model=${MODEL:-}
if [[ -z $model ]]; then
  model=$("$ROOT/tools/fetch_model.sh")
  defaults+=(--temp 0)
fi
[[ -e $model ]] || die "MODEL=$model: no such file or folder"

declare -a args="(${ARGS:-})"
exec "$ROOT/build/cachalot" run -m "$model" -p "${PROMPT:-What is the capital of France?}" "${defaults[@]}" "${args[@]}"
