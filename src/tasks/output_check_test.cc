#include "tasks/output_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "tasks/dummy_model.h"
#include "tasks/quantize.h"

namespace cachalot {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OutputCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "cachalot_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/model");
    for (const char* name : {"in.txt", "model/config.json", "model/other", "blob"}) Put(name);
    fs::create_symlink(Path("blob"), Path("model/tokenizer.json"));
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Put(const std::string& name) { ASSERT_TRUE(WriteFileAtomically(Path(name), name).ok()); }
  std::string Error(const std::string& output, const std::vector<std::string>& inputs = {}) const {
    return CheckOutput("-o", output, inputs).message();
  }
  size_t NumEntries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  std::string folder_;
};

TEST_F(OutputCheckTest, AnInputIsRefusedByAnyName) {
  const std::vector<std::string> inputs = {"", Path("absent"), Path("in.txt")};
  fs::create_symlink("in.txt", Path("link"));
  fs::create_hard_link(Path("in.txt"), Path("hard"));
  for (const char* name : {"in.txt", "link", "hard", "model/../in.txt"}) {
    EXPECT_THAT(Error(Path(name), inputs), HasSubstr(fmt::format("-o {}: is a file that is read ({})", Path(name), Path("in.txt"))));
  }
  EXPECT_EQ(Error(Path("out.txt"), inputs), "");
  EXPECT_EQ(Error("/dev/null", {"/dev/null", Path("in.txt")}), "");
}

TEST_F(OutputCheckTest, PartsOfAModelsFolderAreRefused) {
  const std::vector<std::string> inputs = {Path("model")};
  fs::create_directory_symlink("model", Path("again"));
  for (const char* name : {"model/config.json", "again/config.json", "model/new.safetensors", "model/tokenizer.json", "blob"}) {
    EXPECT_THAT(Error(Path(name), inputs), HasSubstr("model's folder that is read")) << name;
  }
  EXPECT_EQ(Error(Path("model/out.gguf"), inputs), "");
  EXPECT_EQ(Error(Path("model/other"), inputs), "");
  EXPECT_EQ(Error(Path("out.json"), inputs), "");
}

TEST_F(OutputCheckTest, WhatCannotBeWrittenIsRefusedAtOnce) {
  EXPECT_THAT(Error(""), HasSubstr("no name"));
  EXPECT_THAT(Error(Path("model")), HasSubstr("is a folder"));
  EXPECT_THAT(Error(Path("new/")), HasSubstr("names a folder"));
  EXPECT_THAT(Error(Path("new/out")), HasSubstr("there is no folder " + Path("new")));
  EXPECT_THAT(Error(Path("in.txt/out")), HasSubstr("there is no folder"));
  EXPECT_THAT(Error(Path(std::string(250, 'x'))), HasSubstr("too long"));  // with the temporary file's ending
  EXPECT_EQ(Error(Path(std::string(200, 'x'))), "");
  fs::create_symlink("nowhere/out", Path("dangling"));
  EXPECT_THAT(Error(Path("dangling")), HasSubstr("there is no folder"));
  if (::geteuid() != 0) {  // whom nothing is forbidden
    fs::permissions(Path("model"), fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(Error(Path("model/out")), HasSubstr("Permission denied"));
    fs::permissions(Path("model"), fs::perms::owner_all);
  }
  EXPECT_EQ(NumEntries(), 4u);  // in.txt, model, blob, dangling: a look leaves nothing behind
}

TEST_F(OutputCheckTest, CommandsOfThisModuleAsk) {
  DummyRequest dummy{.spec = "tiny-llama", .type = "f32", .out = Path("m.gguf")};
  ASSERT_TRUE(WriteDummy(dummy, nullptr).ok());
  dummy.vocab = Path("m.gguf");
  EXPECT_THAT(WriteDummy(dummy, nullptr).status().message(), HasSubstr("is a file that is read"));
  ASSERT_TRUE(WriteDummy({.spec = "tiny-llama", .type = "f32", .out = Path("hf")}, nullptr).ok());
  EXPECT_THAT(WriteDummy({.spec = "tiny-llama", .vocab = Path("hf"), .out = Path("hf/.")}, nullptr).status().message(),
              HasSubstr("that the vocabulary is read from"));

  QuantizeRequest request{.in = Path("m.gguf"), .out = Path("m.gguf")};
  request.choices.recipe = *FindQuantizeRecipe("Q8_0");
  EXPECT_THAT(Quantize(request, nullptr).status().message(), HasSubstr("is a file that is read"));
  request = {.in = Path("hf"), .out = Path("hf/config.json"), .choices = request.choices};
  EXPECT_THAT(Quantize(request, nullptr).status().message(), HasSubstr("model's folder that is read"));
  EXPECT_THAT(PlanQuantize(request)->warnings, ::testing::IsEmpty());
  fs::remove(Path("hf/tokenizer.json"));
  EXPECT_THAT(PlanQuantize(request)->warnings, ::testing::ElementsAre(HasSubstr("no tokenizer")));
  request.importance = request.out = Path("in.txt");
  EXPECT_THAT(Quantize(request, nullptr).status().message(), HasSubstr("is a file that is read"));
}

}  // namespace
}  // namespace cachalot
