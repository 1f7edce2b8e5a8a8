// Editing without a terminal: keys from bytes, the buffer's operations, and where text lands on a screen.
#include "cli/line_editor.h"

#include <gtest/gtest.h>

#include <vector>

namespace cachalot {
namespace {

std::vector<Key> Keys(const std::string& bytes, std::string* texts = nullptr) {
  size_t at = 0;
  KeyDecoder decoder([&](bool) { return at < bytes.size() ? static_cast<unsigned char>(bytes[at++]) : -1; });
  std::vector<Key> keys;
  while (at < bytes.size()) {
    std::string text;
    keys.push_back(decoder.Read(&text));
    if (texts != nullptr) *texts += text;
  }
  return keys;
}

TEST(KeyDecoderTest, SequencesOfCommonTerminals) {
  using enum Key;
  std::string text;
  EXPECT_EQ(Keys("aü日🐋\r", &text), (std::vector<Key>{kText, kText, kText, kText, kEnter}));
  EXPECT_EQ(text, "aü日🐋");
  EXPECT_EQ(Keys("\x1b[A\x1b[B\x1b[C\x1b[D\x1bOH\x1b[4~\x1b[3~"),
            (std::vector<Key>{kUp, kDown, kRight, kLeft, kHome, kEnd, kDelete}));
  EXPECT_EQ(Keys("\x1b[1;5C\x1b[1;5D\x1b"
                 "b\x1b"
                 "f\x1b\r"),
            (std::vector<Key>{kWordRight, kWordLeft, kWordLeft, kWordRight, kNewline}));
  EXPECT_EQ(Keys("\x03\x04\x01\x05\x0b\x15\x17\x19\x7f\x0c"),
            (std::vector<Key>{kInterrupt, kEndOfFile, kHome, kEnd, kCutToEnd, kCutToHome, kCutWord, kPaste,
                              kBackspace, kClearScreen}));
  EXPECT_EQ(Keys("\x1b[200~"), std::vector<Key>{kPasteBegin});
  EXPECT_EQ(Keys("\x1b[99~\x1b"), (std::vector<Key>{kNone, kNone}));
}

TEST(KeyDecoderTest, PasteKeepsItsLines) {
  const std::string bytes = "one\rtwo\r\nthree\x1b[31m\x1b[201~rest";
  size_t at = 0;
  KeyDecoder decoder([&](bool) { return at < bytes.size() ? static_cast<unsigned char>(bytes[at++]) : -1; });
  EXPECT_EQ(decoder.ReadPaste(), "one\ntwo\nthree\x1b[31m");
  EXPECT_EQ(bytes.substr(at), "rest");
}

TEST(EditBufferTest, MovesByWholeCharacters) {
  EditBuffer buffer;
  buffer.Insert("aé日");
  buffer.Insert("e\u0301");  // e and a combining accent: one character
  buffer.Backspace();
  EXPECT_EQ(buffer.text(), "aé日");
  buffer.Left();
  buffer.Left();
  EXPECT_EQ(buffer.cursor(), 1u);
  buffer.Delete();
  EXPECT_EQ(buffer.text(), "a日");
  buffer.End();
  EXPECT_FALSE(buffer.Right());
  buffer.Home();
  EXPECT_FALSE(buffer.Left());
  buffer.Backspace();
  buffer.Set("\xff\xc3");  // broken bytes count one each
  buffer.Backspace();
  EXPECT_EQ(buffer.text(), "\xff");
}

TEST(EditBufferTest, WordsAndCuts) {
  EditBuffer buffer;
  buffer.Set("one zwei-über  three");
  buffer.CutWordLeft();
  EXPECT_EQ(buffer.text(), "one zwei-über  ");
  buffer.WordLeft();
  EXPECT_EQ(buffer.cursor(), 9u);
  buffer.CutToEnd();
  buffer.Home();
  buffer.Paste();
  EXPECT_EQ(buffer.text(), "über  one zwei-");
  buffer.WordRight();
  buffer.CutToHome();
  EXPECT_EQ(buffer.text(), " zwei-");
}

TEST(EditBufferTest, HistoryAndLines) {
  EditBuffer buffer;
  buffer.Remember("first");
  buffer.Remember("second");
  buffer.Remember("second");
  buffer.Clear();
  buffer.Insert("typing");
  buffer.Previous();
  EXPECT_EQ(buffer.text(), "second");
  buffer.Previous();
  buffer.Previous();
  EXPECT_EQ(buffer.text(), "first");
  buffer.Next();
  buffer.Next();
  EXPECT_EQ(buffer.text(), "typing");
  buffer.Next();
  EXPECT_EQ(buffer.text(), "typing");
  buffer.Set("ab\ncdef");
  buffer.Previous();
  EXPECT_EQ(buffer.cursor(), 2u) << "a shorter line above: its end";
  buffer.Next();
  EXPECT_EQ(buffer.cursor(), 5u);
  buffer.Home();
  EXPECT_EQ(buffer.cursor(), 3u);
}

TEST(ScreenPlaceTest, WrapsAndWideCharacters) {
  EXPECT_EQ(PlaceAfter("abcdef", {}, 4).row, 1);
  EXPECT_EQ(PlaceAfter("abcdef", {}, 4).column, 2);
  EXPECT_EQ(PlaceAfter("abc日", {}, 4).row, 1);
  EXPECT_EQ(PlaceAfter("a\nbc", {}, 10).column, 2);
  EXPECT_EQ(PlaceAfter("\x1b[1;32m> \x1b[0m", {}, 10).column, 2);
  EXPECT_EQ(PlaceAfter("e\u0301", {}, 10).column, 1);
}

}  // namespace
}  // namespace cachalot
