// One implementation for every instruction set: the same choice of experts whatever the machine. Bound: one
// exp per expert and token; the choice is a scan per chosen expert over at most num_experts scores.
#include "kernels/moe_route/moe_route.h"

#include <cmath>
#include <limits>

#include "kernels/common/cuda_step.h"
#include "kernels/common/parallel.h"

namespace cachalot {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Scores of one token. A NaN among softmax logits makes all of them NaN.
void Score(const float* logits, int32_t count, MoeScore score, float* scores) {
  if (score == MoeScore::kSigmoid) {
    for (int32_t i = 0; i < count; ++i) scores[i] = 1.0f / (1.0f + std::exp(-logits[i]));
    return;
  }
  float largest = kLowest;
  for (int32_t i = 0; i < count; ++i) largest = std::max(largest, logits[i]);
  double sum = 0;
  for (int32_t i = 0; i < count; ++i) {
    scores[i] = std::exp(logits[i] - largest);
    sum += scores[i];
  }
  for (int32_t i = 0; i < count; ++i) scores[i] /= static_cast<float>(sum);
}

// The `count` largest of values, best first; among equals the lower index first. Values must not be NaN.
// Insertion into a short sorted list: most values fail the first comparison.
void PickLargest(const float* values, int32_t num_values, int32_t count, float* best, int32_t* best_idx) {
  int32_t held = 0;
  for (int32_t i = 0; i < num_values; ++i) {
    const float value = values[i];
    if (held == count && !(value > best[held - 1])) continue;
    int32_t at = held < count ? held++ : held - 1;
    for (; at > 0 && value > best[at - 1]; --at) {
      best[at] = best[at - 1];
      best_idx[at] = best_idx[at - 1];
    }
    best[at] = value;
    best_idx[at] = i;
  }
}

float GroupScore(const float* choice, int32_t size, MoeGroupScore kind) {
  float first = kLowest, second = kLowest;
  for (int32_t i = 0; i < size; ++i) {
    if (choice[i] > first) {
      second = first;
      first = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return kind == MoeGroupScore::kMax || size < 2 ? first : first + second;
}

struct Scratch {
  float* scores;       // [num_experts]
  float* choice;       // [num_experts]
  float* group_score;  // [num_groups]
  float* best;         // [max(top_k, top_k_groups)]
  int32_t* groups;     // [top_k_groups], those chosen
};

void RouteToken(const MoeRouteParams& params, int64_t token, const Scratch& scratch) {
  const int32_t num_experts = params.num_experts, group_size = num_experts / std::max(params.num_groups, 1);
  Score(params.logits + token * num_experts, num_experts, params.score, scratch.scores);
  for (int32_t i = 0; i < num_experts; ++i) {
    const float choice = scratch.scores[i] + (params.choice_bias != nullptr ? params.choice_bias[i] : 0.0f);
    scratch.choice[i] = std::isnan(choice) ? kLowest : choice;
  }
  // The chosen groups' choice scores, moved together in the order of the experts, so that an expert of
  // another group cannot be chosen even when nothing but -infinity is left.
  int32_t num_candidates = num_experts;
  const bool grouped = params.group_score != MoeGroupScore::kNone;
  if (grouped) {
    for (int32_t g = 0; g < params.num_groups; ++g) {
      scratch.group_score[g] = GroupScore(scratch.choice + g * group_size, group_size, params.group_score);
    }
    PickLargest(scratch.group_score, params.num_groups, params.top_k_groups, scratch.best, scratch.groups);
    std::sort(scratch.groups, scratch.groups + params.top_k_groups);
    for (int32_t i = 0; i < params.top_k_groups; ++i) {
      std::copy_n(scratch.choice + scratch.groups[i] * group_size, group_size,
                  scratch.choice + i * group_size);
    }
    num_candidates = params.top_k_groups * group_size;
  }
  int32_t* ids = params.expert_ids + token * params.top_k;
  float* weights = params.weights + token * params.top_k;
  PickLargest(scratch.choice, num_candidates, params.top_k, scratch.best, ids);
  double sum = 0;
  for (int32_t i = 0; i < params.top_k; ++i) {
    if (grouped) ids[i] = scratch.groups[ids[i] / group_size] * group_size + ids[i] % group_size;
    weights[i] = scratch.scores[ids[i]];
    sum += weights[i];
  }
  if (params.normalize) {
    if (params.score == MoeScore::kSigmoid) sum += 1e-20;
    for (int32_t i = 0; i < params.top_k; ++i) weights[i] = static_cast<float>(weights[i] / sum);
  }
  for (int32_t i = 0; i < params.top_k; ++i) weights[i] *= params.scaling;
}

// 4-byte values of Scratch for one thread, a whole number of cache lines.
int64_t ScratchFloats(int32_t num_experts, int32_t num_groups, int32_t top_k) {
  const int64_t floats = int64_t{2} * num_experts + 2 * num_groups + std::max(top_k, num_groups);
  return Workspace::Padded(floats * int64_t{sizeof(float)}) / int64_t{sizeof(float)};
}

}  // namespace

int64_t MoeRouteWorkspaceBytes(int num_threads, int32_t num_experts, int32_t num_groups, int32_t top_k) {
  return num_threads * ScratchFloats(num_experts, num_groups, top_k) * int64_t{sizeof(float)};
}

void MoeRoute(const ExecContext& ctx, const MoeRouteParams& params) {
  if (params.num_tokens == 0) return;
  const bool grouped = params.group_score != MoeGroupScore::kNone;
  CHECK(params.num_experts > 0 && params.top_k > 0 && params.top_k <= params.num_experts)
      << "top " << params.top_k << " of " << params.num_experts << " experts";
  CHECK(!grouped || (params.num_groups > 0 && params.num_experts % params.num_groups == 0 &&
                     params.top_k_groups > 0 && params.top_k_groups <= params.num_groups &&
                     params.top_k <= params.top_k_groups * (params.num_experts / params.num_groups)))
      << "top " << params.top_k << " from " << params.top_k_groups << " of " << params.num_groups
      << " groups of " << params.num_experts << " experts";
  if (OnCuda(ctx)) {
    const int64_t bytes = params.num_tokens * params.top_k * 4;
    ctx.cuda->halves.Overwritten(params.expert_ids, bytes);
    ctx.cuda->halves.Overwritten(params.weights, bytes);
    RunCudaTold(ctx, &CudaBackend::moe_route, params);
    return;
  }
  const WorkspaceScope scope(ctx.workspace);
  const int num_threads = ctx.pool->num_threads();
  const int32_t num_groups = grouped ? params.num_groups : 1;
  const int64_t num_best = std::max(params.top_k, num_groups);
  const int64_t per_thread = ScratchFloats(params.num_experts, num_groups, params.top_k);
  float* const memory = ctx.workspace->Take<float>(per_thread * num_threads);
  ParallelRanges(ctx, params.num_tokens, 8.0 * params.num_experts,
                 [&](int64_t begin, int64_t end, int thread_idx) {
                   Scratch scratch;
                   scratch.scores = memory + thread_idx * per_thread;
                   scratch.choice = scratch.scores + params.num_experts;
                   scratch.group_score = scratch.choice + params.num_experts;
                   scratch.best = scratch.group_score + num_groups;
                   scratch.groups = reinterpret_cast<int32_t*>(scratch.best + num_best);
                   for (int64_t token = begin; token < end; ++token) RouteToken(params, token, scratch);
                 });
}

// A counting sort whose counters live in expert_begin: counted one place to the right, summed up, used as
// cursors, which leaves each at its expert's end, and moved one place to the right again.
void MoeSort(const ExecContext& ctx, const MoeSortParams& params) {
  if (OnCuda(ctx)) {
    const int64_t pair_bytes = params.num_tokens * params.top_k * 4, expert_bytes = (int64_t{params.num_experts} + 1) * 4;
    for (const void* per_pair : {static_cast<const void*>(params.token_rows), static_cast<const void*>(params.pair_weights),
                                 static_cast<const void*>(params.token_pairs)}) {
      ctx.cuda->halves.Overwritten(per_pair, pair_bytes);
    }
    ctx.cuda->halves.Overwritten(params.expert_begin, expert_bytes);
    ctx.cuda->halves.Overwritten(params.expert_counts, expert_bytes);
    RunCudaTold(ctx, [&](const CudaBackend& cuda, const CudaExec& exec) {
      return cuda.moe_sort(exec, params, ctx.cuda->batch.row_slots);
    });
    return;
  }
  const int64_t num_pairs = params.num_tokens * params.top_k;
  int32_t* begin = params.expert_begin;
  std::fill_n(begin, params.num_experts + 1, 0);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int32_t expert = params.expert_ids[i];
    CHECK(expert >= 0 && expert < params.num_experts) << "expert " << expert << " of " << params.num_experts;
    ++begin[expert + 1];
  }
  for (int32_t e = 0; e < params.num_experts; ++e) begin[e + 1] += begin[e];
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int32_t at = begin[params.expert_ids[i]]++;
    params.token_rows[at] = static_cast<int32_t>(i / params.top_k);
    params.pair_weights[at] = params.weights[i];
    if (params.token_pairs != nullptr) params.token_pairs[i] = at;
  }
  for (int64_t token = 0; params.token_pairs != nullptr && token < params.num_tokens; ++token) {
    std::sort(params.token_pairs + token * params.top_k, params.token_pairs + (token + 1) * params.top_k);
  }
  for (int32_t e = params.num_experts; e > 0; --e) begin[e] = begin[e - 1];
  begin[0] = 0;
  if (params.expert_counts == nullptr) return;
  for (int32_t e = 0; e < params.num_experts; ++e) params.expert_counts[e] += begin[e + 1] - begin[e];
}

}  // namespace cachalot
