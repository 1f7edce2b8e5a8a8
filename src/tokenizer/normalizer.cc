#include "tokenizer/normalizer.h"

#include <utf8proc.h>

#include <algorithm>

#include "tokenizer/utf8.h"

namespace cachalot {
namespace {

// Collects a rewritten text and, if wanted, where its bytes came from.
class Rewriter {
 public:
  Rewriter(std::string_view in, bool with_origin) : in_(in), with_origin_(with_origin) {}

  // in[begin, end) as it is.
  void Keep(size_t begin, size_t end) {
    if (out_.empty()) out_.reserve(in_.size());
    out_.append(in_, begin, end - begin);
    if (!with_origin_) return;
    for (size_t i = begin; i < end; ++i) origin_.push_back(static_cast<int64_t>(i));
  }
  // `text` instead of something that begins at in[begin].
  void Put(std::string_view text, size_t begin) {
    out_.append(text);
    if (with_origin_) origin_.insert(origin_.end(), text.size(), static_cast<int64_t>(begin));
    changed_ = true;
  }
  // The rest of the text, from in[begin]. Nothing is copied when nothing was changed.
  void Finish(size_t begin) {
    if (changed_) Keep(begin, in_.size());
  }

  bool changed() const { return changed_; }
  std::string TakeText() { return std::move(out_); }
  TextOrigin TakeOrigin() {
    origin_.push_back(static_cast<int64_t>(in_.size()));
    return std::move(origin_);
  }

 private:
  std::string_view in_;
  bool with_origin_;
  bool changed_ = false;
  std::string out_;
  TextOrigin origin_;
};

// In every normal form the character stays as it is and does not combine with what comes before it. (Not the
// whole truth, but most of every real text.)
bool IsInert(int32_t c, NormalForm form) {
  if (c < 0x80) return true;
  if (c >= 0x4E00 && c <= 0x9FFF) return true;  // CJK ideographs
  if (form != NormalForm::kNfc) return false;
  return c < 0x300 || (c >= 0x3041 && c <= 0x3096) || (c >= 0x30A1 && c <= 0x30FA) ||
         (c >= 0xAC00 && c <= 0xD7A3);
}

utf8proc_option_t DecomposeOptions(NormalForm form) {
  const bool compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

// One valid stretch of text in normal form. (utf8proc_decompose would do it all, but orders marks in
// quadratic time.)
std::string NormalizeStretch(std::string_view text, NormalForm form) {
  const utf8proc_option_t options = DecomposeOptions(form);
  std::vector<utf8proc_int32_t> chars;
  chars.reserve(text.size() + 1);
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = NextUtf8Char(text.substr(pos));
    pos += static_cast<size_t>(c.size);
    utf8proc_int32_t decomposed[32];  // the longest decomposition has 18 characters
    int boundary_class = 0;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char(c.code_point, decomposed, std::size(decomposed), options, &boundary_class);
    if (n >= 0 && n <= static_cast<utf8proc_ssize_t>(std::size(decomposed))) {
      chars.insert(chars.end(), decomposed, decomposed + n);
    } else {
      chars.push_back(c.code_point);
    }
  }
  const auto combining_class = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  for (auto begin = chars.begin(); begin != chars.end();) {
    begin = std::find_if(begin, chars.end(), [&](auto c) { return combining_class(c) != 0; });
    const auto end = std::find_if(begin, chars.end(), [&](auto c) { return combining_class(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
  utf8proc_ssize_t count = static_cast<utf8proc_ssize_t>(chars.size());
  if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
    count = utf8proc_normalize_utf32(chars.data(), count,
                                     static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) AppendUtf8(chars[static_cast<size_t>(i)], &out);
  return out;
}

bool IsContinuation(char c) {
  return (static_cast<uint8_t>(c) & 0xC0) == 0x80;
}

// Bytes of the whole characters that both begin with.
size_t CommonPrefix(std::string_view a, std::string_view b) {
  size_t n = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (n > 0 && ((n < a.size() && IsContinuation(a[n])) || (n < b.size() && IsContinuation(b[n])))) --n;
  return n;
}

// Bytes of the whole characters that both end with.
size_t CommonSuffix(std::string_view a, std::string_view b) {
  size_t n =
      static_cast<size_t>(std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend()).first - a.rbegin());
  while (n > 0 && IsContinuation(a[a.size() - n])) --n;
  return n;
}

void ApplyForm(std::string_view text, NormalForm form, Rewriter* rewriter) {
  size_t kept = 0;        // everything before is with the rewriter
  size_t last_inert = 0;  // where the last inert character began
  size_t pos = 0;
  while (pos < text.size()) {
    Utf8Char c = NextUtf8Char(text.substr(pos));
    if (c.code_point == kInvalidCodePoint || IsInert(c.code_point, form)) {
      last_inert = pos;
      pos += static_cast<size_t>(c.size);
      continue;
    }
    // A stretch that may change: from the inert character in front, which may take marks, to the next one.
    const bool invalid_before =
        pos > 0 && NextUtf8Char(text.substr(last_inert)).code_point == kInvalidCodePoint;
    const size_t begin = pos == 0 || invalid_before ? pos : last_inert;
    size_t end = pos;
    while (end < text.size()) {
      c = NextUtf8Char(text.substr(end));
      if (c.code_point == kInvalidCodePoint || IsInert(c.code_point, form)) break;
      end += static_cast<size_t>(c.size);
    }
    const std::string_view stretch = text.substr(begin, end - begin);
    const std::string normal = NormalizeStretch(stretch, form);
    if (normal != stretch) {
      // What did not change at its ends keeps its exact origin: a control token in front must not seem to
      // overlap.
      const size_t head = CommonPrefix(stretch, normal);
      const size_t tail = CommonSuffix(stretch.substr(head), std::string_view(normal).substr(head));
      rewriter->Keep(kept, begin + head);
      rewriter->Put(std::string_view(normal).substr(head, normal.size() - head - tail), begin + head);
      kept = end - tail;
    }
    pos = last_inert = end;
  }
  rewriter->Finish(kept);
}

void ApplyReplace(std::string_view text, std::string_view from, std::string_view to, Rewriter* rewriter) {
  size_t kept = 0;
  while (!from.empty()) {
    const size_t found = text.find(from, kept);
    if (found == std::string_view::npos) break;
    rewriter->Keep(kept, found);
    rewriter->Put(to, found);
    kept = found + from.size();
  }
  rewriter->Finish(kept);
}

void ApplyCharsmap(std::string_view text, const Charsmap& map, Rewriter* rewriter) {
  size_t kept = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Charsmap::Match match = map.Longest(text.substr(pos));
    if (match.size == 0) {
      pos += static_cast<size_t>(NextUtf8Char(text.substr(pos)).size);
      continue;
    }
    if (match.replacement != text.substr(pos, match.size)) {
      rewriter->Keep(kept, pos);
      rewriter->Put(match.replacement, pos);
      kept = pos + match.size;
    }
    pos += match.size;
  }
  rewriter->Finish(kept);
}

void ApplyGraphemeCharsmap(std::string_view text, const Charsmap& map, Rewriter* rewriter) {
  size_t kept = 0;
  const auto replace = [&](size_t begin, size_t size) {
    const Charsmap::Match match = map.Shortest(text.substr(begin, size));
    if (match.size == 0) return false;
    if (match.replacement != text.substr(begin, size)) {
      rewriter->Keep(kept, begin);
      rewriter->Put(match.replacement, begin);
      kept = begin + size;
    }
    return true;
  };
  for (size_t begin = 0; begin < text.size();) {
    // The grapheme's end; bytes that are no UTF-8 stand alone.
    Utf8Char c = NextUtf8Char(text.substr(begin));
    size_t end = begin + static_cast<size_t>(c.size);
    utf8proc_int32_t state = 0;
    while (end < text.size() && c.code_point != kInvalidCodePoint) {
      const Utf8Char next = NextUtf8Char(text.substr(end));
      if (next.code_point == kInvalidCodePoint ||
          utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.code_point),
                                           static_cast<utf8proc_int32_t>(next.code_point), &state)) {
        break;
      }
      end += static_cast<size_t>(next.size);
      c = next;
    }
    if (end - begin >= 6 || !replace(begin, end - begin)) {
      for (size_t pos = begin; pos < end;) {
        const auto size = static_cast<size_t>(NextUtf8Char(text.substr(pos)).size);
        replace(pos, size);
        pos += size;
      }
    }
    begin = end;
  }
  rewriter->Finish(kept);
}

void ApplySpaceRuns(std::string_view text, std::string_view to, Rewriter* rewriter) {
  size_t kept = 0;
  for (size_t pos = text.find("  "); pos != std::string_view::npos; pos = text.find("  ", kept)) {
    rewriter->Keep(kept, pos);
    rewriter->Put(to, pos);
    kept = std::min(text.find_first_not_of(' ', pos), text.size());
  }
  rewriter->Finish(kept);
}

bool IsWhiteSpace(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

void ApplyStrip(std::string_view text, bool left, bool right, Rewriter* rewriter) {
  size_t begin = text.size(), end = 0;
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Char c = NextUtf8Char(text.substr(pos));
    const size_t next = pos + static_cast<size_t>(c.size);
    if (!IsWhiteSpace(static_cast<uint32_t>(c.code_point))) {
      begin = std::min(begin, pos);
      end = next;
    }
    pos = next;
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  end = std::max(begin, end);
  if (begin > 0) rewriter->Put("", 0);
  rewriter->Keep(begin, end);
  if (end < text.size()) rewriter->Put("", end);
  rewriter->Finish(text.size());
}

void ApplySqueeze(std::string_view text, Rewriter* rewriter) {
  size_t kept = 0;
  for (size_t pos = 0; pos < text.size();) {
    if (text[pos] != ' ') {
      ++pos;
      continue;
    }
    const size_t end = std::min(text.find_first_not_of(' ', pos), text.size());
    const size_t wanted = pos == 0 || end == text.size() ? 0 : 1;
    if (end - pos > wanted) {
      rewriter->Keep(kept, pos + wanted);
      rewriter->Put("", pos);
      kept = end;
    }
    pos = end;
  }
  rewriter->Finish(kept);
}

}  // namespace

std::string_view Normalizer::Apply(std::string_view text, std::string* storage, TextOrigin* origin) const {
  if (origin != nullptr) origin->clear();
  for (const Step& step : steps_) {
    Rewriter rewriter(text, origin != nullptr);
    switch (step.kind) {
      case Step::kForm:
        ApplyForm(text, step.form, &rewriter);
        break;
      case Step::kReplace:
        ApplyReplace(text, step.from, step.to, &rewriter);
        break;
      case Step::kPrepend:
        if (!text.empty()) rewriter.Put(step.to, 0);
        rewriter.Finish(0);
        break;
      case Step::kCharsmap:
        ApplyCharsmap(text, *step.charsmap, &rewriter);
        break;
      case Step::kGraphemeCharsmap:
        ApplyGraphemeCharsmap(text, *step.charsmap, &rewriter);
        break;
      case Step::kSpaceRuns:
        ApplySpaceRuns(text, step.to, &rewriter);
        break;
      case Step::kStrip:
        ApplyStrip(text, !step.from.empty(), !step.to.empty(), &rewriter);
        break;
      case Step::kSqueeze:
        ApplySqueeze(text, &rewriter);
        break;
    }
    if (!rewriter.changed()) continue;
    if (origin != nullptr) {
      TextOrigin steps_origin = rewriter.TakeOrigin();
      if (!origin->empty()) {
        for (int64_t& at : steps_origin) at = (*origin)[static_cast<size_t>(at)];
      }
      *origin = std::move(steps_origin);
    }
    *storage = rewriter.TakeText();
    text = *storage;
  }
  return text;
}

}  // namespace cachalot
