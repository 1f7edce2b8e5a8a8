#!/usr/bin/env bash
# `make test`: the checks of the tree, then every test in Release and again under ASan and UBSan.
# Invariant: the last line counts what really ran ('N passed, N failed, N skipped'), and the exit code is 0 only
# when every stage ran to its end and nothing failed. Safe to repeat and to interrupt.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
cd "$ROOT"
trap 'say "interrupted; run it again to go on"; exit 130' INT TERM HUP

stages=(checks release relassert documents)
results=$ROOT/build/test-results
rm -rf "$results"
mkdir -p "$results"
# Where tests write: nothing of another run, or of another user, is in the way.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
stage_number=0
stage() {
  stage_number=$(( stage_number + 1 ))
  printf '\n== %d/%d (%d min %02d s) %s\n' "$stage_number" "${#stages[@]}" $(( SECONDS / 60 )) $(( SECONDS % 60 )) "$*"
}

# check STAGE NAME COMMAND...: runs one check and notes how it ended.
check() {
  local stage=$1 name=$2 log rc=0
  shift 2
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  if (( rc == 0 )); then printf 'ok      %s: %s\n' "$name" "$(tail -n 1 "$log")"; else
    printf 'FAILED  %s\n' "$name"
    cat "$log"
  fi
  rm -f "$log"
  mkdir -p "$results/$stage"
  printf '%s\t%s\n' "$rc" "$name" >>"$results/$stage/checks.tsv"
}

# suite PRESET DIR TIMEOUT: builds everything and runs every CTest entry.
suite() {
  local preset=$1 dir=$2 timeout=$3 out=$results/$1
  mkdir -p "$out/gtest"
  if ! tools/build.sh "$preset"; then
    printf '1\tbuild %s\n' "$preset" >"$out/checks.tsv"
    printf 'FAILED  the %s build; its tests did not run\n' "$preset"
    return
  fi
  ctest --test-dir "$dir" --show-only=json-v1 >"$out/entries.json"
  TMPDIR=$scratch TEST_TMPDIR=$scratch/ GTEST_OUTPUT=xml:$out/gtest/ GTEST_COLOR=no UBSAN_OPTIONS=print_stacktrace=1 \
    ctest --test-dir "$dir" --output-on-failure --no-tests=error --timeout "$timeout" -j "$(nproc)" \
    --output-junit "$out/ctest.xml" </dev/null 2>&1 | without_passed_cases || true
}

# Of a failed binary's output, leaves out the cases that passed: "[ RUN ]" directly followed by "[ OK ]".
without_passed_cases() {
  awk '/^\[ RUN      \]/ { if (held != "") print held; held = $0; next }
       /^\[       OK \]/ && held != "" { held = ""; next }
       { if (held != "") print held; held = ""; print; fflush() }
       END { if (held != "") print held }'
}

tools/setup.sh build
tools/setup.sh clients || say "no client for tests/server: its tests are left out"

stage "checks of the tree"
check checks "tests of tools/check_includes.py" python3 tools/check_includes_test.py
check checks "tests of tools/check_docs.py" python3 tools/check_docs_test.py
check checks "tests of tools/test_summary.py" python3 tools/test_summary_test.py
check checks "include directions and house rules" python3 tools/check_includes.py
check checks "age of the recorded GPU run" python3 tools/gpu_record.py --check

stage "tests in Release"
suite release build 900

stage "tests under AddressSanitizer and UndefinedBehaviorSanitizer"
suite relassert build-relassert 2700

stage "documents against the program"
check documents "paths, commands and flags in the documents" python3 tools/check_docs.py --program build/cachalot

printf '\n== results after %d min %02d s\n' $(( SECONDS / 60 )) $(( SECONDS % 60 ))
rm -rf "$scratch"
exec python3 tools/test_summary.py "$results" "${stages[@]}"
