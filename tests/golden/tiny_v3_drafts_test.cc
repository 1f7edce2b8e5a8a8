// Speculation with a model that was really trained (../shared/models/tiny-deepseek-v3): its MTP layer drafts what its
// recorded results say, and with every drafter the answers are those without.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "engine/engine.h"
#include "engine/model_bundle.h"
#include "golden/golden_case.h"

namespace cachalot {
namespace {

#ifdef CACHALOT_SANITIZED
constexpr int kPrompts = 4;
#else
constexpr int kPrompts = 50;
#endif

class TinyV3Drafts : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::string(CACHALOT_SOURCE_DIR) + "/../shared/models/tiny-deepseek-v3";
    if (!IsDirectory(folder_)) GTEST_SKIP() << "../shared/models/tiny-deepseek-v3 is not beside this checkout";
  }

  std::vector<int32_t> Ints(const std::string& name) { return *ReadInts(folder_ + "/golden.safetensors", name); }

  void Open(DraftKind kind, int32_t max_drafts, int32_t max_seqs) {
    engine_.reset();
    ModelOptions options;
    options.path = folder_;
    options.kv.type = "f32";
    options.num_threads = 1;
    options.max_seqs = max_seqs;
    options.context = 1024;
    options.max_step_tokens = 256;
    options.deterministic = true;
    options.drafts = kind;
    options.max_drafts = max_drafts;
    if (kind == DraftKind::kModel) options.draft_path = folder_;
    auto bundle = OpenModel(options);
    ASSERT_TRUE(bundle.ok()) << bundle.status().ToString();
    bundle_ = std::move(bundle).value();
    EngineOptions engine_options;
    engine_options.max_batch_tokens = 256;
    engine_options.drafts = kind;
    engine_options.max_drafts = max_drafts;
    engine_options.adaptive_drafts = false;
    auto engine = Engine::Create(bundle_.runtime.get(), nullptr, engine_options);
    ASSERT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }

  std::string folder_;
  ModelBundle bundle_;
  std::unique_ptr<Engine> engine_;
};

// The recorded draft of every slot says which of ours are accepted.
TEST_F(TinyV3Drafts, MtpDraftsWhatIsRecorded) {
  Open(DraftKind::kMtp, 1, 1);
  int64_t drafts = 0, right = 0;
  for (int p = 0; p < 3; ++p) {
    const std::string prefix = "prompt" + std::to_string(p) + ".";
    const auto prompt = Ints(prefix + "tokens");
    const auto greedy = Ints(prefix + "greedy");
    const auto recorded = Ints(prefix + "mtp_draft");
    const auto num_tokens = static_cast<int32_t>(greedy.size());
    // Behind token i there is a draft of token i + 1, unless that is the last: nothing comes behind it.
    for (int32_t i = 0; i + 2 < num_tokens; ++i) {
      ++drafts;
      if (recorded[prompt.size() - 1 + static_cast<size_t>(i)] != greedy[static_cast<size_t>(i) + 1]) continue;
      ++right;
      ++i;
    }
    std::vector<int32_t> generated;
    Request request;
    request.prompt_ids = prompt;
    request.max_tokens = num_tokens;
    request.ignore_eos = true;
    ASSERT_TRUE(engine_->Submit(std::move(request), [&](const RequestOutput& output) {
      generated.insert(generated.end(), output.token_ids.begin(), output.token_ids.end());
    }).ok());
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    EXPECT_EQ(generated, greedy) << prefix;
    EXPECT_EQ(engine_->stats().draft_tokens, drafts) << prefix;
    EXPECT_EQ(engine_->stats().accepted_tokens, right) << prefix;
  }
  EXPECT_GT(static_cast<double>(right), 0.75 * static_cast<double>(drafts));
}

TEST_F(TinyV3Drafts, AnswersAreThoseWithout) {
  const auto text = Ints("valid_txt.tokens");
  struct Run {
    DraftKind kind;
    int32_t max_drafts;
  };
  std::vector<std::vector<int32_t>> plain;
  for (const Run run : {Run{DraftKind::kNone, 1}, Run{DraftKind::kNgram, 4}, Run{DraftKind::kMtp, 3}, Run{DraftKind::kModel, 3}}) {
    Open(run.kind, run.max_drafts, 8);
    std::vector<std::vector<int32_t>> answers(kPrompts);
    for (size_t i = 0; i < kPrompts; ++i) {
      Request request;
      request.prompt_ids = {0};
      const size_t begin = i * 1300;
      request.prompt_ids.insert(request.prompt_ids.end(), text.begin() + static_cast<ptrdiff_t>(begin),
                                text.begin() + static_cast<ptrdiff_t>(begin + 20 + i));
      request.max_tokens = 32;
      request.ignore_eos = true;
      // Every other one is sampled.
      request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
      request.sampling.repetition_penalty = i % 4 == 3 ? 1.1f : 1.0f;
      request.sampling.seed = i;
      ASSERT_TRUE(engine_->Submit(std::move(request), [&tokens = answers[i]](const RequestOutput& output) {
        tokens.insert(tokens.end(), output.token_ids.begin(), output.token_ids.end());
      }).ok());
    }
    ASSERT_TRUE(engine_->RunUntilIdle().ok());
    if (run.kind == DraftKind::kNone) plain = answers;
    EXPECT_EQ(answers, plain) << static_cast<int>(run.kind);
    const EngineStats& stats = engine_->stats();
    if (run.kind == DraftKind::kNone) continue;
    RecordProperty(fmt::format("accepted_{}", static_cast<int>(run.kind)),
                   fmt::format("{} of {}", stats.accepted_tokens, stats.draft_tokens));
    EXPECT_GT(stats.accepted_tokens, kPrompts * (run.kind == DraftKind::kNgram ? 0 : 5));
  }
}

}  // namespace
}  // namespace cachalot
