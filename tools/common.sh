# Sourced by the other scripts: the repository's root, and how they talk.
# Invariant: only a script's result goes to standard output; everything said to a person goes to standard error.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

say() { printf '==> %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# Parallel compilers: one per core, but never more than memory holds at 2 GiB each.
build_jobs() {
  local cores kib
  cores=$(nproc)
  kib=$(awk '$1 == "MemAvailable:" { print $2 }' /proc/meminfo 2>/dev/null || true)
  local by_memory=$(( ${kib:-4194304} / 2097152 ))
  (( by_memory >= 1 )) || by_memory=1
  echo $(( cores < by_memory ? cores : by_memory ))
}
