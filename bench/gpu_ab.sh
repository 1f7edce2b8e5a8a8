#!/usr/bin/env bash
# The open questions about launches and kernels (docs/gpu-tuning.md), on models of generated weights at 2,048 tokens of cache:
# tables of settings, each measured in turn with the others. Under four minutes on an H200.
#   bench/gpu_ab.sh [BUILD_DIR [8b|q4_k|v2-lite|v3 …]]
set -uo pipefail
build=${1:-build}
[[ $# -gt 0 ]] && shift
models=${*:-8b q4_k v2-lite v3}

compare() {  # NAME SECONDS BATCHES DUMMY-FLAGS -- SETTINGS
  local name=$1 seconds=$2 batches=$3
  shift 3
  local flags=() settings=()
  while [[ $1 != -- ]]; do flags+=("$1"); shift; done
  shift
  for setting in "$@"; do settings+=(--gpu-tune "$setting"); done
  echo "== $name"
  timeout "$seconds" "$build/cachalot" bench "${flags[@]}" --device cuda -b "$batches" -d 2048 -p 0 -n 24 -r 4 "${settings[@]}" ||
    echo "$name: ended with $?"
}

launches=(- late=matmul late=norm+swiglu+rope late=all)
fusions=(prefetch_kib=16384 prefetch_kib=40960 fuse=norm+glu+gate+rope+glu-many fuse=norm+glu+gate+rope fuse=norm+glu+gate fuse=norm+glu fuse=norm fuse=none)
for model in $models; do
  case $model in
    8b)
      compare "Llama-8B BF16" 80 1,16,64 --dummy r1-distill-llama-8b -- "${launches[@]}" gemv_dense_k=2048 gemv_alone=none blas_rows=32 wgmma_rows=160 wgmma_rows=224 "${fusions[@]}" ;;
    q4_k)
      compare "Llama-8B Q4_K" 45 1,4,8 --dummy r1-distill-llama-8b --dummy-type q4_k -- "${launches[@]}" gemv_alone=none gemv_code_k=1 gemv_code_warps=32 gemv_rows=8 fuse=none ;;
    v2-lite)
      compare "V2-Lite BF16" 65 1,16,64 --dummy deepseek-v2-lite -- "${launches[@]}" gemv_alone=long gemv_expert_k=1 gemv_pairs=96 experts=two experts=apart "${fusions[@]}" ;;
    v3)
      compare "V3 FP8, 5 layers" 50 1,16 --dummy deepseek-v3 --dummy-layers 5 -- "${launches[@]}" gemv_dense_k=2048 gemv_expert_k=7168 experts=two experts=apart ;;
    *) echo "unknown: $model (8b q4_k v2-lite v3)" && exit 2 ;;
  esac
done
