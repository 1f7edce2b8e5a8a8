// Sampling on the GPU against SampleRow: greedy and log-probabilities exactly, draws by the same uniform number.
#include <cmath>
#include <functional>

#include "gpu_testing.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_cuda.h"

namespace cachalot {
namespace {

class GpuSample : public GpuTest {};

const CudaBackend& Backend() { return *Gpu::Get().backend; }

// One row as the CPU takes it.
struct Row {
  std::vector<float> logits;
  SamplingParams sampling;
  std::vector<LogitBias> bias;
  std::vector<int32_t> history;  // for the penalties
  int32_t num_prompt = 0;
  int64_t position = 0;
  int32_t num_top = -1;
  bool idle = false;
};

struct Drawn {
  int32_t token = -1;
  float logprob = 0;
  std::vector<TokenLogprob> top;
};

Drawn OnCpu(const Row& row) {
  TestContext ctx(Isa::kRef, 1, SampleWorkspaceBytes(static_cast<int32_t>(row.logits.size())) + 4096);
  std::vector<float> logits = row.logits;
  std::vector<TokenCount> counts;
  for (size_t i = 0; i < row.history.size(); ++i) {
    auto found = std::find_if(counts.begin(), counts.end(), [&](const TokenCount& c) { return c.token_id == row.history[i]; });
    if (found == counts.end()) found = counts.insert(counts.end(), {row.history[i], 0, 0});
    (static_cast<int32_t>(i) < row.num_prompt ? found->in_prompt : found->in_output) += 1;
  }
  Drawn drawn;
  drawn.top.resize(std::max(row.num_top, 0));
  const SampleRowResult result = SampleRow(ctx,
                                           {.logits = logits.data(),
                                            .vocab = static_cast<int32_t>(logits.size()),
                                            .sampling = row.sampling,
                                            .bias = row.bias,
                                            .counts = counts,
                                            .position = row.position,
                                            .num_top_logprobs = row.num_top},
                                           drawn.top);
  drawn.token = result.token_id;
  drawn.logprob = result.logprob;
  return drawn;
}

// All rows in one call; row i is slot num_rows - 1 - i.
std::vector<Drawn> OnGpu(const std::vector<Row>& rows) {
  const auto num_rows = static_cast<int32_t>(rows.size());
  const auto vocab = static_cast<int32_t>(rows[0].logits.size());
  const int64_t stride = vocab + 5;
  std::vector<float> logits(num_rows * stride, NAN);
  std::vector<int32_t> slots(num_rows), positions(num_rows), num_top(num_rows);
  std::vector<CudaSampleSlot> params(num_rows);
  std::vector<LogitBias> bias = {{0, 1000.0f}};  // of nobody
  int32_t top_stride = 1, counted = 0;
  for (const Row& row : rows) counted += !row.history.empty();
  const GpuArray<uint32_t> counts(int64_t{std::max(counted, 1)} * vocab);
  int32_t next_counts = 0;
  for (int32_t i = 0; i < num_rows; ++i) {
    const Row& row = rows[i];
    std::copy(row.logits.begin(), row.logits.end(), logits.begin() + i * stride);
    const int32_t slot = num_rows - 1 - i;
    slots[i] = row.idle ? -1 : slot;
    positions[i] = static_cast<int32_t>(row.position);
    num_top[i] = row.num_top;
    top_stride = std::max(top_stride, row.num_top);
    params[slot].sampling = row.sampling;
    params[slot].bias_begin = static_cast<int32_t>(bias.size());
    params[slot].bias_len = static_cast<int32_t>(row.bias.size());
    bias.insert(bias.end(), row.bias.begin(), row.bias.end());
    if (row.history.empty()) continue;
    params[slot].counts_row = next_counts;
    const GpuArray<int32_t> history(row.history);
    GPU_EXPECT_OK(Backend().sample_history(Gpu::Get().Exec(), {.counts = counts.data() + int64_t{next_counts} * vocab,
                                                               .vocab = vocab,
                                                               .token_ids = history.data(),
                                                               .num_tokens = static_cast<int32_t>(row.history.size()),
                                                               .num_prompt = row.num_prompt}));
    Gpu::Get().Synchronize();
    ++next_counts;
  }
  const GpuArray<float> gpu_logits(logits), modified(int64_t{num_rows} * vocab), logprobs(num_rows);
  const GpuArray<int32_t> gpu_slots(slots), gpu_positions(positions), gpu_num_top(num_top), tokens(num_rows);
  const GpuArray<CudaSampleSlot> gpu_params(params);
  const GpuArray<LogitBias> gpu_bias(bias);
  const GpuArray<TokenLogprob> top(int64_t{num_rows} * top_stride);
  const std::vector<uint32_t> counts_before = counts.Read();
  GPU_EXPECT_OK(Backend().sample(Gpu::Get().Exec(), {.logits = gpu_logits.data(),
                                                     .logits_stride = stride,
                                                     .vocab = vocab,
                                                     .num_rows = num_rows,
                                                     .row_slots = gpu_slots.data(),
                                                     .positions = gpu_positions.data(),
                                                     .slots = gpu_params.data(),
                                                     .bias = gpu_bias.data(),
                                                     .counts = counts.data(),
                                                     .modified = modified.data(),
                                                     .num_top = gpu_num_top.data(),
                                                     .top_stride = top_stride,
                                                     .token_ids = tokens.data(),
                                                     .logprobs = logprobs.data(),
                                                     .top = top.data()}));
  EXPECT_EQ(FirstBitDifference(gpu_logits.Read(), logits), "") << "the logits were changed";
  EXPECT_TRUE(modified.Intact() && logprobs.Intact() && tokens.Intact() && top.Intact() && counts.Intact());
  const std::vector<int32_t> got = tokens.Read();
  const std::vector<float> got_logprobs = logprobs.Read();
  const std::vector<TokenLogprob> got_top = top.Read();
  const std::vector<uint32_t> counts_after = counts.Read();
  std::vector<Drawn> drawn(num_rows);
  next_counts = 0;
  for (int32_t i = 0; i < num_rows; ++i) {
    drawn[i].token = got[i];
    drawn[i].logprob = rows[i].num_top >= 0 ? got_logprobs[i] : 0.0f;
    for (int32_t j = 0; j < rows[i].num_top; ++j) drawn[i].top.push_back(got_top[int64_t{i} * top_stride + j]);
    if (rows[i].history.empty()) continue;
    const int64_t base = int64_t{next_counts++} * vocab;
    for (int32_t t = 0; t < vocab; ++t) {
      const uint32_t want = counts_before[base + t] + (t == got[i] && !rows[i].idle ? 1 : 0);
      if (counts_after[base + t] != want) {
        ADD_FAILURE() << "row " << i << ": count of token " << t << " is " << counts_after[base + t] << ", not " << want;
        break;
      }
    }
  }
  return drawn;
}

void ExpectSame(const Drawn& got, const Drawn& want, const Row& row, int index) {
  EXPECT_EQ(got.token, want.token) << "row " << index;
  if (row.num_top < 0) return;
  EXPECT_TRUE(got.logprob == want.logprob || std::abs(got.logprob - want.logprob) < 1e-5f + 1e-6f * std::abs(want.logprob))
      << "row " << index << ": " << got.logprob << " for " << want.logprob;
  for (int32_t j = 0; j < row.num_top; ++j) {
    EXPECT_EQ(got.top[j].token_id, want.top[j].token_id) << "row " << index << " top " << j;
    EXPECT_TRUE(got.top[j].logprob == want.top[j].logprob ||
                std::abs(got.top[j].logprob - want.top[j].logprob) < 1e-5f + 1e-6f * std::abs(want.top[j].logprob))
        << "row " << index << " top " << j << ": " << got.top[j].logprob << " for " << want.top[j].logprob;
  }
}

TEST_F(GpuSample, GreedyAndLogprobs) {
  for (int32_t vocab : {1, 31, 1000, 32000, 128256}) {
    std::vector<Row> rows;
    TestRng rng(static_cast<uint64_t>(vocab));
    for (int i = 0; i < 12; ++i) {
      Row row;
      row.logits = rng.NormalVector(vocab, 3.0f);
      row.num_top = i % 3 == 0 ? -1 : std::min(i % 3 == 1 ? 0 : 20, kMaxCudaTopLogprobs);
      row.idle = i == 7;
      if (i == 1) std::fill(row.logits.begin(), row.logits.end(), 2.0f);        // all equal: token 0
      if (i == 2) std::fill(row.logits.begin(), row.logits.end(), -INFINITY);   // nothing: token 0
      if (i == 4) row.logits.back() = INFINITY;
      if (i == 5) row.logits[0] = NAN;
      if (i == 8) std::fill(row.logits.begin(), row.logits.end(), NAN);
      if (i == 10) {
        for (float& logit : row.logits) logit = std::round(logit);  // ties among the best
      }
      if (i == 11) {
        for (float& logit : row.logits) logit = logit > 0 ? 0.0f : -0.0f;  // zeros of both signs are equal
        row.num_top = 20;
      }
      rows.push_back(row);
    }
    SCOPED_TRACE(vocab);
    const std::vector<Drawn> got = OnGpu(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].idle) {
        EXPECT_EQ(got[i].token, -1);
      } else {
        ExpectSame(got[i], OnCpu(rows[i]), rows[i], static_cast<int>(i));
      }
    }
  }
}

TEST_F(GpuSample, BiasAndPenalties) {
  std::vector<Row> rows;
  TestRng rng(4);
  for (int i = 0; i < 30; ++i) {
    Row row;
    row.logits = rng.NormalVector(500, 1.0f);
    if (i % 2 == 0) row.bias = {{3, 2.0f}, {499, -INFINITY}, {17, 0.5f}, {-1, 5.0f}, {500, 5.0f}};
    if (i % 3 != 0) {
      for (int j = 0; j < 400; ++j) row.history.push_back(static_cast<int32_t>(rng.Int(0, 499)));
      row.num_prompt = 150;
      row.sampling.repetition_penalty = i % 4 == 0 ? 1.0f : 1.3f;
      row.sampling.presence_penalty = i % 5 == 0 ? 0.0f : 0.4f;
      row.sampling.frequency_penalty = i % 7 == 0 ? 0.0f : 0.25f;
    }
    row.num_top = i % 2 == 0 ? 5 : -1;  // of the logits before all that
    rows.push_back(row);
  }
  const std::vector<Drawn> got = OnGpu(rows);
  for (size_t i = 0; i < rows.size(); ++i) ExpectSame(got[i], OnCpu(rows[i]), rows[i], static_cast<int>(i));
}

// The same number decides; only an exp that rounds otherwise right at a border may choose the neighbour.
TEST_F(GpuSample, DrawsTheTokensTheReferenceDraws) {
  struct Setting {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  const Setting settings[] = {{1.0f, 0, 1.0f, 0.0f},  {0.7f, 40, 1.0f, 0.0f},  {1.0f, 0, 0.9f, 0.0f},   {1.3f, 100, 0.8f, 0.0f},
                              {0.8f, 0, 1.0f, 0.05f}, {0.6f, 20, 0.95f, 0.1f}, {1.0f, 1, 1.0f, 0.0f},   {1.0f, 0, 1e-9f, 0.0f},
                              {2.0f, 0, 0.999f, 0.0f}, {1e-30f, 0, 1.0f, 0.0f}, {1e30f, 0, 1.0f, 0.0f}, {1.0f, 0, 1.0f, 1.0f},
                              {1.0f, 999999, 0.5f, 0.0f}};
  int draws = 0, different = 0;
  for (int32_t vocab : {1, 50, 5000, 151936}) {
    for (const Setting& setting : settings) {
      if (!Chosen(int64_t{vocab} * 16)) continue;
      std::vector<Row> rows;
      TestRng rng(static_cast<uint64_t>(vocab));
      for (int i = 0; i < 16; ++i) {
        Row row;
        row.logits = rng.NormalVector(vocab, 2.5f);
        if (i % 4 == 1) {
          for (float& logit : row.logits) logit = std::round(logit);  // ties across every cut
        }
        if (i % 4 == 2) row.logits[vocab / 2] = NAN;
        row.sampling = {.temperature = setting.temperature, .top_k = setting.top_k, .top_p = setting.top_p,
                        .min_p = setting.min_p, .seed = rng.Next()};
        row.position = i * 1001;
        rows.push_back(row);
      }
      const std::vector<Drawn> got = OnGpu(rows);
      for (size_t i = 0; i < rows.size(); ++i) {
        const Drawn want = OnCpu(rows[i]);
        ++draws;
        different += got[i].token != want.token;
        if (got[i].token != want.token) {
          std::printf("vocab %d temperature %g top_k %d top_p %g min_p %g row %zu: %d for %d\n", vocab, setting.temperature,
                      setting.top_k, setting.top_p, setting.min_p, i, got[i].token, want.token);
        }
      }
      const std::vector<Drawn> again = OnGpu(rows);
      for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(again[i].token, got[i].token);
    }
  }
  EXPECT_LE(different, draws / 200);
}

// Rows on which a selection by digits has most to do: equal values, few values, values that differ in their last bits alone.
TEST_F(GpuSample, SelectionsFromRowsThatHardlyDiffer) {
  constexpr int32_t kVocab = 30011;  // more tokens than a selection remembers
  const std::pair<const char*, std::function<float(int32_t)>> rows_of[] = {
      {"equal", [](int32_t) { return 0.25f; }},
      {"masked", [](int32_t i) { return i % 9001 == 77 ? 1.0f : -INFINITY; }},
      {"two values", [](int32_t i) { return i % 5 == 3 ? 1.0f : 0.5f; }},
      {"last bits", [](int32_t i) { return std::bit_cast<float>(0x3f800000u + static_cast<uint32_t>(i * 7919 % 20000)); }},
      {"negative, last bits", [](int32_t i) { return -std::bit_cast<float>(0x40400000u + static_cast<uint32_t>(i * 7919 % 999)); }},
      {"far apart", [](int32_t i) { return i % 2 == 0 ? 1e30f : -1e30f; }},
      {"zeros", [](int32_t i) { return i % 3 == 0 ? 0.0f : -0.0f; }},
  };
  int draws = 0, different = 0;
  for (const auto& [name, logit_of] : rows_of) {
    if (!Chosen(int64_t{kVocab} * 27)) continue;
    SCOPED_TRACE(name);
    std::vector<Row> rows;
    TestRng rng(5);
    for (int32_t top_k : {0, 1, 3, 100, 4095, 4096, 4097, 20000, kVocab - 1}) {
      for (float top_p : {1.0f, 0.9f, 0.3f}) {
        Row row;
        row.logits.resize(kVocab);
        for (int32_t i = 0; i < kVocab; ++i) row.logits[i] = logit_of(i);
        row.sampling = {.temperature = 0.8f, .top_k = top_k, .top_p = top_p, .seed = rng.Next()};
        row.position = static_cast<int64_t>(rows.size());
        row.num_top = top_k == 100 ? 100 : -1;
        rows.push_back(row);
      }
    }
    const std::vector<Drawn> got = OnGpu(rows), again = OnGpu(rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      const Drawn want = OnCpu(rows[i]);
      ++draws;
      different += got[i].token != want.token;
      EXPECT_EQ(again[i].token, got[i].token);
      for (int32_t j = 0; j < rows[i].num_top; ++j) EXPECT_EQ(got[i].top[j].token_id, want.top[j].token_id) << i << " top " << j;
    }
  }
  EXPECT_LE(different, draws / 100);
}

}  // namespace
}  // namespace cachalot
