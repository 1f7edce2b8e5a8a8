// Downloads from a server that behaves like a hub, and from one that does not.
#include "hub/hub_download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/fault.h"
#include "base/file.h"
#include "hub/fake_hub.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::string Bytes(size_t count, uint32_t seed = 1) {
  std::string bytes(count, '\0');
  for (char& c : bytes) c = static_cast<char>((seed = seed * 1664525u + 1013904223u) >> 24);
  return bytes;
}

class HubDownloadTest : public testing::Test {
 protected:
  void SetUp() override {
    cache_ = testing::TempDir() + "hub_download_" + testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(cache_);
    fs::create_directories(cache_);
    hub_.AddFile("x-Q4_K_M.gguf", Bytes(700'000));
    hub_.AddFile("x-Q8_0.gguf", Bytes(1000, 2));
    hub_.AddFile("README.md", "words", /*lfs=*/false);
  }
  void TearDown() override { fs::remove_all(cache_); }

  Result<HubModel> Pull(const std::string& name = "org/model", const std::string& file = "") {
    HubOptions options;
    options.cache = cache_;
    options.offline = offline_;
    options.server.endpoint = endpoint_.empty() ? hub_.url() : endpoint_;
    options.server.token = token_;
    options.server.first_pause_ms = 1;
    options.server.longest_pause_ms = 3000;
    options.server.max_attempts = 4;
    options.server.http.stall_timeout_ms = stall_timeout_ms_;
    return PullModel(ParseHubModelName(name).value(), file, options, [this](const HubProgress& progress) {
      last_ = progress;
      if (!progress.note.empty()) notes_.push_back(progress.note);
      return !stop_;
    });
  }
  void ExpectWhole(const Result<HubModel>& model, const std::string& file = "x-Q4_K_M.gguf") {
    ASSERT_TRUE(model.ok()) << model.status().ToString();
    EXPECT_EQ(ReadTextFile(model->path, 1 << 20).value(), hub_.content(file));
  }
  std::string Part() const {
    return cache_ + "/models--org--model/blobs/" + FakeHub::Digest(hub_.content("x-Q4_K_M.gguf"), true) + ".incomplete";
  }

  FakeHub hub_;
  std::string cache_, endpoint_, token_;
  bool offline_ = false, stop_ = false;
  int stall_timeout_ms_ = 20'000;
  HubProgress last_;
  std::vector<std::string> notes_;
};

TEST_F(HubDownloadTest, FetchesOnceAndWorksOffline) {
  const auto model = Pull();
  ExpectWhole(model);
  EXPECT_EQ(model->path, cache_ + "/models--org--model/snapshots/" + FakeHub::kCommit + "/x-Q4_K_M.gguf");
  EXPECT_EQ(model->fetched, 700'000);
  EXPECT_EQ(last_.done, 700'000);
  EXPECT_EQ(last_.bytes, 700'000);
  EXPECT_FALSE(FileExists(Part()));
  EXPECT_EQ(Pull()->fetched, 0);
  EXPECT_EQ(hub_.num_resolves(), 1);
  offline_ = true;
  const size_t asks = hub_.asks().size();
  ExpectWhole(Pull());
  EXPECT_EQ(Pull("org/model:Q8_0").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(hub_.asks().size(), asks);
}

TEST_F(HubDownloadTest, QuantsFilesPartsAndPages) {
  hub_.AddFile("big/y-Q2_K-00001-of-00002.gguf", Bytes(100, 3));
  hub_.AddFile("big/y-Q2_K-00002-of-00002.gguf", Bytes(200, 4));
  hub_.SetPageSize(2);
  ExpectWhole(Pull("org/model:q8_0"), "x-Q8_0.gguf");
  ExpectWhole(Pull("org/model", "x-Q8_0.gguf"), "x-Q8_0.gguf");
  const auto split = Pull("org/model:Q2_K");
  ExpectWhole(split, "big/y-Q2_K-00001-of-00002.gguf");
  EXPECT_EQ(split->bytes, 300);
  EXPECT_TRUE(FileExists(fs::path(split->path).parent_path().string() + "/y-Q2_K-00002-of-00002.gguf"));
  EXPECT_EQ(Pull("org/other").status().code(), StatusCode::kNotFound);
}

// Small files are named by git's SHA-1.
TEST_F(HubDownloadTest, Folder) {
  FakeHub hub;
  hub.AddFile("config.json", "{}", false);
  hub.AddFile("tokenizer.json", "{\"a\": 1}", false);
  hub.AddFile("model.safetensors", Bytes(5000));
  hub.AddFile("empty.json", "", false);
  endpoint_ = hub.url();
  const auto model = Pull();
  ASSERT_TRUE(model.ok()) << model.status().ToString();
  EXPECT_TRUE(IsDirectory(model->path));
  EXPECT_EQ(ReadTextFile(model->path + "/tokenizer.json", 100).value(), "{\"a\": 1}");
  EXPECT_EQ(ReadTextFile(model->path + "/empty.json", 100).value(), "");
}

TEST_F(HubDownloadTest, GoesOnWhereItStopped) {
  const std::string& content = hub_.content("x-Q4_K_M.gguf");
  // The connection breaks twice in the middle.
  hub_.SetHook([&](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index < 0 || index > 1) return std::nullopt;
    FakeAnswer answer = hub_.Content(content, ask.range_begin);
    answer.bytes.resize(answer.bytes.size() - (index == 0 ? 500'000 : 100'000));
    return answer;
  });
  ExpectWhole(Pull());
  EXPECT_EQ(hub_.num_resolves(), 3);
  const auto asks = hub_.asks();
  EXPECT_GT(asks.back().range_begin, 500'000);
}

TEST_F(HubDownloadTest, GoesOnAfterAnotherRun) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  const std::string& content = hub_.content("x-Q4_K_M.gguf");
  ASSERT_TRUE(WriteFileAtomically(Part(), content.substr(0, 600'000)).ok());
  const auto model = Pull();
  ExpectWhole(model);
  EXPECT_EQ(model->fetched, 100'000);
}

// What was left has rotten: once more from the start.
TEST_F(HubDownloadTest, AWrongBeginningIsFetchedAnew) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  for (const size_t size : {size_t{600'000}, size_t{700'000}, size_t{800'000}}) {
    ASSERT_TRUE(WriteFileAtomically(Part(), Bytes(size, 9)).ok());
    const auto model = Pull();
    ExpectWhole(model);
    fs::remove(fs::canonical(model->path));
  }
}

TEST_F(HubDownloadTest, ServersWithoutRanges) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  ASSERT_TRUE(WriteFileAtomically(Part(), Bytes(600'000, 9)).ok());
  hub_.SetHook([&](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return hub_.Content(hub_.content("x-Q4_K_M.gguf"), 0);
  });
  const auto model = Pull();
  ExpectWhole(model);
  EXPECT_EQ(model->fetched, 700'000);
}

TEST_F(HubDownloadTest, WrongRanges) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  const std::string content = hub_.content("x-Q4_K_M.gguf");
  ASSERT_TRUE(WriteFileAtomically(Part(), content.substr(0, 600'000)).ok());
  const int before = hub_.num_resolves();
  hub_.SetHook([&, before](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    switch (index - before) {
      case 0:  // from elsewhere
        return FakeText(206, content.substr(500'000), "Content-Range: bytes 500000-699999/700000\r\n");
      case 1:  // of another file
        return FakeText(206, content.substr(600'000), "Content-Range: bytes 600000-699999/800000\r\n");
      case 2:  // none said
        return FakeText(206, content.substr(600'000));
      default:
        return std::nullopt;
    }
  });
  const auto model = Pull();
  ExpectWhole(model);
  EXPECT_EQ(model->fetched, 100'000);
  hub_.SetHook([&](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeText(206, "abc", "Content-Range: bytes nonsense\r\n");
  });
  fs::remove(fs::canonical(model->path));
  EXPECT_EQ(Pull().status().code(), StatusCode::kCorrupt);
}

// A server that sends all when asked for the rest, and one that always begins elsewhere: once from the start.
TEST_F(HubDownloadTest, ServersThatBeginElsewhere) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  const std::string content = hub_.content("x-Q4_K_M.gguf");
  for (const int64_t begin : {0, 5}) {
    ASSERT_TRUE(WriteFileAtomically(Part(), content.substr(0, 600'000)).ok());
    notes_.clear();
    hub_.SetHook([&, begin](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
      if (index < 0 || ask.range_begin == 0) return std::nullopt;
      return FakeText(206, content.substr(static_cast<size_t>(begin)),
                      fmt::format("Content-Range: bytes {}-699999/700000\r\n", begin));
    });
    const auto model = Pull();
    ExpectWhole(model);
    EXPECT_EQ(model->fetched, 700'000);
    if (begin == 0) {
      EXPECT_THAT(notes_, testing::IsEmpty());
    } else {
      EXPECT_THAT(notes_.back(), testing::HasSubstr("asked for bytes 600000-699999, got 5 of 700000; fetching it from the start"));
    }
    fs::remove(fs::canonical(model->path));
  }
}

TEST_F(HubDownloadTest, RangeNotSatisfiable) {
  ASSERT_TRUE(Pull("org/model:Q8_0").ok());
  ASSERT_TRUE(WriteFileAtomically(Part(), Bytes(600'000, 9)).ok());
  hub_.SetHook([](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index < 0 || ask.range_begin == 0) return std::nullopt;
    return FakeText(416, "", "Content-Range: bytes */700000\r\n");
  });
  ExpectWhole(Pull());
}

TEST_F(HubDownloadTest, WrongLengths) {
  hub_.SetHook([](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeAnswer{index % 2 == 0 ? "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999\r\n\r\nabc"
                                     : "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999999\r\n\r\nabc"};
  });
  EXPECT_EQ(Pull().status().code(), StatusCode::kCorrupt);
  // No length, and more bytes than the file has.
  hub_.SetHook([](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeAnswer{"HTTP/1.1 200 OK\r\n\r\n" + Bytes(700'100)};
  });
  EXPECT_THAT(Pull().status().message(), HasSubstr("more bytes than the file has"));
}

TEST_F(HubDownloadTest, WrongChecksum) {
  hub_.AddFile("z-F16.gguf", "good bytes", true, std::string(64, '0'));
  const auto model = Pull("org/model:F16");
  EXPECT_EQ(model.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(model.status().message(), HasSubstr("checksum"));
  const std::string blob = cache_ + "/models--org--model/blobs/" + std::string(64, '0');
  EXPECT_FALSE(FileExists(blob));
  EXPECT_FALSE(FileExists(blob + ".incomplete"));
}

TEST_F(HubDownloadTest, FullServersAndRateLimits) {
  hub_.SetHook([](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index == 0) return FakeText(429, "slow down", "Retry-After: 0\r\n");
    if (index == 1) return FakeText(503, "no");
    if (index == 2) return FakeText(500, "no");
    return std::nullopt;
  });
  ExpectWhole(Pull());
  EXPECT_EQ(hub_.num_resolves(), 4);
  hub_.SetHook([](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeText(429, "slow down", "Retry-After: 3600\r\n");
  });
  EXPECT_EQ(Pull("org/model:Q8_0").status().code(), StatusCode::kExhausted);
  hub_.SetHook([](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeText(502, "no");
  });
  const int before = hub_.num_resolves();
  EXPECT_THAT(Pull("org/model:Q8_0").status().message(), HasSubstr("502"));
  EXPECT_EQ(hub_.num_resolves() - before, 4);
}

TEST_F(HubDownloadTest, Refusals) {
  int status = 401;
  hub_.SetHook([&](const FakeAsk&, int) -> std::optional<FakeAnswer> { return FakeText(status, ""); });
  EXPECT_THAT(Pull().status().message(), HasSubstr("HF_TOKEN"));
  status = 403;
  EXPECT_THAT(Pull().status().message(), HasSubstr("access is refused"));
  status = 404;
  EXPECT_EQ(Pull().status().code(), StatusCode::kNotFound);
  EXPECT_EQ(hub_.asks().size(), 3u);
}

// The files lie on another server, which must not see the token.
TEST_F(HubDownloadTest, TokensStayWhereTheyBelong) {
  FakeHub cdn;
  cdn.AddFile("x-Q4_K_M.gguf", hub_.content("x-Q4_K_M.gguf"));
  hub_.SetHook([&](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index < 0) return std::nullopt;
    return FakeText(302, "", "Location: " + cdn.url() + ask.target + "\r\n");
  });
  token_ = "hf_secret";
  ExpectWhole(Pull());
  for (const FakeAsk& ask : hub_.asks()) EXPECT_EQ(ask.headers.at("authorization"), "Bearer hf_secret") << ask.target;
  ASSERT_FALSE(cdn.asks().empty());
  for (const FakeAsk& ask : cdn.asks()) EXPECT_FALSE(ask.headers.contains("authorization")) << ask.target;
  token_ = "bad\ntoken";
  EXPECT_EQ(Pull().status().code(), StatusCode::kInvalidArgument);
}

TEST_F(HubDownloadTest, Redirects) {
  hub_.SetHook([](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index != 0) return std::nullopt;
    return FakeText(307, "", "Location: " + ask.target + "\r\n");  // relative
  });
  ExpectWhole(Pull());
  for (const char* location : {"/org/model/resolve/loop", "file:///etc/passwd", "ftp://x/y", "http://", "http://a b/"}) {
    hub_.SetHook([&](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
      if (index < 0) return std::nullopt;
      return FakeText(302, "", std::string("Location: ") + location + "\r\n");
    });
    EXPECT_FALSE(Pull("org/model:Q8_0").ok()) << location;
  }
}

TEST_F(HubDownloadTest, SlowServers) {
  stall_timeout_ms_ = 1000;
  // Silence in the middle of the first answer: the connection is given up and the rest asked for.
  hub_.SetHook([&](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index != 0) return std::nullopt;
    FakeAnswer answer = hub_.Content(hub_.content("x-Q4_K_M.gguf"), ask.range_begin);
    answer.bytes.resize(300'000);
    answer.pause_ms = 20'000;
    return answer;
  });
  const auto model = Pull();
  ExpectWhole(model);
  EXPECT_EQ(model->fetched, 700'000);
  EXPECT_EQ(hub_.num_resolves(), 2);
  EXPECT_THAT(notes_, testing::Contains(testing::HasSubstr("trying again (2 of 4)")));
}

TEST_F(HubDownloadTest, SilentServersAreSpokenOf) {
  stall_timeout_ms_ = 1000;
  int asked = 0;
  hub_.SetHook([&asked](const FakeAsk&, int index) -> std::optional<FakeAnswer> {
    if (asked++ > 0 && index != 0) return std::nullopt;  // the first question of all, and the file's first
    return FakeAnswer{.bytes = "", .pause_ms = index == 0 ? 20'000 : 0};
  });
  ExpectWhole(Pull());
  const std::string line = "no answer from " + hub_.url().substr(7) + ", trying again (2 of 4)";
  EXPECT_THAT(notes_, testing::Contains(line));
}

// Files often lie on another host than the list of them.
TEST_F(HubDownloadTest, ASilentServerBehindARedirectIsNamed) {
  stall_timeout_ms_ = 1000;
  FakeHub other;
  other.SetHook([](const FakeAsk&, int) { return FakeAnswer{.bytes = "", .pause_ms = 20'000}; });
  hub_.SetHook([&other](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index != 0) return std::nullopt;
    return FakeText(302, "", "Location: " + other.url() + ask.target + "\r\n");
  });
  ExpectWhole(Pull());
  EXPECT_THAT(notes_, testing::ElementsAre("no answer from " + other.url().substr(7) + ", trying again (2 of 4)"));
}

TEST_F(HubDownloadTest, StoppingKeepsWhatIsThere) {
  hub_.SetHook([&](const FakeAsk& ask, int index) -> std::optional<FakeAnswer> {
    if (index != 0) return std::nullopt;
    FakeAnswer answer = hub_.Content(hub_.content("x-Q4_K_M.gguf"), ask.range_begin);
    answer.bytes.resize(300'000);
    answer.pause_ms = 20'000;
    return answer;
  });
  HubOptions options;
  options.cache = cache_;
  options.server.endpoint = hub_.url();
  const auto model = PullModel(ParseHubModelName("org/model").value(), "", options,
                               [](const HubProgress& progress) { return progress.file_done < 200'000; });
  EXPECT_EQ(model.status().code(), StatusCode::kCancelled);
  EXPECT_GT(fs::file_size(Part()), 100'000u);
  ExpectWhole(Pull());
  stop_ = true;
  EXPECT_EQ(Pull("org/model:Q8_0").status().code(), StatusCode::kCancelled);
}

TEST_F(HubDownloadTest, FullDisk) {
  {
    const ScopedFault full("file.write", 1, 1000);
    const auto model = Pull();
    EXPECT_EQ(model.status().code(), StatusCode::kExhausted);
    EXPECT_THAT(model.status().message(), HasSubstr("disk is full"));
  }
  EXPECT_GT(fs::file_size(Part()), 0u);
  ExpectWhole(Pull());
}

TEST_F(HubDownloadTest, HostileLists) {
  const std::string good = FakeHub::Digest("x", true);
  std::string list;
  hub_.SetHook([&](const FakeAsk& ask, int) -> std::optional<FakeAnswer> {
    if (ask.target.find("/tree/") == std::string::npos) return std::nullopt;
    return FakeText(200, list);
  });
  const auto entry = [&](const std::string& path, const std::string& oid, const std::string& size) {
    return fmt::format(R"([{{"type":"file","path":"{}","oid":"{}","size":{},"lfs":{{"oid":"{}","size":{}}}}}])", path, oid,
                       size, oid, size);
  };
  for (const char* path : {"../../x-Q4_K_M.gguf", "/x-Q4_K_M.gguf", "a/../../../x-Q4_K_M.gguf"}) {
    list = entry(path, good, "5");
    EXPECT_EQ(Pull().status().code(), StatusCode::kNotFound) << path;  // left out
  }
  for (const std::string& oid : {std::string("../../../x"), std::string(64, 'g'), std::string(40, 'a'), std::string()}) {
    list = entry("x-Q4_K_M.gguf", oid, "5");
    EXPECT_EQ(Pull().status().code(), StatusCode::kCorrupt) << oid;
  }
  for (const char* size : {"-1", "1.5", "\\\"5\\\"", "99999999999999999999999"}) {
    list = entry("x-Q4_K_M.gguf", good, size);
    EXPECT_EQ(Pull().ok(), false) << size;
  }
  list = entry("x-Q4_K_M.gguf", good, "4000000000000000000");
  EXPECT_EQ(Pull().status().code(), StatusCode::kCorrupt);
  list = entry("x-Q4_K_M.gguf", good, "1000000000000000000");
  EXPECT_THAT(Pull().status().message(), HasSubstr("the disk has"));
  list = "{}";
  EXPECT_EQ(Pull().status().code(), StatusCode::kCorrupt);
  list = std::string(200, '[');
  EXPECT_FALSE(Pull().ok());
}

TEST_F(HubDownloadTest, WithoutANetwork) {
  ExpectWhole(Pull());
  endpoint_ = "http://127.0.0.1:1";
  ExpectWhole(Pull());
  ASSERT_FALSE(notes_.empty());
  EXPECT_THAT(notes_.back(), HasSubstr("the copy in the cache is taken"));
  EXPECT_THAT(Pull("org/new").status().message(), HasSubstr("127.0.0.1:1"));
}

TEST_F(HubDownloadTest, TwoAtOnceFetchOnce) {
  std::thread other([&] {
    HubOptions options;
    options.cache = cache_;
    options.server.endpoint = hub_.url();
    EXPECT_TRUE(PullModel(ParseHubModelName("org/model").value(), "", options, {}).ok());
  });
  ExpectWhole(Pull());
  other.join();
  EXPECT_EQ(hub_.num_resolves(), 1);
}

}  // namespace
}  // namespace cachalot
