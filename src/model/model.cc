#include "model/model.h"

#include <algorithm>
#include <cstring>

#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope_append/rope_append.h"

namespace cachalot {
namespace {

void Norm(const ExecContext& exec, const float* x, int64_t rows, int64_t dim, const FloatArray& weight, float eps,
          float* y, int64_t y_stride) {
  RmsNorm(exec, {.x = x, .token_stride_x = dim, .num_tokens = rows, .dim = dim, .weight = weight.data(), .eps = eps,
                 .y = y, .token_stride_y = y_stride});
}

}  // namespace

Result<std::unique_ptr<Model>> Model::Make(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options,
                                           WeightReader::Mode mode) {
  auto model = std::make_unique<Model>();
  model->spec_ = std::move(spec);
  model->num_cuda_layers_ = options.num_cuda_layers;
  WeightReader reader(source, options.naming, options.pack, mode, options.uploader);
  reader.SetCudaExact(options.cuda_exact);
  RETURN_IF_ERROR(model->Build(&reader, options));
  model->weight_bytes_ = {reader.owned_bytes(), reader.borrowed_bytes(), reader.cuda_bytes()};
  return model;
}

Result<std::unique_ptr<Model>> Model::Plan(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options) {
  return Make(std::move(spec), source, options, WeightReader::Mode::kPlan);
}

Result<std::unique_ptr<Model>> Model::Load(ModelSpec spec, const TensorSource& source, const ModelBuildOptions& options) {
  return Make(std::move(spec), source, options, WeightReader::Mode::kLoad);
}

Result<Model::Layer> Model::BuildLayer(WeightReader* reader, int32_t idx) const {
  Layer layer;
  ASSIGN_OR_RETURN(layer.attention_norm, reader->Vector({TensorRole::kAttentionNorm, idx}, spec_.hidden_size));
  ASSIGN_OR_RETURN(layer.ffn_norm, reader->Vector({TensorRole::kFfnNorm, idx}, spec_.hidden_size));
  if (spec_.attention.kind == AttentionKind::kMla) {
    ASSIGN_OR_RETURN(layer.attention, MlaLayer::Build(reader, spec_, idx));
  } else {
    ASSIGN_OR_RETURN(layer.attention, GqaLayer::Build(reader, spec_, idx));
  }
  if (spec_.layers[static_cast<size_t>(idx)].moe) {
    ASSIGN_OR_RETURN(layer.ffn, MoeLayer::Build(reader, spec_, idx));
  } else {
    ASSIGN_OR_RETURN(layer.ffn, FfnLayer::Build(reader, {}, idx, spec_.hidden_size, spec_.intermediate));
  }
  reader->ReleaseFetched();
  return layer;
}

void Model::FindKv(int32_t idx, const std::vector<std::vector<float>>& key_means, Layer* layer) const {
  for (size_t g = 0; g < kv_groups_.size(); ++g) {
    const auto& members = kv_groups_[g].layers;
    const bool whole = kv_groups_[g].end_token == std::numeric_limits<int32_t>::max();
    if (auto it = std::find(members.begin(), members.end(), idx); it != members.end() && whole) {
      layer->kv_group = g;
      layer->kv_idx = static_cast<size_t>(it - members.begin());
    }
  }
  const bool has_mean = kv_groups_[layer->kv_group].scheme.quantised() && !key_means.empty();
  layer->key_mean = has_mean ? FloatArray(key_means[static_cast<size_t>(idx)]) : FloatArray();
}

void Model::SetKvTypes(const KvTypes& types, const std::vector<std::vector<float>>& key_means) {
  CHECK(num_cuda_layers_ == 0);
  kv_groups_ = KvGroups(spec_, kv_groups_.back().name == "mtp", 0, types);
  for (int32_t i = 0; i < spec_.num_layers; ++i) FindKv(i, key_means, &layers_[static_cast<size_t>(i)]);
  if (mtp_) FindKv(spec_.num_layers, {}, &mtp_->layer);
}

Status Model::Build(WeightReader* reader, const ModelBuildOptions& options) {
  const int64_t hidden = spec_.hidden_size;
  kv_groups_ = KvGroups(spec_, options.load_mtp, num_cuda_layers_, options.kv_types);
  const DeviceType first = Home(0);
  const DeviceType last = Home(spec_.num_layers - 1);
  const auto half_dim = static_cast<int64_t>(spec_.attention.rope.inv_freq.size());
  cpu_inv_freq_ = FloatArray(spec_.attention.rope.inv_freq);
  if (last == DeviceType::kCuda) {
    reader->SetHome(last);
    ASSIGN_OR_RETURN(cuda_inv_freq_, reader->Floats(spec_.attention.rope.inv_freq, half_dim));
  }
  // Tied and of one home: one matrix is both.
  const WeightRef head = {spec_.tied_embeddings ? TensorRole::kEmbedding : TensorRole::kHead};
  const RowsOf head_rows[] = {{head, spec_.vocab_size}};
  reader->SetHome(first);
  if (spec_.tied_embeddings && first == last) {
    ASSIGN_OR_RETURN(embedding_, reader->Matrix(head_rows, hidden));
  } else {
    ASSIGN_OR_RETURN(embedding_, reader->Table({TensorRole::kEmbedding}, spec_.vocab_size, hidden));
    reader->SetHome(last);
    ASSIGN_OR_RETURN(head_, reader->Matrix(head_rows, hidden));
  }
  reader->SetHome(last);
  ASSIGN_OR_RETURN(final_norm_, reader->Vector({TensorRole::kFinalNorm}, hidden));
  reader->ReleaseFetched();
  int32_t num_moe = 0;
  for (int32_t i = 0; i < spec_.num_layers; ++i) {
    reader->SetHome(Home(i));
    ASSIGN_OR_RETURN(Layer layer, BuildLayer(reader, i));
    if (spec_.layers[static_cast<size_t>(i)].moe) layer.moe_idx = num_moe++;
    FindKv(i, options.key_means, &layer);
    if (Home(i) == DeviceType::kCuda && !layer.key_mean.empty()) {
      const std::vector<float>& mean = options.key_means[static_cast<size_t>(i)];
      ASSIGN_OR_RETURN(layer.key_mean, reader->Floats(mean, static_cast<int64_t>(mean.size())));
    }
    layers_.push_back(std::move(layer));
  }
  if (!options.load_mtp || spec_.num_mtp_layers == 0) return Status::Ok();
  reader->SetHome(last);
  return BuildMtp(reader, options);
}

Status Model::BuildMtp(WeightReader* reader, const ModelBuildOptions& options) {
  const int64_t hidden = spec_.hidden_size;
  const int32_t idx = spec_.num_layers;  // the first MTP layer; DeepSeek has one
  Mtp mtp;
  ASSIGN_OR_RETURN(mtp.embedding_norm, reader->Vector({TensorRole::kMtpEmbeddingNorm, idx}, hidden));
  ASSIGN_OR_RETURN(mtp.hidden_norm, reader->Vector({TensorRole::kMtpHiddenNorm, idx}, hidden));
  const auto is_rough = [&](const WeightRef& ref, int64_t k) {
    const DType type = reader->TypeOf(ref);
    const bool wide = type == DType::kF32 || type == DType::kF16 || type == DType::kBF16;
    return options.rough_drafts && wide && k % GetDTypeInfo(DType::kQ4_0).block_size == 0;
  };
  const WeightRef projection = {TensorRole::kMtpProjection, idx};
  if (is_rough(projection, 2 * hidden)) {
    ASSIGN_OR_RETURN(mtp.projection, reader->Recoded({projection, hidden}, hidden, 2 * hidden, DType::kQ4_0));
  } else {
    const RowsOf rows[] = {{projection, hidden}};
    ASSIGN_OR_RETURN(mtp.projection, reader->Matrix(rows, 2 * hidden));
  }
  ASSIGN_OR_RETURN(mtp.layer, BuildLayer(reader, idx));
  FindKv(idx, {}, &mtp.layer);
  ASSIGN_OR_RETURN(mtp.norm, reader->Vector({TensorRole::kMtpNorm, idx}, hidden));
  // Its own embedding, or the main one's copy where that lives elsewhere.
  WeightRef embedding = {TensorRole::kMtpEmbedding, idx};
  const bool own = reader->Has(embedding);
  if (!own) embedding = {TensorRole::kEmbedding};
  if (own || Home(0) != reader->home()) {
    ASSIGN_OR_RETURN(mtp.embedding, reader->Table(embedding, spec_.vocab_size, hidden));
  }
  WeightRef head = {TensorRole::kMtpHead, idx};
  const bool own_head = reader->Has(head);
  if (!own_head) head = {spec_.tied_embeddings ? TensorRole::kEmbedding : TensorRole::kHead};
  mtp.head_tokens = options.draft_head_tokens > 0 ? std::min(options.draft_head_tokens, spec_.vocab_size) : spec_.vocab_size;
  if (is_rough(head, hidden)) {
    ASSIGN_OR_RETURN(mtp.head, reader->Recoded({head, spec_.vocab_size}, mtp.head_tokens, hidden, DType::kQ4_0));
  } else if (own_head) {
    const RowsOf rows[] = {{head, spec_.vocab_size}};
    ASSIGN_OR_RETURN(mtp.head, reader->Matrix(rows, hidden));
  }
  reader->ReleaseFetched();
  mtp_ = std::move(mtp);
  return Status::Ok();
}

int64_t Model::dense_bytes() const {
  int64_t bytes = HeadMatrix().data_bytes;
  for (const Layer& layer : layers_) {
    bytes += std::visit([](const auto& attention) { return attention.weight_bytes(); }, layer.attention);
    bytes += std::visit([](const auto& ffn) { return ffn.weight_bytes(); }, layer.ffn);
  }
  return bytes;
}

int64_t Model::expert_bytes(int32_t moe_idx) const {
  for (const Layer& layer : layers_) {
    if (layer.moe_idx == moe_idx) return std::get<MoeLayer>(layer.ffn).expert_bytes();
  }
  return 0;
}

PagedKv Model::Bind(const Layer& layer, size_t kv_group, const KvBinding& binding) const {
  PagedKv view = LayerView(kv_groups_[kv_group], binding.pool, binding.dtype, binding.block_tokens, layer.kv_idx);
  if (binding.planes.head_bytes > 0) view.planes = &binding.planes;
  if (!layer.key_mean.empty()) view.key_mean = layer.key_mean.data();
  view.block_tables = binding.block_tables;
  view.table_stride = binding.table_stride;
  return view;
}

PagedKv Model::BindWithSinks(const Layer& layer, std::span<const KvBinding> bindings, PagedKv* sinks) const {
  const KvGroupSpec& group = kv_groups_[layer.kv_group];
  PagedKv view = Bind(layer, layer.kv_group, bindings[layer.kv_group]);
  if (group.sink_group < 0) return view;
  const auto sink_group = static_cast<size_t>(group.sink_group);
  *sinks = Bind(layer, sink_group, bindings[sink_group]);
  view.sinks = sinks;
  view.sink_tokens = group.first_token;
  return view;
}

void Model::MakeRopeTables(const ExecContext& exec, const int32_t* positions, int64_t num_tokens, const RopeTables& tables) const {
  const RopeSpec& rope = spec_.attention.rope;
  const FloatArray& inv_freq = exec.device == DeviceType::kCuda ? cuda_inv_freq_ : cpu_inv_freq_;
  RopeTable(exec, {.positions = positions, .num_tokens = num_tokens, .inv_freq = inv_freq.data(),
                   .half_dim = rope.dim / 2, .mscale = rope.mscale, .cos = tables.cos, .sin = tables.sin});
}

RopeTables Model::RopeOf(const ExecContext& exec, const int32_t* positions, int64_t num_tokens, const RopeTables& given) const {
  if (given.cos != nullptr) return given;
  const int64_t values = num_tokens * (spec_.attention.rope.dim / 2);
  RopeTables tables;
  tables.cos = exec.workspace->Take<float>(values);
  tables.sin = exec.workspace->Take<float>(values);
  MakeRopeTables(exec, positions, num_tokens, tables);
  return tables;
}

void Model::RunAttention(const ForwardContext& fwd, const Layer& layer, int32_t window, const PagedKv& kv, float* hidden,
                         float* normed) const {
  NormedInput input(hidden, fwd.num_tokens, spec_.hidden_size, layer.attention_norm.data(), spec_.norm_eps, normed);
  if (const auto* gqa = std::get_if<GqaLayer>(&layer.attention)) {
    gqa->Run(fwd, spec_, window, kv, &input, hidden);
  } else {
    std::get<MlaLayer>(layer.attention).Run(fwd, spec_, window, kv, &input, hidden);
  }
}

void Model::RunFfn(const ExecContext& exec, const Layer& layer, int64_t num_tokens, float* hidden, float* normed,
                   int32_t* expert_counts) const {
  NormedInput input(hidden, num_tokens, spec_.hidden_size, layer.ffn_norm.data(), spec_.norm_eps, normed);
  if (const auto* ffn = std::get_if<FfnLayer>(&layer.ffn)) {
    ffn->Run(exec, &input, hidden);
  } else {
    std::get<MoeLayer>(layer.ffn).Run(exec, spec_, &input, hidden, expert_counts);
  }
}

namespace {

// Row i of `to` is row rows[i] of `from`, and the way back.
void CopyRows(const float* from, const int32_t* rows, int64_t count, int64_t dim, float* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + i * dim, from + rows[i] * dim, sizeof(float) * static_cast<size_t>(dim));
}
void PutRows(const float* from, const int32_t* rows, int64_t count, int64_t dim, float* to) {
  for (int64_t i = 0; i < count; ++i) std::memcpy(to + rows[i] * dim, from + i * dim, sizeof(float) * static_cast<size_t>(dim));
}

}  // namespace

void Model::RunWantedFfn(const ExecContext& exec, const Layer& layer, const ForwardBatch& batch, float* normed,
                         int32_t* expert_counts) const {
  const int64_t dim = spec_.hidden_size, count = batch.num_wanted_rows;
  if (count == 0) return;
  WorkspaceScope scope(exec.workspace);
  float* rows = exec.workspace->Take<float>(count * dim);
  CopyRows(batch.hidden, batch.wanted_rows, count, dim, rows);
  RunFfn(exec, layer, count, rows, normed, expert_counts);
  PutRows(rows, batch.wanted_rows, count, dim, batch.hidden);
}

void Model::Forward(const ExecContext& exec, const ForwardBatch& batch) const {
  WorkspaceScope scope(exec.workspace);
  const RopeTables rope = RopeOf(exec, batch.positions, batch.num_tokens, batch.rope);
  float* normed = exec.workspace->Take<float>(batch.num_tokens * spec_.hidden_size);
  if (batch.first_layer == 0) {
    Embed(exec, {.token_ids = batch.token_ids, .num_tokens = batch.num_tokens, .table = &embedding_, .y = batch.hidden,
                 .y_stride = spec_.hidden_size});
  }
  const ForwardContext fwd = {exec, batch.num_tokens, batch.spans, batch.num_expanded, rope.cos, rope.sin, batch.mla_piece_tokens};
  const CudaChaining chaining(exec);
  const bool some = batch.wanted_rows != nullptr && batch.num_wanted_rows < batch.num_tokens &&
                    exec.device == DeviceType::kCpu;
  const auto end = static_cast<size_t>(std::min(batch.end_layer, spec_.num_layers));
  for (auto i = static_cast<size_t>(batch.first_layer); i < end; ++i) {
    const Layer& layer = layers_[i];
    if (batch.before_layer) batch.before_layer(static_cast<int32_t>(i));
    int32_t* counts = layer.moe_idx >= 0 && batch.expert_counts != nullptr
                          ? batch.expert_counts + int64_t{layer.moe_idx} * spec_.moe.num_experts
                          : nullptr;
    PagedKv sinks;
    RunAttention(fwd, layer, spec_.layers[i].window, BindWithSinks(layer, batch.kv, &sinks), batch.hidden, normed);
    if (some && i + 1 == static_cast<size_t>(spec_.num_layers)) {
      RunWantedFfn(exec, layer, batch, normed, counts);
    } else {
      RunFfn(exec, layer, batch.num_tokens, batch.hidden, normed, counts);
    }
  }
}

void Model::FinalNorm(const ExecContext& exec, const float* x, int64_t num_rows, float* y, const int32_t* x_rows) const {
  const int64_t dim = spec_.hidden_size;
  RmsNorm(exec, {.x = x, .token_stride_x = dim, .num_tokens = num_rows, .dim = dim, .weight = final_norm_.data(), .eps = spec_.norm_eps,
                 .y = y, .token_stride_y = dim, .x_rows = x_rows});
}

void Model::Head(const ExecContext& exec, const float* x, int64_t num_rows, float* logits) const {
  Matmul(exec, {.x = x, .x_stride = spec_.hidden_size, .m = num_rows, .weight = &HeadMatrix(), .y = logits,
                .y_stride = spec_.vocab_size});
}

void Model::ForwardMtp(const ExecContext& exec, const MtpBatch& batch) const {
  ForwardMtpAttention(exec, batch);
  if (batch.wanted_rows == nullptr || exec.device != DeviceType::kCpu) {
    return ForwardMtpFfn(exec, batch.out, batch.num_tokens, batch.raw_out);
  }
  if (batch.num_wanted_rows == 0) return;
  WorkspaceScope scope(exec.workspace);
  float* rows = exec.workspace->Take<float>(batch.num_wanted_rows * spec_.hidden_size);
  CopyRows(batch.out, batch.wanted_rows, batch.num_wanted_rows, spec_.hidden_size, rows);
  ForwardMtpFfn(exec, rows, batch.num_wanted_rows, batch.raw_out);
  PutRows(rows, batch.wanted_rows, batch.num_wanted_rows, spec_.hidden_size, batch.out);
}

void Model::ForwardMtpFfn(const ExecContext& exec, float* rows, int64_t num_rows, bool raw_out) const {
  WorkspaceScope scope(exec.workspace);
  float* normed = exec.workspace->Take<float>(num_rows * spec_.hidden_size);
  RunFfn(exec, mtp_->layer, num_rows, rows, normed, nullptr);
  if (!raw_out) Norm(exec, rows, num_rows, spec_.hidden_size, mtp_->norm, spec_.norm_eps, rows, spec_.hidden_size);
}

void Model::ForwardMtpAttention(const ExecContext& exec, const MtpBatch& batch) const {
  CHECK(mtp_.has_value());
  const int64_t dim = spec_.hidden_size;
  const int64_t tokens = batch.num_tokens;
  WorkspaceScope scope(exec.workspace);
  const RopeTables rope = RopeOf(exec, batch.positions, tokens, batch.rope);
  float* normed = exec.workspace->Take<float>(tokens * dim);
  float* both = exec.workspace->Take<float>(tokens * 2 * dim);  // [embedding ; hidden], each normalised
  const PackedMatrix& embedding = mtp_->embedding ? *mtp_->embedding : embedding_;
  EmbedParams embed = {.token_ids = batch.next_token_ids, .num_tokens = tokens, .table = &embedding, .y = both, .y_stride = 2 * dim};
  const bool raw = batch.from != MtpBatch::From::kNormed;
  const float* front_norm = !raw ? nullptr : batch.from == MtpBatch::From::kModel ? final_norm_.data() : mtp_->norm.data();
  CHECK(raw || batch.hidden_rows == nullptr);
  if (!EmbedNorms(exec, {.embed = embed, .norm = mtp_->embedding_norm.data(), .hidden = batch.hidden, .hidden_rows = batch.hidden_rows,
                         .front_norm = front_norm, .hidden_norm = mtp_->hidden_norm.data(), .eps = spec_.norm_eps,
                         .upcoming = &mtp_->projection})) {
    embed.y = normed, embed.y_stride = dim;
    Embed(exec, embed);
    Norm(exec, normed, tokens, dim, mtp_->embedding_norm, spec_.norm_eps, both, 2 * dim);
    if (raw) {
      RmsNorm(exec, {.x = batch.hidden, .token_stride_x = dim, .num_tokens = tokens, .dim = dim, .weight = front_norm, .eps = spec_.norm_eps,
                     .y = normed, .token_stride_y = dim, .x_rows = batch.hidden_rows});
    }
    Norm(exec, raw ? normed : batch.hidden, tokens, dim, mtp_->hidden_norm, spec_.norm_eps, both + dim, 2 * dim);
  }
  Matmul(exec, {.x = both, .x_stride = 2 * dim, .m = tokens, .weight = &mtp_->projection, .y = batch.out, .y_stride = dim});
  const ForwardContext fwd = {exec, tokens, batch.spans, batch.num_expanded, rope.cos, rope.sin};
  const Layer& layer = mtp_->layer;
  RunAttention(fwd, layer, spec_.layers[static_cast<size_t>(spec_.num_layers)].window,
               Bind(layer, layer.kv_group, batch.kv), batch.out, normed);
}

void Model::MtpHead(const ExecContext& exec, const float* x, int64_t num_rows, float* logits, float* normed) const {
  const PackedMatrix& whole = mtp_->head ? *mtp_->head : HeadMatrix();
  PackedMatrix first;  // a view of its first rows
  const bool part = mtp_->head_tokens < whole.n;
  if (part) {
    first.dtype = whole.dtype, first.layout = whole.layout, first.n = mtp_->head_tokens, first.k = whole.k;
    first.data = whole.data, first.data_bytes = whole.data_bytes / whole.n * mtp_->head_tokens;
    first.block_scales = whole.block_scales, first.block_scale_rows = whole.block_scale_rows;
  }
  const PackedMatrix& head = part ? first : whole;
  MatmulParams matmul = {.x = x, .x_stride = spec_.hidden_size, .m = num_rows, .weight = &head, .y = logits, .y_stride = spec_.vocab_size};
  if (normed == nullptr) return Matmul(exec, matmul);
  const auto with = [&](const float* rows, const CudaFusion& fusion) {
    matmul.x = rows, matmul.fusion = fusion;
    return matmul;
  };
  NormedInput(x, num_rows, spec_.hidden_size, mtp_->norm.data(), spec_.norm_eps, normed)
      .Give(exec, {}, [&](const float* rows, const CudaFusion& fusion) { return MatmulFuses(exec, with(rows, fusion)); },
            [&](const float* rows, const CudaFusion& fusion) { Matmul(exec, with(rows, fusion)); });
}

int64_t Model::WorkspaceBytes(const ModelSpec& spec, int64_t max_tokens, int32_t max_context, int64_t max_logit_rows,
                              int num_threads) {
  const auto floats = [](int64_t n) { return Workspace::Padded(n * static_cast<int64_t>(sizeof(float))); };
  const int64_t attention = spec.attention.kind == AttentionKind::kMla
                                ? MlaLayer::WorkspaceBytes(spec, max_tokens, max_context, num_threads)
                                : GqaLayer::WorkspaceBytes(spec, max_tokens, num_threads);
  const int64_t ffn = std::max(FfnLayer::WorkspaceBytes(spec.hidden_size, spec.intermediate, max_tokens, num_threads),
                               MoeLayer::WorkspaceBytes(spec, max_tokens, num_threads));
  // Forward and ForwardMtp: cos, sin, normed and (MTP) both halves.
  const int64_t own = 2 * floats(max_tokens * spec.attention.rope.dim / 2) + 3 * floats(max_tokens * spec.hidden_size);
  const int64_t forward = own + std::max({attention, ffn, MatmulWorkspaceBytes(max_tokens, 2 * int64_t{spec.hidden_size}, num_threads)});
  return std::max(forward, MatmulWorkspaceBytes(max_logit_rows, spec.hidden_size, num_threads));
}

}  // namespace cachalot
