#!/usr/bin/env bash
# `make run`: sets the machine up, builds the program, fetches the default model and streams an answer.
# Reads PROMPT, MODEL and ARGS as set by the Makefile; ARGS holds further flags, quoted as in a shell.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$ROOT/tools/setup.sh" build
"$ROOT/tools/build.sh" release cachalot
# Defaults stand before ARGS, and the last of a flag counts. The default model is very small: sampling often leads it
# astray, and under its own system message "The" and "L'" are a near tie as first words of an answer about France
# (log-probabilities -1.88 and -1.96 in exact arithmetic); asked for a brief answer it is sure (-1.08 and -1.64).
defaults=(-n 128)
model=${MODEL:-}
if [[ -z $model ]]; then
  model=$("$ROOT/tools/fetch_model.sh")
  defaults+=(--temp 0 -sys "Answer the question briefly.")
fi
[[ -e $model ]] || die "MODEL=$model: no such file or folder"

declare -a args="(${ARGS:-})"
exec "$ROOT/build/cachalot" run -m "$model" -p "${PROMPT:-What is the capital of France?}" "${defaults[@]}" "${args[@]}"
