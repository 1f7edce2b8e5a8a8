#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that a step needs, and only those that are missing.
#   tools/setup.sh build    what compiles the program and its tests (default)
#   tools/setup.sh fetch    what downloads the default model
#   tools/setup.sh clients  the Python packages that tests/server asks with, into build/clients (tests without them are left out)
# Invariant: where nothing is missing, nothing is touched: no root, no network, a few milliseconds.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
CLIENTS=(openai==3.57.0 schemathesis==4.32.5)

case ${1:-build} in
  build) packages=(make g++ cmake ninja-build pkg-config python3 libfmt-dev libspdlog-dev nlohmann-json3-dev
                   libboost-dev libssl-dev libcli11-dev libpcre2-dev libutf8proc-dev libxxhash-dev libgtest-dev libgmock-dev xz-utils) ;;
  fetch) packages=(python3 python3-pip) ;;
  clients)
    done="$ROOT/build/clients/${CLIENTS[*]}.ok"
    [[ -f $done ]] && exit 0
    "${BASH_SOURCE[0]}" fetch
    say "installing ${CLIENTS[*]} into build/clients"
    rm -rf "$ROOT/build/clients"
    install() { python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$ROOT/build/clients" "$@"; }
    if install "${CLIENTS[@]}"; then touch "$done"; else install "${CLIENTS[0]}"; fi
    exit 0 ;;
  *) die "tools/setup.sh: unknown group '$1' (build, fetch, clients)" ;;
esac

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  say "no apt-get here, so nothing is installed; this step needs the equivalents of: ${packages[*]}"
  exit 0
fi

# A package counts as present only when dpkg says "installed", not "config files left" or "half-configured".
# (g++ provides itself; pkg-config is a transitional name where pkgconf took over, and dpkg lists both.)
missing_packages() {
  local installed
  installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${packages[@]}" 2>/dev/null || true)
  local package
  for package in "${packages[@]}"; do
    grep -qxF "installed $package" <<<"$installed" || printf '%s\n' "$package"
  done
}

mapfile -t missing < <(missing_packages)
(( ${#missing[@]} )) || exit 0

as_root=()
if (( EUID != 0 )); then
  command -v sudo >/dev/null ||
    die "these packages are missing and you are neither root nor have sudo: ${missing[*]}
       ask an administrator to run: apt-get install ${missing[*]}"
  as_root=(sudo)
fi
# Waits for another apt (unattended upgrades on a new machine) and never asks anything.
apt=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)

# On a terminal apt shows its own progress; elsewhere its hundreds of lines matter only when it fails.
aloud() {
  if [[ -t 2 ]]; then "$@" </dev/null >&2; return; fi
  local output
  output=$("$@" </dev/null 2>&1) || { printf '%s\n' "$output" >&2; return 1; }
}
known_to_apt() {
  local package
  for package in "$@"; do
    apt-cache show --no-all-versions "$package" >/dev/null 2>&1 || return 1
  done
}
refresh_lists() {
  say "refreshing the package lists"
  aloud "${apt[@]}" update || die "apt-get update failed: is there a network? (still missing: ${missing[*]})"
}
install_missing() { aloud "${apt[@]}" install -y --no-install-recommends "${missing[@]}"; }

say "installing ${#missing[@]} missing package(s): ${missing[*]}"
# An interrupted earlier run leaves dpkg half-way; finishing it is free when there is nothing to finish.
if [[ -n $(dpkg --audit 2>/dev/null) ]]; then
  aloud "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a || true
fi
refreshed=
known_to_apt "${missing[@]}" || { refresh_lists; refreshed=1; }
if ! install_missing; then
  failed="could not install: ${missing[*]} (no network, or no such package here; apt's own message is above)"
  [[ -z $refreshed ]] || die "$failed"
  refresh_lists  # old lists name versions that the mirror no longer has
  install_missing || die "$failed"
fi
mapfile -t missing < <(missing_packages)
(( ${#missing[@]} == 0 )) || die "apt-get reported success but these are still missing: ${missing[*]}"
