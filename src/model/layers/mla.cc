#include "model/layers/mla.h"

#include <algorithm>
#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/common/cuda_step.h"
#include "kernels/head_matmul/head_matmul.h"
#include "kernels/mla_expand/mla_expand.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"
#include "model/kv_layout.h"

namespace cachalot {
namespace {

// The expanded form's scratch grows with the context: beyond this many tokens the absorbed form is used.
constexpr int32_t kMaxExpandedTokens = 4096;

// On the GPU the cached tokens are expanded in pieces of this many bytes of F32 products: large enough for a matmul at its best.
constexpr int64_t kPieceBytes = int64_t{256} << 20;

// Derived matrices keep 16-bit sources exactly; block-scaled and quantised ones go to F16 (F32 on the reference path).
DType DerivedType(DType source, bool exact) {
  if (source == DType::kF32 || source == DType::kF16 || source == DType::kBF16) return source;
  return exact ? DType::kF32 : DType::kF16;
}

// Per head the key's rows, then the value's: [heads, nope + v, lora].
std::vector<float> JoinKvB(const std::vector<float>& k_b, const std::vector<float>& v_b, int64_t heads, int64_t nope,
                           int64_t v, int64_t lora) {
  std::vector<float> kv_b(static_cast<size_t>(heads * (nope + v) * lora));
  for (int64_t h = 0; h < heads; ++h) {
    float* head = kv_b.data() + h * (nope + v) * lora;
    for (int64_t l = 0; l < lora; ++l) {
      for (int64_t d = 0; d < nope; ++d) head[d * lora + l] = k_b[(h * lora + l) * nope + d];
    }
    std::memcpy(head + nope * lora, v_b.data() + h * v * lora, sizeof(float) * v * lora);
  }
  return kv_b;
}

}  // namespace

// Flops per (query, cached token) and head: absorbed 2·(lora + rope + lora), expanded 2·(nope + rope + v); expansion
// costs 2·lora·(nope + v) per cached token and head, once.
int32_t MlaExpandMinTokens(const AttentionSpec& a, MlaForm form) {
  if (form != MlaForm::kByCost || a.kind != AttentionKind::kMla) return form == MlaForm::kExpanded ? 1 : INT32_MAX;
  const int64_t saved = (2 * int64_t{a.kv_lora_rank} + a.rope_dim) - (int64_t{a.nope_dim} + a.rope_dim + a.v_dim);
  if (saved <= 0) return INT32_MAX;
  return static_cast<int32_t>(int64_t{a.kv_lora_rank} * (a.nope_dim + a.v_dim) / saved + 1);
}

bool MlaExpands(const AttentionSpec& a, MlaForm form, int32_t q_len, int32_t kv_len) {
  return a.kind == AttentionKind::kMla && kv_len <= kMaxExpandedTokens && q_len >= MlaExpandMinTokens(a, form);
}

Result<MlaLayer> MlaLayer::Build(WeightReader* reader, const ModelSpec& spec, int32_t layer) {
  const AttentionSpec& a = spec.attention;
  const int64_t heads = a.num_q_heads;
  const int64_t q_width = heads * a.q_head_dim();
  const int64_t kv_width = a.kv_lora_rank + a.rope_dim;
  MlaLayer out;
  const bool latent_q = a.q_lora_rank > 0;
  const RowsOf in[] = {latent_q ? RowsOf{{TensorRole::kQA, layer}, a.q_lora_rank} : RowsOf{{TensorRole::kQ, layer}, q_width},
                       {{TensorRole::kKvA, layer}, kv_width}};
  ASSIGN_OR_RETURN(out.in_, Linear::Build(reader, in, {}, spec.hidden_size));
  if (latent_q) {
    ASSIGN_OR_RETURN(out.q_a_norm_, reader->Vector({TensorRole::kQANorm, layer}, a.q_lora_rank));
    const RowsOf q_b[] = {{{TensorRole::kQB, layer}, q_width}};
    ASSIGN_OR_RETURN(out.q_b_, Linear::Build(reader, q_b, {}, a.q_lora_rank));
  }
  ASSIGN_OR_RETURN(out.kv_a_norm_, reader->Vector({TensorRole::kKvANorm, layer}, a.kv_lora_rank));
  RETURN_IF_ERROR(out.BuildKvB(reader, spec, layer));
  const RowsOf o[] = {{{TensorRole::kO, layer}, spec.hidden_size}};
  ASSIGN_OR_RETURN(out.o_, Linear::Build(reader, o, {}, heads * a.v_dim));
  return out;
}

Status MlaLayer::BuildKvB(WeightReader* reader, const ModelSpec& spec, int32_t layer) {
  const AttentionSpec& a = spec.attention;
  const int64_t heads = a.num_q_heads;
  const int64_t lora = a.kv_lora_rank;
  const int64_t nope = a.nope_dim;
  const int64_t v = a.v_dim;
  // Mainline GGUF has the parts only: keys transposed [heads, lora, nope], values [heads, v, lora]. Where there is
  // neither, kv_b is what the error names.
  const WeightRef k_ref = {TensorRole::kKB, layer};
  const bool parts = !reader->Has({TensorRole::kKvB, layer}) && reader->Has(k_ref);
  const WeightRef source = parts ? k_ref : WeightRef{TensorRole::kKvB, layer};
  // Everything is derived from F32 values of kv_b: [heads, nope + v, lora].
  std::vector<float> kv_b;
  if (parts) {
    ASSIGN_OR_RETURN(const std::vector<float> keys, reader->Values(k_ref, heads * lora, nope));
    ASSIGN_OR_RETURN(const std::vector<float> values, reader->Values({TensorRole::kVB, layer}, heads * v, lora));
    if (!reader->planning()) kv_b = JoinKvB(keys, values, heads, nope, v, lora);
  } else {
    ASSIGN_OR_RETURN(kv_b, reader->Values(source, heads * (nope + v), lora));
  }
  const DType type = DerivedType(reader->TypeOf(source), reader->exact());
  std::vector<float> k_b;  // [heads, lora, nope]
  std::vector<float> v_b;  // [heads, v, lora]
  if (!reader->planning()) {
    k_b.resize(static_cast<size_t>(heads * lora * nope));
    v_b.resize(static_cast<size_t>(heads * v * lora));
    for (int64_t h = 0; h < heads; ++h) {
      const float* head = kv_b.data() + h * (nope + v) * lora;
      float* transposed = k_b.data() + h * lora * nope;
      for (int64_t l = 0; l < lora; ++l) {
        for (int64_t d = 0; d < nope; ++d) transposed[l * nope + d] = head[d * lora + l];
      }
      std::memcpy(v_b.data() + h * v * lora, head + nope * lora, sizeof(float) * v * lora);
    }
  }
  ASSIGN_OR_RETURN(k_b_, reader->DerivedHeads(k_b, a.num_q_heads, lora, nope, type));
  ASSIGN_OR_RETURN(v_b_, reader->DerivedHeads(v_b, a.num_q_heads, v, lora, type));
  for (int32_t h = 0; h < static_cast<int32_t>(k_b_.matrices.size()); ++h) {
    reader->Tell(k_b_.matrices[static_cast<size_t>(h)], {TensorRole::kKB, layer, h, a.num_q_heads});
    reader->Tell(v_b_.matrices[static_cast<size_t>(h)], {TensorRole::kVB, layer, h, a.num_q_heads});
  }
  ASSIGN_OR_RETURN(kv_b_, reader->Derived(kv_b, heads * (nope + v), lora, type));
  return Status::Ok();
}

void MlaLayer::Run(const ForwardContext& fwd, const ModelSpec& spec, int32_t window, const PagedKv& kv, NormedInput* input,
                   float* residual) const {
  const AttentionSpec& a = spec.attention;
  const ExecContext& exec = fwd.exec;
  const int64_t tokens = fwd.num_tokens;
  const int64_t q_width = int64_t{a.num_q_heads} * a.q_head_dim();
  const int64_t q_in = a.q_lora_rank > 0 ? a.q_lora_rank : q_width;
  const int64_t in_width = in_.n();
  const int64_t out_width = int64_t{a.num_q_heads} * a.v_dim;
  WorkspaceScope scope(exec.workspace);
  float* in = exec.workspace->Take<float>(tokens * in_width);
  float* out = exec.workspace->Take<float>(tokens * out_width);
  in_.Run(exec, input, in, in_width);

  const auto norm = [&](float* rows, int64_t dim, const FloatArray& weight) {
    RmsNorm(exec, {.x = rows, .token_stride_x = in_width, .num_tokens = tokens, .dim = dim, .weight = weight.data(),
                   .eps = a.latent_norm_eps, .y = rows, .token_stride_y = in_width});
  };
  float* q = in;
  int64_t q_stride = in_width;
  if (a.q_lora_rank > 0) {
    q = exec.workspace->Take<float>(tokens * q_width);
    q_stride = q_width;
    const MatmulParams normed = {.x = in, .x_stride = in_width, .m = tokens, .weight = q_b_.Only(), .y = q, .y_stride = q_stride,
                                 .fusion = {.norm_weight = q_a_norm_.data(), .norm_eps = a.latent_norm_eps}};
    if (input->IsFew(exec) && normed.weight != nullptr && MatmulFuses(exec, normed)) {
      Matmul(exec, normed);
    } else {
      norm(in, a.q_lora_rank, q_a_norm_);
      q_b_.Run(exec, in, in_width, tokens, q, q_stride);
    }
  }
  float* latent = in + q_in;  // [tokens, kv_lora_rank + rope_dim], stride in_width
  const bool fuses = RopeAppendFuses(exec);
  if (!fuses) norm(latent, a.kv_lora_rank, kv_a_norm_);

  RopeAppendParams rope;
  rope.spans = fwd.spans;
  rope.cos = fwd.cos;
  rope.sin = fwd.sin;
  rope.style = a.rope.style;
  rope.rope_dim = a.rope_dim;
  rope.q = q;
  rope.q_token_stride = q_stride;
  rope.q_head_stride = a.q_head_dim();
  rope.num_q_heads = a.num_q_heads;
  rope.q_rope_offset = a.nope_dim;
  rope.k = latent;
  rope.k_token_stride = in_width;
  rope.k_head_stride = 0;
  rope.k_rope_offset = a.kv_lora_rank;
  rope.kv = kv;
  float* q_latent = nullptr;
  if (fuses) {
    rope.k_norm_weight = kv_a_norm_.data();
    rope.k_norm_eps = a.latent_norm_eps;
    if (exec.cuda->num_expanded_tokens == 0) {  // else what the expanded form takes would lie beside it
      const int64_t width = kv.k_dim;
      q_latent = exec.workspace->Take<float>(tokens * a.num_q_heads * width);
      rope.q_copy = q_latent + a.kv_lora_rank;
      rope.q_copy_token_stride = a.num_q_heads * width;
      rope.q_copy_head_stride = width;
      rope.q_copy_rows = tokens;
    }
  }
  RopeAppend(exec, rope);

  const std::span<const SeqSpan> absorbed = fwd.spans.first(fwd.spans.size() - fwd.num_expanded);
  const int64_t absorbed_rows = fwd.num_expanded > 0 ? fwd.spans[absorbed.size()].q_begin : tokens;
  if (absorbed_rows > 0) RunAbsorbed(fwd, a, window, kv, absorbed, absorbed_rows, q, q_stride, q_latent, out);
  if (OnCuda(exec)) {
    if (exec.cuda->num_expanded_tokens > 0) RunExpandedOnCuda(fwd, a, window, kv, q, q_stride, out);
  } else {
    for (const SeqSpan& span : fwd.spans.last(fwd.num_expanded)) RunExpanded(fwd, a, window, kv, span, q, q_stride, out);
  }
  o_.Run(exec, out, out_width, tokens, residual, spec.hidden_size, /*accumulate=*/true);
}

void MlaLayer::RunAbsorbed(const ForwardContext& fwd, const AttentionSpec& a, int32_t window, const PagedKv& kv,
                           std::span<const SeqSpan> spans, int64_t num_rows, const float* q, int64_t q_stride,
                           float* q_latent, float* out) const {
  const ExecContext& exec = fwd.exec;
  WorkspaceScope scope(exec.workspace);
  const int64_t heads = a.num_q_heads;
  const int64_t width = kv.k_dim;  // kv_lora_rank + rope_dim
  const bool rotated = q_latent != nullptr;
  if (!rotated) q_latent = exec.workspace->Take<float>(num_rows * heads * width);
  float* o_latent = exec.workspace->Take<float>(num_rows * heads * a.kv_lora_rank);
  HeadMatmul(exec, {.x = q, .x_stride = q_stride, .x_head_stride = a.q_head_dim(), .m = num_rows, .weights = &k_b_,
                    .y = q_latent, .y_stride = heads * width, .y_head_stride = width});
  if (!rotated) {
    CopyHeads(exec, {.x = q + a.nope_dim, .x_stride = q_stride, .x_head_stride = a.q_head_dim(), .m = num_rows,
                     .num_heads = a.num_q_heads, .dim = a.rope_dim, .y = q_latent + a.kv_lora_rank,
                     .y_stride = heads * width, .y_head_stride = width});
  }
  Attention(exec, {.spans = spans,
                   .q = q_latent,
                   .q_token_stride = heads * width,
                   .q_head_stride = width,
                   .num_q_heads = a.num_q_heads,
                   .scale = a.scale,
                   .window = window,
                   .kv = kv,
                   .out = o_latent,
                   .out_token_stride = heads * a.kv_lora_rank,
                   .out_head_stride = a.kv_lora_rank,
                   .upcoming = {UpcomingRows(v_b_.matrices.front()), o_.Upcoming()}});
  HeadMatmul(exec, {.x = o_latent, .x_stride = heads * a.kv_lora_rank, .x_head_stride = a.kv_lora_rank, .m = num_rows,
                    .weights = &v_b_, .y = out, .y_stride = heads * a.v_dim, .y_head_stride = a.v_dim});
}

void MlaLayer::RunExpanded(const ForwardContext& fwd, const AttentionSpec& a, int32_t window, const PagedKv& kv,
                           const SeqSpan& span, const float* q, int64_t q_stride, float* out) const {
  const ExecContext& exec = fwd.exec;
  WorkspaceScope scope(exec.workspace);
  const int64_t out_width = int64_t{a.num_q_heads} * a.v_dim;
  std::byte* scratch = exec.workspace->TakeBytes(
      MlaExpandBytes(span.kv_len, a.kv_lora_rank, a.num_q_heads, a.nope_dim, a.rope_dim, a.v_dim));
  const PagedKv expanded = MlaExpand(exec, {.latent = kv,
                                            .slot = span.slot,
                                            .kv_len = span.kv_len,
                                            .kv_b = &kv_b_,
                                            .num_heads = a.num_q_heads,
                                            .nope_dim = a.nope_dim,
                                            .rope_dim = a.rope_dim,
                                            .v_dim = a.v_dim,
                                            .scratch = scratch});
  const SeqSpan in_scratch = {.slot = 0, .q_begin = span.q_begin, .q_len = span.q_len, .kv_len = span.kv_len};
  Attention(exec, {.spans = {&in_scratch, 1},
                   .q = q,
                   .q_token_stride = q_stride,
                   .q_head_stride = a.q_head_dim(),
                   .num_q_heads = a.num_q_heads,
                   .scale = a.scale,
                   .window = window,
                   .kv = expanded,
                   .out = out,
                   .out_token_stride = out_width,
                   .out_head_stride = a.v_dim});
}

void MlaLayer::RunExpandedOnCuda(const ForwardContext& fwd, const AttentionSpec& a, int32_t window, const PagedKv& kv,
                                 const float* q, int64_t q_stride, float* out) const {
  const ExecContext& exec = fwd.exec;
  const CudaStep& step = *exec.cuda;
  WorkspaceScope scope(exec.workspace);
  const int64_t rows = step.num_expanded_tokens;
  const int64_t heads = a.num_q_heads;
  const int64_t width = heads * (a.nope_dim + a.v_dim);
  KvGroupSpec scratch;
  scratch.num_kv_heads = a.num_q_heads;
  scratch.k_dim = a.q_head_dim();
  scratch.v_dim = a.v_dim;
  const int32_t block_tokens = step.mla_split.block_tokens;
  const int64_t num_blocks = CudaMlaScratchBlocks(rows, step.batch.num_spans, block_tokens);
  std::byte* pool = exec.workspace->TakeBytes(num_blocks * scratch.LayerBlockBytes(kv.dtype, block_tokens));
  PagedKv expanded = LayerView(scratch, pool, kv.dtype, block_tokens, 0);
  expanded.block_bytes = scratch.LayerBlockBytes(kv.dtype, block_tokens);
  expanded.block_tables = step.mla_split.block_tables;
  expanded.table_stride = step.mla_split.table_stride;
  {
    // What is F32 is of one piece: three times the bytes of the scratch cache, a token.
    WorkspaceScope piece_scope(exec.workspace);
    const int64_t usual = std::max<int64_t>(1, kPieceBytes / (width * static_cast<int64_t>(sizeof(float))));
    const int64_t piece = std::min(rows, fwd.mla_piece_tokens > 0 ? fwd.mla_piece_tokens : usual);
    float* latents = exec.workspace->Take<float>(piece * kv.k_dim);
    float* products = exec.workspace->Take<float>(piece * width);
    for (int64_t begin = 0; begin < rows; begin += piece) {
      const int64_t count = std::min(piece, rows - begin);
      RunCuda(exec, &CudaBackend::mla_gather,
              CudaMlaGatherParams{.latent = kv, .rows = step.mla_split.rows + begin, .num_rows = count, .dst = latents});
      Matmul(exec, {.x = latents, .x_stride = kv.k_dim, .m = count, .weight = &kv_b_, .y = products, .y_stride = width});
      RunCuda(exec, &CudaBackend::mla_assemble,
              CudaMlaAssembleParams{.latents = latents,
                                    .products = products,
                                    .rows = step.mla_split.rows + begin,
                                    .num_rows = count,
                                    .lora = a.kv_lora_rank,
                                    .num_heads = a.num_q_heads,
                                    .nope_dim = a.nope_dim,
                                    .rope_dim = a.rope_dim,
                                    .v_dim = a.v_dim,
                                    .out = expanded});
    }
  }
  const int64_t out_width = heads * a.v_dim;
  Attention(exec, {.q = q,
                   .q_token_stride = q_stride,
                   .q_head_stride = a.q_head_dim(),
                   .num_q_heads = a.num_q_heads,
                   .scale = a.scale,
                   .window = window,
                   .kv = expanded,
                   .out = out,
                   .out_token_stride = out_width,
                   .out_head_stride = a.v_dim});
}

int64_t MlaLayer::WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int num_threads) {
  const AttentionSpec& a = spec.attention;
  const int64_t heads = a.num_q_heads;
  const int64_t width = a.kv_lora_rank + a.rope_dim;
  const int64_t q_width = heads * a.q_head_dim();
  const auto floats = [](int64_t n) { return Workspace::Padded(n * static_cast<int64_t>(sizeof(float))); };
  const int64_t in_width = (a.q_lora_rank > 0 ? a.q_lora_rank : q_width) + width;
  const int64_t base = floats(max_tokens * in_width) + floats(max_tokens * heads * a.v_dim) + floats(max_tokens * q_width);
  const int64_t expand_tokens = std::min(max_context, kMaxExpandedTokens);
  const int64_t absorbed =
      floats(max_tokens * heads * width) + floats(max_tokens * heads * a.kv_lora_rank) +
      std::max({HeadMatmulWorkspaceBytes(max_tokens, a.num_q_heads, std::max(a.nope_dim, a.kv_lora_rank), num_threads),
                AttentionWorkspaceBytes(num_threads, a.num_q_heads, 1, static_cast<int32_t>(width), a.kv_lora_rank)});
  const int64_t expanded =
      MlaExpandBytes(static_cast<int32_t>(expand_tokens), a.kv_lora_rank, a.num_q_heads, a.nope_dim, a.rope_dim, a.v_dim) +
      std::max(MatmulWorkspaceBytes(expand_tokens, a.kv_lora_rank, num_threads),
               AttentionWorkspaceBytes(num_threads, a.num_q_heads, a.num_q_heads, a.q_head_dim(), a.v_dim));
  const int64_t widest = std::max({int64_t{spec.hidden_size}, in_width, heads * a.v_dim});
  return base + std::max({absorbed, expanded, MatmulWorkspaceBytes(max_tokens, widest, num_threads)});
}

}  // namespace cachalot
