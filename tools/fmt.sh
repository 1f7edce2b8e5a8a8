#!/usr/bin/env bash
# Formats the C++ files that differ from the last commit, or all of them.   tools/fmt.sh [--all] [--check]
# Version 14 (Debian 12's) decides, since each version formats a little differently.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"

all=''
check=''
for argument in "$@"; do
  case $argument in
    --all) all=1 ;;
    --check) check=1 ;;
    *) die "unknown argument '$argument' (--all, --check)" ;;
  esac
done
formatter=$(command -v clang-format-14 || command -v clang-format) || die "clang-format is missing (package clang-format-14)"
"$formatter" --version | grep -q 'version 14\.' || die "$formatter is not version 14: $("$formatter" --version)"

list() {
  if [[ -n $all ]]; then git ls-files -z -co --exclude-standard; else
    git diff -z --name-only --diff-filter=d HEAD
    git ls-files -z -o --exclude-standard
  fi
}
mapfile -d '' -t files < <(list | grep -zE '^(src|include|tests|bench)/.*\.(cc|h|cu|cuh)$' || true)
if (( ${#files[@]} == 0 )); then say "no C++ file differs from the last commit"; exit 0; fi
if [[ -n $check ]]; then exec "$formatter" --dry-run -Werror "${files[@]}"; fi
exec "$formatter" -i "${files[@]}"
