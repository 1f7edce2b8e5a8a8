#include "hub/hub_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cachalot {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<HubFile> Files(const std::vector<std::string>& paths) {
  std::vector<HubFile> files;
  for (const std::string& path : paths) files.push_back({.path = path, .size = 1});
  return files;
}

std::vector<std::string> Chosen(const std::vector<std::string>& paths, const std::string& quant,
                                const std::string& file = "") {
  const auto choice = ChooseHubFiles(Files(paths), {.repo = "o/r", .revision = "main", .quant = quant}, file);
  if (!choice.ok()) return {choice.status().message()};
  std::vector<std::string> chosen = {choice->model};
  for (const HubFile& chosen_file : choice->files) chosen.push_back(chosen_file.path);
  return chosen;
}

TEST(HubChoice, NamesOfModels) {
  const auto name = ParseHubModelName("org/model.v2-GGUF:q8_0");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->repo, "org/model.v2-GGUF");
  EXPECT_EQ(name->quant, "q8_0");
  EXPECT_EQ(name->revision, "main");
  EXPECT_EQ(ParseHubModelName("o/r@refs/pr/1:Q4_0")->revision, "refs/pr/1");
  EXPECT_EQ(ParseHubModelName("o/r:latest")->quant, "");
  for (const char* bad : {"", "r", "/r", "o/", "o/r/x", "../r", "o/..", "o/r:", "o/r:../x", "o/r@../x", "o--x/r",
                          "o r/x", "o/r\n", "o/-r", ".o/r", "o/r:a b"}) {
    EXPECT_FALSE(ParseHubModelName(bad).ok()) << bad;
  }
}

TEST(HubChoice, TheQuantThatIsMeant) {
  const std::vector<std::string> repo = {"a-BF16.gguf", "a-IQ4_XS.gguf", "a-Q4_K_M.gguf", "a-Q8_0.gguf",
                                         "mmproj-Q4_K_M.gguf", "README.md"};
  EXPECT_THAT(Chosen(repo, ""), ElementsAre("a-Q4_K_M.gguf", "a-Q4_K_M.gguf"));
  EXPECT_THAT(Chosen(repo, "q8_0"), ElementsAre("a-Q8_0.gguf", "a-Q8_0.gguf"));
  EXPECT_THAT(Chosen(repo, "bf16"), ElementsAre("a-BF16.gguf", "a-BF16.gguf"));
  EXPECT_THAT(Chosen(repo, "", "a-IQ4_XS.gguf"), ElementsAre("a-IQ4_XS.gguf", "a-IQ4_XS.gguf"));
  EXPECT_THAT(Chosen(repo, "Q3_K"), ElementsAre(HasSubstr("there are: a-BF16.gguf, a-IQ4_XS.gguf")));
  EXPECT_THAT(Chosen(repo, "Q4_K"), ElementsAre(HasSubstr("no GGUF file of Q4_K")));
  EXPECT_THAT(Chosen({"b.Q5_0.gguf", "b.Q8_0.gguf"}, ""), ElementsAre("b.Q8_0.gguf", "b.Q8_0.gguf"));
  EXPECT_THAT(Chosen({"b.gguf", "imatrix.gguf"}, ""), ElementsAre("b.gguf", "b.gguf"));
}

TEST(HubChoice, AllPartsOfASplit) {
  const std::vector<std::string> repo = {"Q4_K_M/x-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/x-Q4_K_M-00002-of-00002.gguf",
                                         "Q8_0/x-Q8_0-00001-of-00002.gguf"};
  EXPECT_THAT(Chosen(repo, ""), ElementsAre(repo[0], repo[0], repo[1]));
  EXPECT_THAT(Chosen(repo, "Q8_0"), ElementsAre(HasSubstr("00002-of-00002.gguf' is missing")));
}

TEST(HubChoice, FoldersWhereThereIsNoGguf) {
  EXPECT_THAT(Chosen({"README.md", "config.json", "consolidated.safetensors", "model.safetensors", "original/x.json",
                      "pytorch_model.bin", "tokenizer.json"},
                     ""),
              ElementsAre("", "config.json", "model.safetensors", "tokenizer.json"));
  EXPECT_THAT(Chosen({"README.md", "config.json"}, ""), ElementsAre(HasSubstr("neither a GGUF file nor a folder")));
}

TEST(HubChoice, HostileNames) {
  for (const char* bad : {"", "/etc/passwd", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\\b", "a\nb", ".."}) {
    EXPECT_FALSE(CheckHubPath(bad).ok()) << bad;
  }
  EXPECT_FALSE(CheckHubPath(std::string(300, 'a')).ok());
  for (const char* good : {"a", "a/b.c", "..a", "a..b/c", "ä b.gguf"}) EXPECT_TRUE(CheckHubPath(good).ok()) << good;
}

}  // namespace
}  // namespace cachalot
