#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "tokenizer/utf8.h"

namespace cachalot {

Status PreTokenizer::Add(Step step) {
  if (steps_.size() >= kMaxSplits) return Unsupported("a pre-tokenizer of more than {} splits", kMaxSplits);
  steps_.push_back(std::move(step));
  return Status::Ok();
}

Status PreTokenizer::AddRegex(std::string_view pattern, SplitBehavior behavior, bool invert) {
  ASSIGN_OR_RETURN(SplitRegex regex, SplitRegex::Compile(pattern));
  return Add({std::make_unique<SplitRegex>(std::move(regex)), "", behavior, invert});
}

Status PreTokenizer::AddLiteral(std::string_view text, SplitBehavior behavior, bool invert) {
  return Add({nullptr, std::string(text), behavior, invert});
}

Status PreTokenizer::SetPrefix(std::string prefix, bool whole_text_only) {
  if (!steps_.empty() || !prefix_.empty()) return Unsupported("a prefix for each piece of a split text");
  prefix_ = std::move(prefix);
  prefix_whole_text_only_ = whole_text_only;
  return Status::Ok();
}

Status PreTokenizer::SetSpace(std::string replacement) {
  if (!steps_.empty() || !prefix_.empty() || !space_.empty()) {
    return Unsupported("spaces replaced in each piece of a split text");
  }
  space_ = std::move(replacement);
  return Status::Ok();
}

std::string_view PreTokenizer::Prepare(std::string_view text, bool at_start, std::string* storage) const {
  if (!space_.empty()) {
    std::string replaced;
    replaced.reserve(text.size() + text.size() / 2);
    for (const char c : text) {
      if (c == ' ') {
        replaced += space_;
      } else {
        replaced += c;
      }
    }
    *storage = std::move(replaced);
    text = *storage;
  }
  const bool wants_prefix = !prefix_.empty() && (at_start || !prefix_whole_text_only_);
  if (!wants_prefix || text.starts_with(prefix_)) return text;
  std::string prefixed = prefix_;
  prefixed.append(text);
  *storage = std::move(prefixed);
  return *storage;
}

// Matches and the text between them, in order, without gaps. An empty match is a span of its own, unless it
// adjoins the match before.
Status PreTokenizer::FindSpans(const Step& step, std::string_view text, RegexScratch* scratch,
                               std::vector<Span>* spans) {
  spans->clear();
  size_t done = 0;  // everything before is in spans
  size_t from = 0;
  bool any = false;
  while (from <= text.size()) {
    SplitRegex::Match match;
    if (step.regex != nullptr) {
      RETURN_IF_ERROR(step.regex->Find(text, from, scratch, &match));
    } else if (!step.literal.empty()) {
      match.begin = text.find(step.literal, from);
      match.found = match.begin != std::string_view::npos;
      match.end = match.begin + step.literal.size();
    }
    if (!match.found) break;
    if (match.begin == match.end && any && match.begin == done) {
      if (from >= text.size()) break;
      from += static_cast<size_t>(NextUtf8Char(text.substr(from)).size);
      continue;
    }
    if (match.begin > done) spans->push_back({done, match.begin, step.invert});
    spans->push_back({match.begin, match.end, !step.invert});
    done = from = match.end;
    any = true;
  }
  if (done < text.size()) spans->push_back({done, text.size(), step.invert});
  return Status::Ok();
}

// Joins spans as the behaviour says; kRemoved takes the matches away.
void PreTokenizer::Merge(SplitBehavior behavior, std::vector<Span>* spans) {
  if (behavior == SplitBehavior::kIsolated) return;
  if (behavior == SplitBehavior::kRemoved) {
    std::erase_if(*spans, [](const Span& span) { return span.match; });
    return;
  }
  const bool backwards = behavior == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(spans->begin(), spans->end());
  std::vector<Span> merged;
  bool last_match = false;
  for (const Span& span : *spans) {
    // Of a row of matches only the first joins its neighbour.
    const bool joins =
        behavior == SplitBehavior::kContiguous ? span.match == last_match : span.match && !last_match;
    last_match = span.match;
    if (!joins || merged.empty()) {
      merged.push_back(span);
    } else if (backwards) {
      merged.back().begin = span.begin;
    } else {
      merged.back().end = span.end;
    }
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  *spans = std::move(merged);
}

Status PreTokenizer::Split(std::string_view text, RegexScratch* scratch,
                           std::vector<TextPiece>* pieces) const {
  pieces->clear();
  if (!text.empty()) pieces->push_back({0, text.size()});
  std::vector<TextPiece> finer;
  std::vector<Span> spans;
  for (const Step& step : steps_) {
    finer.clear();
    finer.reserve(pieces->size());
    for (const TextPiece& piece : *pieces) {
      RETURN_IF_ERROR(FindSpans(step, text.substr(piece.begin, piece.end - piece.begin), scratch, &spans));
      Merge(step.behavior, &spans);
      for (const Span& span : spans) {
        if (span.end > span.begin) finer.push_back({piece.begin + span.begin, piece.begin + span.end});
      }
    }
    pieces->swap(finer);
  }
  return Status::Ok();
}

}  // namespace cachalot
