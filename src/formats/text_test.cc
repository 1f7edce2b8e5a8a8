#include "formats/text.h"

#include <gtest/gtest.h>

#include <limits>

namespace cachalot {
namespace {

TEST(Text, PrintableIsOneLineOfUtf8) {
  EXPECT_EQ(Printable("plain"), "plain");
  EXPECT_EQ(Printable("ä€😀"), "ä€😀");
  EXPECT_EQ(Printable("a\nb\t\x7f\x1b[31m"), "a\\x0ab\\x09\\x7f\\x1b[31m");
  EXPECT_EQ(Printable("\xc2\x85"), "\\xc2\\x85");  // NEL, a control character
  EXPECT_EQ(Printable("\x80\xff\xc3"), "\\x80\\xff\\xc3");
  EXPECT_EQ(Printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(Printable(std::string(100, 'a'), 10), std::string(10, 'a') + "…");
  EXPECT_EQ(Printable("äää", 3), "ää…");
}

TEST(Text, IsUtf8) {
  for (const char* good :
       {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << Printable(good);
  }
  for (const char* bad : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xc2", "\xe2\x82", "a\xff"}) {
    EXPECT_FALSE(IsUtf8(bad)) << Printable(bad);
  }
}

TEST(Text, Ranges) {
  EXPECT_EQ(IntRange(1, 64), "an integer in 1..64");
  EXPECT_EQ(IntRange(1, INT64_MAX), "an integer of at least 1");
  EXPECT_EQ(IntRange(INT64_MIN, INT64_MAX), "an integer");
  constexpr double kMax = std::numeric_limits<double>::max();
  EXPECT_EQ(FloatRange(0, 1), "a number in 0..1");
  EXPECT_EQ(FloatRange(0.5, kMax), "a number of at least 0.5");
  EXPECT_EQ(FloatRange(-kMax, kMax), "a finite number");
}

}  // namespace
}  // namespace cachalot
