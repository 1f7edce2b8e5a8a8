#!/usr/bin/env python3
"""Writes tests/data/kv/flashinfer_recorded.json: where FlashInfer's own headers say that values lie, what CUDA's FP8 header says
that E4M3 codes are, and caches of vLLM's int4_per_token_head, by its rules, with the values that its kernels would read.

Needs nvcc, numpy, and the headers of FlashInfer (flashinfer/data/include of the wheel flashinfer-python 0.6.8):
    tools/make_flashinfer_goldens.py --flashinfer flashinfer/data/include --nvcc nvcc
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

import numpy as np

PROGRAM = r"""
#include <cstdint>
#include <cstdio>
#include <random>
#include <vector>
#include <cuda_fp8.h>
#include <flashinfer/page.cuh>
using flashinfer::QKVLayout;
static std::mt19937 rng(5);
static int below(int n) { return static_cast<int>(rng() % static_cast<unsigned>(n)); }
static bool first = true;
// strides: page, then as the layout has it; null: dense. values_at: where V begins in the same memory.
static void pages(const char* name, QKVLayout layout, int heads, int page_size, int dim, const int64_t* strides, long long values_at) {
  const int batch = 4;
  std::vector<int32_t> lengths = {below(3 * page_size) + 1, 0, page_size, 1}, indptr = {0}, last, indices;
  for (int n : lengths) {
    const int used = (n + page_size - 1) / page_size;
    indptr.push_back(indptr.back() + used);
    last.push_back(used == 0 ? 0 : n - (used - 1) * page_size);
  }
  const int num_pages = indptr.back() + 2;
  std::vector<int32_t> all;
  for (int i = 0; i < num_pages; ++i) all.push_back(i);
  for (int i = num_pages - 1; i > 0; --i) std::swap(all[i], all[below(i + 1)]);
  indices.assign(all.begin(), all.begin() + indptr.back());
  __half* data = nullptr;
  using Paged = flashinfer::paged_kv_t<__half, int32_t>;
  const Paged kv = strides == nullptr
      ? Paged(heads, page_size, dim, batch, layout, data, data, indices.data(), indptr.data(), last.data())
      : Paged(heads, page_size, dim, batch, layout, data, data, strides, indices.data(), indptr.data(), last.data());
  const auto list = [](const char* key, const std::vector<int32_t>& v) {
    std::printf("\"%s\": [", key);
    for (size_t i = 0; i < v.size(); ++i) std::printf("%s%d", i == 0 ? "" : ", ", v[i]);
    std::printf("], ");
  };
  std::printf("%s\n  {\"name\": \"%s\", \"layout\": %d, \"num_pages\": %d, \"page_size\": %d, \"kv_heads\": %d, \"head_dim\": %d, \"values_at\": %lld, ", first ? "" : ",",
              name, static_cast<int>(layout), num_pages, page_size, heads, dim, values_at);
  first = false;
  std::vector<int32_t> seen;
  for (int b = 0; b < batch; ++b) seen.push_back(static_cast<int32_t>(kv.get_length(b)));
  list("lengths", seen), list("indptr", indptr), list("indices", indices), list("last_page_len", last);
  std::printf("\"strides\": [%u, %u, %u], \"samples\": [", kv.stride_page, kv.stride_n, kv.stride_h);
  bool comma = false;
  for (int b = 0; b < batch; ++b) {
    for (int n = 0; n < (seen[b] > 0 ? 12 : 0); ++n) {
      const int t = n == 0 ? seen[b] - 1 : below(seen[b]), h = below(heads), i = n == 1 ? dim - 1 : below(dim);
      std::printf("%s[%d, %d, %d, %d, %zu]", comma ? ", " : "", b, t, h, i,
                  kv.get_elem_offset(indices[indptr[b] + t / page_size], h, t % page_size, i));
      comma = true;
    }
  }
  std::printf("]}");
}
int main() {
  std::printf("{\"pages\": [");
  for (int page_size : {1, 16, 5}) {
    for (int dim : {64, 128, 256}) {
      pages("NHD", QKVLayout::kNHD, 3, page_size, dim, nullptr, 0);
      pages("HND", QKVLayout::kHND, 3, page_size, dim, nullptr, 0);
      const int64_t d = dim, p = page_size, h = 3;
      const int64_t vllm_nhd[] = {p * h * 2 * d, h * 2 * d, 2 * d}, vllm_hnd[] = {h * p * 2 * d, p * 2 * d, 2 * d};
      pages("vLLM NHD", QKVLayout::kNHD, 3, page_size, dim, vllm_nhd, d);
      pages("vLLM HND", QKVLayout::kHND, 3, page_size, dim, vllm_hnd, d);
      const int64_t ours[] = {2 * h * p * d + 24, p * d, d};  // Cachalot's block with a gap: keys of all heads, then values
      pages("block", QKVLayout::kHND, 3, page_size, dim, ours, h * p * d);
    }
  }
  std::printf("],\n\"e4m3\": [");
  for (int i = 0; i < 256; ++i) {
    __nv_fp8_e4m3 code;
    code.__x = static_cast<__nv_fp8_storage_t>(i);
    const float x = static_cast<float>(code);
    if (x == x) std::printf("%s%.9g", i == 0 ? "" : ", ", x); else std::printf("%snull", i == 0 ? "" : ", ");
  }
  std::printf("]}\n");
}
"""


def recorded(include, nvcc):
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "where.cu"
        source.write_text(PROGRAM)
        program = Path(folder) / "where"
        subprocess.run([nvcc, "-std=c++17", "-O1", "-arch=sm_90", "-w", f"-I{include}", source, "-o", program], check=True)
        return json.loads(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def vllm_int4(rows):
    """vLLM's rules for a vector: 16 levels between its least and its largest value; the even value in the low half of a byte;
    the zero point in the four lowest bits of the F32 scale. -> bytes with the scale behind, and what is read back."""
    f32 = np.float32
    least, largest = rows.min(axis=-1, keepdims=True), rows.max(axis=-1, keepdims=True)
    scale = np.maximum((largest - least) / f32(15), f32(1e-6)).astype(f32)
    zero = np.clip(np.trunc(-least / scale + np.where(-least / scale >= 0, f32(0.5), f32(-0.5))), 0, 15).astype(f32)
    shifted = rows * (f32(1) / scale) + zero
    codes = np.clip(np.trunc(shifted + np.where(shifted >= 0, f32(0.5), f32(-0.5))), 0, 15).astype(np.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    word = (scale.view(np.uint32) & np.uint32(0xFFFFFFF0)) | zero.astype(np.uint32)
    read = (codes.astype(f32) - (word & 15).astype(f32)) * (word & np.uint32(0xFFFFFFF0)).view(f32)
    return np.concatenate([packed, word.view(np.uint8)], axis=-1), read


def vllm_caches():
    rng = np.random.default_rng(9)
    for dim, blocks, order in ((64, 2, "HND"), (128, 1, "NHD")):
        heads, tokens = 2, 16
        shape = (blocks, heads, tokens, dim)
        keys = (rng.standard_normal(shape) * 2 + 0.5).astype(np.float32)
        values = rng.standard_normal(shape).astype(np.float32)
        k, k_read = vllm_int4(keys)
        v, v_read = vllm_int4(values)
        content = np.concatenate([k, v], axis=-1)  # of a token and head: K, its scale, V, its scale
        memory = content if order == "HND" else content.transpose(0, 2, 1, 3)
        row = content.shape[3]
        yield {
            "order": order, "blocks": blocks, "kv_heads": heads, "block_size": tokens, "head_dim": dim,
            # block, head, token, in bytes
            "strides": [heads * tokens * row, *((tokens * row, row) if order == "HND" else (row, heads * row))],
            "bytes": np.ascontiguousarray(memory).tobytes().hex(),
            "keys": k_read.astype(np.float16).tobytes().hex(),  # [blocks, heads, tokens, dim], rounded to F16
            "values": v_read.astype(np.float16).tobytes().hex(),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flashinfer", required=True)
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--out", default=Path(__file__).parent.parent / "tests/data/kv/flashinfer_recorded.json")
    args = parser.parse_args()
    data = recorded(args.flashinfer, args.nvcc)
    data["vllm_int4"] = list(vllm_caches())
    text = json.dumps(data, separators=(",", ":"))
    Path(args.out).write_text(text.replace('{"name"', '\n{"name"').replace('{"order"', '\n{"order"') + "\n")


if __name__ == "__main__":
    main()
