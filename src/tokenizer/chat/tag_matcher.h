// TagMatcher: finds fixed texts (tags) in a text that arrives in pieces. What may still become a tag is held
// back: never more than the longest tag. Of tags that end at the same byte the longest counts.
// Invariant: what comes out, tags included, is the text that went in, whatever the pieces were.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cachalot {

class TagMatcher {
 public:
  // None may be empty.
  explicit TagMatcher(std::vector<std::string> tags);

  // on_text(std::string_view) for text that is no tag, on_tag(size_t, std::string_view) for a tag.
  template <typename OnText, typename OnTag>
  void Push(char c, const OnText& on_text, const OnTag& on_tag) {
    if (tags_.empty()) return on_text(std::string_view(&c, 1));
    held_ += c;
    size_t longest = 0;  // of the tags that may be under way
    size_t found = tags_.size();
    for (size_t i = 0; i < tags_.size(); ++i) {
      Tag& tag = tags_[i];
      while (tag.matched > 0 && tag.text[tag.matched] != c) tag.matched = tag.fallback[tag.matched];
      if (tag.text[tag.matched] == c) ++tag.matched;
      if (tag.matched > longest) longest = tag.matched;
      if (tag.matched == tag.text.size() && (found == tags_.size() || tag.text.size() > tags_[found].text.size()))
        found = i;
    }
    if (found < tags_.size()) longest = tags_[found].text.size();
    const std::string text = held_.substr(0, held_.size() - longest);
    held_.erase(0, text.size());
    if (!text.empty()) on_text(text);
    if (found == tags_.size()) return;
    const std::string tag = TakeHeld();
    on_tag(found, tag);
  }
  // The text ends, or goes elsewhere: what was held back is no tag.
  std::string TakeHeld();

 private:
  struct Tag {
    std::string text;
    std::vector<size_t> fallback;  // [n]: the longest proper prefix of text[0, n] that is also a suffix of it
    size_t matched = 0;
  };

  std::vector<Tag> tags_;
  std::string held_;
};

}  // namespace cachalot
