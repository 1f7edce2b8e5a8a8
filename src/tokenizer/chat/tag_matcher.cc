#include "tokenizer/chat/tag_matcher.h"

#include <utility>

namespace cachalot {

TagMatcher::TagMatcher(std::vector<std::string> tags) {
  for (std::string& text : tags) {
    Tag tag;
    tag.fallback.assign(text.size() + 1, 0);
    for (size_t n = 1, border = 0; n < text.size(); ++n) {
      while (border > 0 && text[n] != text[border]) border = tag.fallback[border];
      if (text[n] == text[border]) ++border;
      tag.fallback[n + 1] = border;
    }
    tag.text = std::move(text);
    tags_.push_back(std::move(tag));
  }
}

std::string TagMatcher::TakeHeld() {
  for (Tag& tag : tags_) tag.matched = 0;
  return std::exchange(held_, "");
}

}  // namespace cachalot
