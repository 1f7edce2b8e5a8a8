#include "server/http/http_message.h"

#include <gtest/gtest.h>

namespace cachalot {
namespace {

TEST(HttpMessage, Targets) {
  struct {
    const char* target;
    bool ok;
    const char* path;
    const char* query;
  } const cases[] = {
      {"/a/b?x=1&y=%20", true, "/a/b", "x=1&y=%20"}, {"/%41%2f", true, "/A/", ""}, {"http://host:1/p", true, "/p", ""},
      {"https://host", true, "/", ""},               {"/%4", false, "", ""},       {"/%zz", false, "", ""},
      {"*", false, "", ""},                          {"", false, "", ""},          {"a", false, "", ""},
  };
  for (const auto& c : cases) {
    std::string path, query;
    ASSERT_EQ(SplitTarget(c.target, &path, &query), c.ok) << c.target;
    if (!c.ok) continue;
    EXPECT_EQ(path, c.path);
    EXPECT_EQ(query, c.query);
  }
}

TEST(HttpMessage, Keys) {
  EXPECT_TRUE(EqualInConstantTime("secret", "secret"));
  EXPECT_FALSE(EqualInConstantTime("secret", "secreT"));
  EXPECT_FALSE(EqualInConstantTime("secret", "secre"));
  EXPECT_FALSE(EqualInConstantTime("secret", ""));
  EXPECT_FALSE(EqualInConstantTime("secret", "secretsecret"));
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer  abc"), "abc");
  EXPECT_EQ(BearerToken("Basic abc"), "");
  EXPECT_EQ(BearerToken("Bearer"), "");
}

}  // namespace
}  // namespace cachalot
