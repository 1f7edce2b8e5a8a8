// Drafts on the GPU: with whatever drafter, launched however, preempted or not, the answers are those without drafts. Bit for
// bit, since these models run deterministically; the drafts are verified, and an MTP layer's are made, on the device.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>

#include "device/cuda/cuda_library.h"
#include "golden/drafts_harness.h"
#include "runtime/cuda_runtime.h"

namespace cachalot {
namespace {

constexpr const char* kMtpModel = "dummy tiny-deepseek-v3";

Drafting OnGpu(DraftKind kind, int32_t max_drafts = 4) {
  Drafting setup{.kind = kind, .max_drafts = max_drafts};
  setup.device = "cuda";
  return setup;
}

TEST(GpuDrafts, TheSameTokensAndBitsAsWithout) {
  for (const char* model : {"llama", kMtpModel}) {
    for (const bool exact : {true, false}) {
      Drafting none = OnGpu(DraftKind::kNone);
      none.gpu_exact = exact;
      const auto plain = DraftAnswers(model, none);
      for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kMtp}) {
        if (kind == DraftKind::kMtp && model != std::string_view(kMtpModel)) continue;
        for (const bool graphs : {true, false}) {
          for (const int32_t depth : {1, 0}) {
            for (const int32_t max_drafts : {4, 1}) {
              Drafting setup = OnGpu(kind, max_drafts);
              setup.gpu_exact = exact;
              setup.gpu_graphs = graphs;
              setup.gpu_depth = depth;
              EngineStats stats;
              EXPECT_EQ(DraftAnswers(model, setup, &stats), plain)
                  << model << ", drafter " << static_cast<int>(kind) << (exact ? ", F32" : ", fast")
                  << (graphs ? ", graphs" : ", ops") << ", depth " << depth << ", at most " << max_drafts;
              EXPECT_GT(stats.draft_tokens, 0);
            }
          }
        }
      }
    }
  }
}

TEST(GpuDrafts, AsManyAsPay) {
  const auto plain = DraftAnswers(kMtpModel, OnGpu(DraftKind::kNone));
  for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kMtp}) {
    Drafting setup = OnGpu(kind);
    setup.always = false;
    EXPECT_EQ(DraftAnswers(kMtpModel, setup), plain) << static_cast<int>(kind);
  }
}

constexpr size_t kCompared = 40;  // near the end a step planned ahead drafts less

// The first tokens of five answers where drafts are accepted by lot.
std::vector<std::vector<int32_t>> Drafted(Drafting setup, float accept) {
  setup.accept_fixed = accept;
  setup.max_seqs = 5;
  DraftingModel opened(kMtpModel, setup);
  std::vector<std::vector<DraftAnswer>> answers(5);
  for (int32_t i = 0; i < 5; ++i) {
    Request request;
    request.prompt_ids = DraftPrompt(5 + 10 * i, i);
    request.max_tokens = 60;
    request.ignore_eos = true;
    opened.Submit(std::move(request), &answers[static_cast<size_t>(i)]);
  }
  opened.Run();
  std::vector<std::vector<int32_t>> begins;
  for (const auto& answer : answers) begins.push_back({answer[0].tokens.begin(), answer[0].tokens.begin() + kCompared});
  return begins;
}

// One answer in five may meet a tie that falls otherwise.
void ExpectNearlyAllTheSame(const std::vector<std::vector<int32_t>>& got, const std::vector<std::vector<int32_t>>& want) {
  int same = 0;
  std::string parted;
  for (size_t i = 0; i < want.size(); ++i) {
    const auto at = std::mismatch(want[i].begin(), want[i].end(), got[i].begin(), got[i].end()).first - want[i].begin();
    same += at == kCompared;
    parted += ' ';
    parted += std::to_string(at);
  }
  EXPECT_GE(same, 4) << "the same up to tokens" << parted;
}

// With all drafts taken, or half of them, answers are what the layer drafts, and that is what it drafts on the CPU: whatever
// it read, went back over, or read late.
TEST(GpuDrafts, TheMtpLayerIsTheCpus) {
  for (const float accept : {1.0f, 0.5f}) {
    const auto want = Drafted({.kind = DraftKind::kMtp, .max_drafts = 3}, accept);
    for (const bool graphs : {true, false}) {
      for (const int32_t depth : {0, 1}) {
        Drafting setup = OnGpu(DraftKind::kMtp, 3);
        setup.gpu_graphs = graphs;
        setup.gpu_depth = depth;
        SCOPED_TRACE(testing::Message() << "accepted " << accept << (graphs ? ", graphs" : ", ops") << ", depth " << depth);
        ExpectNearlyAllTheSame(Drafted(setup, accept), want);
      }
    }
  }
  Drafting of_few = OnGpu(DraftKind::kMtp, 3);
  of_few.head_tokens = 100;
  SCOPED_TRACE("drafts of 100 tokens");
  ExpectNearlyAllTheSame(Drafted(of_few, 1), Drafted({.kind = DraftKind::kMtp, .max_drafts = 3, .head_tokens = 100}, 1));
}

// What an engine clears before it begins does not come late, when the card has others' work to do first. (Draft tables were
// cleared after they had been written.)
TEST(GpuDrafts, ABusyCardChangesNothing) {
  const auto want = Drafted({.kind = DraftKind::kMtp, .max_drafts = 3}, 1);
  const auto backend = LoadCudaBackend("");
  ASSERT_TRUE(backend.ok()) << backend.status().ToString();
  const CudaBackend& cuda = **backend;
  auto memory = CudaBuffer::Allocate(&cuda, int64_t{1} << 30);
  ASSERT_TRUE(memory.ok()) << memory.status().ToString();
  std::atomic<bool> ended = false;
  std::thread others([&] {  // 5 ms or more of the null stream's work are always waiting
    void* done[2] = {};
    for (void*& event : done) EXPECT_EQ(cuda.event_create(false, &event), nullptr);
    for (int at = 0; !ended; at ^= 1) {
      for (int i = 0; i < 16; ++i) EXPECT_EQ(cuda.fill(memory->data(), 0, memory->size(), nullptr), nullptr);
      EXPECT_EQ(cuda.event_record(done[at], nullptr), nullptr);
      EXPECT_EQ(cuda.event_synchronize(done[at ^ 1]), nullptr);
    }
    EXPECT_EQ(cuda.stream_synchronize(nullptr), nullptr);
    for (void* event : done) EXPECT_EQ(cuda.event_destroy(event), nullptr);
  });
  const auto got = Drafted(OnGpu(DraftKind::kMtp, 3), 1);
  ended = true;
  others.join();
  ExpectNearlyAllTheSame(got, want);
}

TEST(GpuDrafts, PreemptionChangesNothing) {
  const auto plain = DraftAnswers(kMtpModel, OnGpu(DraftKind::kNone));
  for (const bool swap : {false, true}) {
    for (const DraftKind kind : {DraftKind::kNgram, DraftKind::kMtp}) {
      Drafting setup = OnGpu(kind);
      setup.kv_tokens = 150;
      setup.swap = swap;
      EngineStats stats;
      EXPECT_EQ(DraftAnswers(kMtpModel, setup, &stats), plain) << static_cast<int>(kind) << (swap ? ", swapped" : ", computed again");
      EXPECT_GT(stats.preemptions, 0);
      EXPECT_GT(stats.draft_tokens, 0);
    }
  }
}

TEST(GpuDrafts, OnlyVerifiedTokensAreCached) {
  ExpectOnlyVerifiedTokensCached(kMtpModel, OnGpu(DraftKind::kMtp), OnGpu(DraftKind::kNone));
}

// And log-probabilities with it.
TEST(GpuDrafts, StopStringsEndInsideDrafts) {
  for (const bool graphs : {true, false}) {
    for (const int32_t depth : {1, 0}) {
      Drafting ngram = OnGpu(DraftKind::kNgram);
      ngram.gpu_graphs = graphs;
      ngram.gpu_depth = depth;
      ExpectStopStringsEndInsideDrafts("llama", ngram);
      Drafting mtp = ngram;
      mtp.kind = DraftKind::kMtp;
      mtp.accept_fixed = 1;
      ExpectStopStringsEndInsideDrafts(kMtpModel, mtp);
    }
  }
}

TEST(GpuDrafts, AFixedAcceptance) {
  for (const bool graphs : {true, false}) {
    Drafting setup = OnGpu(DraftKind::kMtp, 2);
    setup.accept_fixed = 0.7f;
    setup.gpu_graphs = graphs;
    DraftingModel opened(kMtpModel, setup);
    ExpectAFixedAcceptance(&opened);
    if (graphs) {
      EXPECT_GT(opened.bundle().cuda_runtime->num_graph_launches(), 70);
    }
  }
}

TEST(GpuDrafts, ADraftModelIsRefused) {
  ModelOptions options;
  options.path = LoadGoldenCase("llama")->folder;
  options.context = 64;
  options.device = "cuda";
  options.drafts = DraftKind::kModel;
  options.draft_path = options.path;
  EXPECT_NE(OpenModel(options).status().message().find("a draft model runs on the CPU only"), std::string::npos);
}

}  // namespace
}  // namespace cachalot
