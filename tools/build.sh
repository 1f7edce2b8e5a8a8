#!/usr/bin/env bash
# Configures when needed and builds with Ninja.   tools/build.sh PRESET [TARGET...]
# Invariant: safe to repeat and to interrupt; an unfinished configuration is started again, and a second
# build in the same folder waits for the first.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=${1:?usage: tools/build.sh PRESET [TARGET...]}
shift
case $preset in
  release) dir=$ROOT/build ;;
  *) dir=$ROOT/build-$preset ;;
esac
cd "$ROOT"
mkdir -p "$dir"

exec 8>"$dir/.build-lock"
if ! flock -n 8; then
  say "another build runs in ${dir#"$ROOT"/}; waiting for it"
  flock 8
fi

configured() {
  [[ -f $dir/build.ninja && -f $dir/CMakeCache.txt ]] &&
    grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$dir/CMakeCache.txt"
}
if ! configured; then
  say "configuring ${dir#"$ROOT"/} ($preset)"
  log=$dir/configure.log
  if ! cmake --fresh --preset "$preset" 8>&- >"$log" 2>&1; then
    rm -f "$dir/build.ninja"
    cat "$log" >&2
    die "the configuration failed (its output is above)"
  fi
fi

cd "$dir"
export NINJA_STATUS='[%f/%t %es] '
if [[ -t 2 ]]; then
  ninja -j "$(build_jobs)" "$@" 8>&- >&2
else
  # Without a terminal, one line per tenth of the work; whatever a compiler says passes whole.
  ninja -j "$(build_jobs)" "$@" 8>&- | awk '
    match($0, /^\[[0-9]+\/[0-9]+ [0-9.]+s\] /) {
      split(substr($0, 2), part, /[\/ ]/)
      tenth = int(10 * part[1] / part[2])
      if (tenth == last && part[1] != part[2]) next
      last = tenth
    }
    /^ninja: no work to do/ { next }
    { print; fflush() }' >&2
fi
