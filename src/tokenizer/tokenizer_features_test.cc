// Every supported feature of tokenizer.json against the `tokenizers` package, on small tokenizers made for it
// (tools/make_tokenizer_goldens.py), and Unicode against Python and the package.
#include <gtest/gtest.h>

#include "tokenizer/normalizer.h"
#include "tokenizer/tokenizer_testing.h"
#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

using nlohmann::json;

TEST(Features, IdsAndTextsAsThePackage) {
  const json cases = TestData("cases");
  ASSERT_GT(cases.size(), 40u);
  for (const json& c : cases) {
    const TokenizerResult result = FromJson(c["tokenizer"]);
    ASSERT_TRUE(result.ok()) << c["name"] << ": " << result.status().ToString();
    const Tokenizer& tokenizer = **result;
    for (size_t i = 0; i < c["texts"].size(); ++i) {
      const auto text = c["texts"][i].get<std::string>();
      const auto ids = c["ids"][i].get<std::vector<int32_t>>();
      EXPECT_EQ(Ids(tokenizer, text), ids) << c["name"] << ": '" << text << "'";
      EXPECT_EQ(tokenizer.Decode(ids), c["decoded"][i].get<std::string>())
          << c["name"] << ": '" << text << "'";
      EXPECT_EQ(Ids(tokenizer, text, {.add_special = false, .parse_special = false}),
                c["ids_special_as_text"][i].get<std::vector<int32_t>>())
          << c["name"] << ": '" << text << "', special tokens as text";
    }
  }
}

TEST(Features, InvalidBytesAsPython) {
  const json unicode = TestData("unicode");
  for (const json& c : unicode["decoded"]) {
    const auto hex = c[0].get<std::string>();
    std::string bytes, whole, piecewise, pending;
    for (size_t i = 0; i < hex.size(); i += 2)
      bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    if (AppendReplacingInvalid(bytes, &whole) < bytes.size()) whole += kReplacementCharacter;
    EXPECT_EQ(whole, c[1].get<std::string>()) << hex;
    EXPECT_EQ(IsValidUtf8(bytes), whole == bytes) << hex;
    for (const char byte : bytes) {
      pending.push_back(byte);
      pending.erase(0, AppendReplacingInvalid(pending, &piecewise));
      EXPECT_TRUE(IsValidUtf8(piecewise));
      EXPECT_LE(pending.size(), 3u);
    }
    if (!pending.empty()) piecewise += kReplacementCharacter;
    EXPECT_EQ(piecewise, whole) << hex;
  }
}

TEST(Features, NormalFormsAsThePackage) {
  const json unicode = TestData("unicode");
  const std::pair<const char*, NormalForm> forms[] = {{"NFC", NormalForm::kNfc},
                                                      {"NFD", NormalForm::kNfd},
                                                      {"NFKC", NormalForm::kNfkc},
                                                      {"NFKD", NormalForm::kNfkd}};
  for (const auto& [name, form] : forms) {
    Normalizer normalizer;
    normalizer.AddForm(form);
    std::string all, all_expected;
    for (size_t i = 0; i < unicode["texts"].size(); ++i) {
      const auto text = unicode["texts"][i].get<std::string>();
      const auto expected = unicode["forms"][name][i].get<std::string>();
      std::string storage;
      TextOrigin origin;
      EXPECT_EQ(normalizer.Apply(text, &storage, &origin), expected) << name << " of " << text;
      // Origins ascend, and end where the text does.
      EXPECT_TRUE(std::is_sorted(origin.begin(), origin.end()));
      if (!origin.empty()) {
        EXPECT_EQ(origin.size(), expected.size() + 1);
        EXPECT_EQ(origin.back(), static_cast<int64_t>(text.size()));
      }
      all += text + "\xFF";  // nothing combines across a byte that is no character
      all_expected += expected + "\xFF";
    }
    std::string storage;
    EXPECT_EQ(normalizer.Apply(all, &storage, nullptr), all_expected) << name;
  }
}

}  // namespace
}  // namespace cachalot
