// What is open to question in how kernels are launched and chosen, as settings: for measuring alone. `cachalot bench
// --gpu-tune` compares them within one run; the defaults are what the engine runs with.
//
// Invariant: no setting changes what is computed, only the order in which sums are rounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cachalot {

struct CudaTune {
  // Kernels that start only when those in front of them have ended, by bits; all others start early.
  static constexpr std::string_view kKinds[] = {"matmul", "attention", "norm", "swiglu", "rope", "rest"};
  uint32_t late = 0;
  // Which blocks of the matmuls' decode kernel have an SM to themselves. Two of one launch fit beside each other, and when
  // they start early, as SMs become free one by one, some SMs get two and others none.
  enum class Alone { kNone, kLong, kAll };
  Alone gemv_alone = Alone::kAll;  // kLong: long rows
  // What is no launch of its own but done by another, by bits: norms and SwiGLU by the decode matmuls (SwiGLU of
  // more rows by wgmma ones), a router by one kernel, the norms and the copy around RoPE by RopeAppend, the shared expert beside the others.
  static constexpr std::string_view kFusions[] = {"norm", "glu", "gate", "rope", "glu-many", "shared"};
  enum Fusion : uint32_t { kFuseNorm = 1, kFuseGlu = 2, kFuseGate = 4, kFuseRope = 8, kFuseGluMany = 16, kFuseShared = 32 };
  uint32_t fuse = ~0u;
  // Where the decode kernel is taken instead of the stream kernel; 0: as gemv_shape.h says.
  int gemv_rows = 0;
  int gemv_pairs = 0;
  int gemv_dense_k = 0;
  int gemv_expert_k = 0;
  int gemv_code_k = 0;
  int gemv_code_warps = 16;  // of a block, or 32: GGUF's types of 2 to 6 bits, but for Q4_0, Q4_1 and IQ4
  // Of each matrix that the next ops read, what attention of up to four tokens brings to L2; 0: nothing.
  int prefetch_kib = 0;
  // Prefill attention of 16-bit caches with heads of 64, 128 and 192: by the kernels on wgmma and bulk copies (attention_prefill_sm90.cu), or those
  // on mma (attention_prefill_sm80.cu).
  enum class Prefill { kWgmma, kMma };
  Prefill prefill = Prefill::kWgmma;
  // Decode attention with heads of 64 and 128: by the kernel that streams equal shares to all SMs (attention_stream_sm90.cu), or
  // the one that takes items in rounds (attention_decode_sm80.cu); usual: as StreamCovers says.
  enum class Attention { kUsual, kStream, kRounds };
  Attention attention = Attention::kUsual;
  // MLA decode with up to 16 heads and one token a sequence: by the kernel that streams (attention_mla_stream_sm90.cu), or the one that takes
  // items in rounds (attention_mla_sm90.cu); usual: as MlaStreamCovers says.
  enum class Mla { kUsual, kStream, kRounds };
  Mla mla = Mla::kUsual;
  // The experts of up to four tokens, weights of F16 and FP8: gate/up, SwiGLU, down and sum in one launch whose blocks meet once
  // (moe_few.cuh), in two such, or by matmuls of their own; usual: one, or two where one would have a short ring (kFewRoomyStages).
  enum class Experts { kUsual, kOne, kTwo, kApart };
  Experts experts = Experts::kUsual;
  // Matmuls of one row of x that follow each other, Q4_K, in one launch (chain.cuh); or by launches of their own.
  enum class Chain { kUsual, kNone };
  Chain chain = Chain::kUsual;
  // Rows of x above which cuBLASLt multiplies, rows of W that tiles on wgmma have at least; 0: as matmul_sm80.cu says.
  int blas_rows = 0;
  int wgmma_rows = 0;
};

constexpr int Tuned(int setting, int usual) { return setting > 0 ? setting : usual; }

inline constexpr std::string_view kCudaTuneKeys =
    "late=none|all|matmul+attention+norm+swiglu+rope+rest, gemv_alone=none|long|all, fuse=all|none|norm+glu+gate+rope+glu-many+shared, gemv_rows, gemv_pairs, gemv_dense_k, gemv_expert_k, gemv_code_k, gemv_code_warps, blas_rows, wgmma_rows, prefetch_kib, prefill=wgmma|mma, attention=stream|rounds, mla=stream|rounds, experts=one|two|apart, chain=none";

// "none", "all" or some of the names joined by '+', as bits in their order.
inline bool ParseNames(std::string_view text, std::span<const std::string_view> names, uint32_t* bits) {
  *bits = text == "all" ? ~0u : 0;
  if (text == "all" || text == "none") return true;
  while (true) {
    const size_t plus = text.find('+');
    uint32_t bit = 1, found = 0;
    for (const std::string_view name : names) {
      if (text.substr(0, plus) == name) found = bit;
      bit *= 2;
    }
    if (found == 0) return false;
    *bits |= found;
    if (plus == std::string_view::npos) return true;
    text = text.substr(plus + 1);
  }
}

// "key=value,key=value" over the defaults; "" or "-": the defaults. False: not understood, and *out is as it was.
inline bool ParseCudaTune(std::string_view text, CudaTune* out) {
  CudaTune tune;
  if (text == "-") text = "";
  while (!text.empty()) {
    const size_t comma = text.find(',');
    const std::string_view item = text.substr(0, comma);
    text = comma == std::string_view::npos ? std::string_view() : text.substr(comma + 1);
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    if (key == "late") {
      if (!ParseNames(value, CudaTune::kKinds, &tune.late)) return false;
      continue;
    }
    if (key == "fuse") {
      if (!ParseNames(value, CudaTune::kFusions, &tune.fuse)) return false;
      continue;
    }
    if (key == "gemv_alone") {
      if (value != "none" && value != "long" && value != "all") return false;
      tune.gemv_alone = value == "none" ? CudaTune::Alone::kNone : value == "long" ? CudaTune::Alone::kLong : CudaTune::Alone::kAll;
      continue;
    }
    if (key == "prefill") {
      if (value != "wgmma" && value != "mma") return false;
      tune.prefill = value == "wgmma" ? CudaTune::Prefill::kWgmma : CudaTune::Prefill::kMma;
      continue;
    }
    if (key == "attention") {
      if (value != "stream" && value != "rounds") return false;
      tune.attention = value == "stream" ? CudaTune::Attention::kStream : CudaTune::Attention::kRounds;
      continue;
    }
    if (key == "mla") {
      if (value != "stream" && value != "rounds") return false;
      tune.mla = value == "stream" ? CudaTune::Mla::kStream : CudaTune::Mla::kRounds;
      continue;
    }
    if (key == "chain") {
      if (value != "none") return false;
      tune.chain = CudaTune::Chain::kNone;
      continue;
    }
    if (key == "experts") {
      if (value != "one" && value != "two" && value != "apart") return false;
      tune.experts = value == "one" ? CudaTune::Experts::kOne : value == "two" ? CudaTune::Experts::kTwo : CudaTune::Experts::kApart;
      continue;
    }
    int* number = key == "gemv_rows"       ? &tune.gemv_rows
                  : key == "gemv_pairs"    ? &tune.gemv_pairs
                  : key == "gemv_dense_k"  ? &tune.gemv_dense_k
                  : key == "gemv_expert_k" ? &tune.gemv_expert_k
                  : key == "gemv_code_k"   ? &tune.gemv_code_k
                  : key == "gemv_code_warps" ? &tune.gemv_code_warps
                  : key == "blas_rows"     ? &tune.blas_rows
                  : key == "wgmma_rows"    ? &tune.wgmma_rows
                  : key == "prefetch_kib"  ? &tune.prefetch_kib
                                           : nullptr;
    if (number == nullptr || value.empty() || value.size() > 6) return false;
    *number = 0;
    for (const char digit : value) {
      if (digit < '0' || digit > '9') return false;
      *number = *number * 10 + (digit - '0');
    }
    if (*number == 0 || (key == "gemv_rows" && *number > 8)) return false;
    if (key == "gemv_code_warps" && *number != 16 && *number != 32) return false;
  }
  *out = tune;
  return true;
}

}  // namespace cachalot
