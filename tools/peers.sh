#!/usr/bin/env bash
# Builds llama.cpp, which the benches compare with, into build/peers/bin.   tools/peers.sh [SDIST]
# The source is the one inside the PyPI sdist llama-cpp-python 0.3.36, whose change log names the commit; SDIST is
# that file where it lies here already. The flags are those that favour llama.cpp: Release, native instructions, its
# own matrix kernels and repacking.
# Invariant: what stands in build/peers/bin was built whole from the sdist with this SHA-256, and VERSION beside it
# says so; an interrupted run goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

package=llama-cpp-python==0.3.36
sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
commit=0c1e57098
programs=(llama-bench llama-perplexity llama-batched-bench)
late_programs=(llama-server)  # half the compile time, and nothing of the three above waits for it

peers=$ROOT/build/peers
source=$peers/llama.cpp
out=$peers/out
mkdir -p "$peers/bin"
exec 9>"$peers/.lock"
if ! flock -n 9; then
  say "another run builds the peers; waiting for it"
  flock 9
fi
trap 'say "interrupted; the next run goes on from here"; exit 130' INT TERM HUP

intact() { [[ -f $1 ]] && sha256sum --status -c - <<<"$sha256  $1"; }

fetch_sdist() {
  "$ROOT/tools/setup.sh" fetch 9>&-
  say "fetching $package (77 MB, once)"
  local work=$peers/fetch
  rm -rf "$work"
  python3 -m pip download --no-deps --no-binary llama-cpp-python --no-cache-dir --retries 2 --quiet \
    --disable-pip-version-check --dest "$work" "$package" >&2 9>&- ||
    die "pip could not download $package (its message is above); with a copy of your own: tools/peers.sh SDIST"
  sdist=$(echo "$work"/*.tar.gz)
}

if [[ ! -f $source/.complete || $(<"$source/.complete") != "$sha256" ]]; then
  sdist=${1:-}
  [[ -n $sdist ]] || fetch_sdist
  intact "$sdist" || die "$sdist has the wrong SHA-256
       expected $sha256
       got      $(sha256sum <"$sdist" | cut -d' ' -f1)"
  say "unpacking llama.cpp"
  rm -rf "$source" "$peers/unpack"
  mkdir "$peers/unpack"
  tar -xzf "$sdist" -C "$peers/unpack" --strip-components=1 --wildcards '*/vendor/llama.cpp' '*/CHANGELOG.md'
  grep -qF "ggml-org/llama.cpp@$commit" <(grep -m1 -F 'llama.cpp@' "$peers/unpack/CHANGELOG.md") ||
    die "the sdist's change log does not name llama.cpp $commit first"
  rm -f "$peers/unpack/vendor/llama.cpp/.git"  # names a repository that is not here
  mv "$peers/unpack/vendor/llama.cpp" "$source"
  printf '%s' "$sha256" >"$source/.complete"
  rm -rf "$peers/unpack" "$peers/fetch"
fi

"$ROOT/tools/setup.sh" build 9>&-
if [[ ! -f $out/build.ninja ]]; then
  say "configuring llama.cpp $commit"
  cmake --fresh -G Ninja -S "$source" -B "$out" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=ON \
    -DLLAMA_BUILD_COMMIT=$commit -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF \
    -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DLLAMA_OPENSSL=OFF -DLLAMA_ALL_WARNINGS=OFF >"$peers/configure.log" 2>&1 9>&- || {
    cat "$peers/configure.log" >&2
    rm -f "$out/build.ninja"
    die "llama.cpp's configuration failed (its output is above)"
  }
fi

# Into bin/ by a rename, so that a bench started meanwhile never runs half a file.
build() {
  say "building $*"
  NINJA_STATUS='[%f/%t %es] ' ninja -C "$out" -j "$(build_jobs)" "$@" 9>&- >&2
  local program
  for program in "$@"; do
    cp "$out/bin/$program" "$peers/bin/.$program" && mv -f "$peers/bin/.$program" "$peers/bin/$program"
  done
}
printf 'llama.cpp %s (from %s, sha256 %s)\n' "$commit" "$package" "$sha256" >"$peers/bin/VERSION"
build "${programs[@]}"
build "${late_programs[@]}"
say "built in ${peers#"$ROOT"/}/bin: ${programs[*]} ${late_programs[*]}"
