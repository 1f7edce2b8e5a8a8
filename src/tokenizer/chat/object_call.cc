#include "tokenizer/chat/object_call.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace cachalot {
namespace {

constexpr size_t kMaxWordBytes = 1024;
constexpr std::string_view kCallKeys[] = {"name", "arguments", "parameters", "type", "id"};

// Without markup around it: what is cut off behind another first key is more likely somebody's JSON, which is not to be lost.
bool BeginsLikeACall(std::string_view text) {
  const auto skip_space = [&text] { text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size())); };
  skip_space();
  text.remove_prefix(std::min<size_t>(text.size(), 1));  // the brace
  skip_space();
  const auto fits = [&text](std::string_view key) { return text.starts_with(key) || key.starts_with(text); };
  return fits("\"name\"") || fits("\"type\"");
}

}  // namespace

bool UnescapeJson(std::string_view raw, std::string* text) {
  std::string quoted = "\"";
  quoted += raw;
  quoted += '"';
  const nlohmann::json value = nlohmann::json::parse(quoted, nullptr, /*allow_exceptions=*/false);
  if (!value.is_string()) return false;
  *text = value.get<std::string>();
  return true;
}

void ObjectCall::Reset() {
  where_ = kBefore;
  scanner_ = {};
  held_.clear();
  word_.clear();
  early_.clear();
  escaped_ = begun_ = has_early_ = has_arguments_ = false;
  last_ = '\0';
}

std::string ObjectCall::TakeHeld() {
  return std::exchange(held_, "");
}

void ObjectCall::Keep(char c) {
  if (begun_) writer_->Markup(std::string_view(&c, 1));
}

ObjectCall::State ObjectCall::Push(char c) {
  if (!begun_) {
    held_ += c;
    if (held_.size() >= AnswerParser::kMaxHeldBytes) return State::kBroken;
  }
  const State state = Step(c);
  last_ = c;
  return state;
}

ObjectCall::State ObjectCall::Step(char c) {
  switch (where_) {
    case kBefore:
      if (c == '{') where_ = kBetween;
      else if (!IsJsonSpace(c)) return State::kBroken;
      return State::kOpen;
    case kBetween:
    case kAfterValue:
      if (c == '}') {
        Keep(c);
        if (!begun_) return State::kBroken;
        if (!has_arguments_) writer_->Arguments("{}", "");
        writer_->CallEnd();
        return State::kDone;
      }
      if (c == '"' && where_ == kBetween) {
        word_.clear();
        where_ = kKey;
      } else if (c == ',' && where_ == kAfterValue) {
        where_ = kBetween;
      } else if (!IsJsonSpace(c)) {
        return Broken(c);
      }
      break;
    case kKey:
    case kName:
      if (!escaped_ && c == '"') {
        if (where_ == kName) return EndName();
        where_ = kAfterKey;
        const auto* end = std::end(kCallKeys);
        if (known_ != nullptr && !begun_ && std::find(std::begin(kCallKeys), end, word_) == end) return State::kBroken;
        break;
      }
      escaped_ = !escaped_ && c == '\\';
      word_ += c;
      if (word_.size() > kMaxWordBytes) return Broken(c);
      break;
    case kAfterKey:
      if (c == ':') where_ = kBeforeValue;
      else if (!IsJsonSpace(c)) return Broken(c);
      break;
    case kBeforeValue:
      return IsJsonSpace(c) ? (Keep(c), State::kOpen) : BeginValue(c);
    case kArguments:
    case kSkipped:
      return InValue(c);
    case kRest:
      writer_->Arguments(std::string_view(&c, 1));
      return State::kOpen;
  }
  Keep(c);
  return State::kOpen;
}

ObjectCall::State ObjectCall::BeginValue(char c) {
  if (word_ == "name" && !begun_) {
    if (c != '"') return State::kBroken;
    word_.clear();
    where_ = kName;
    return State::kOpen;
  }
  const bool arguments = (word_ == "arguments" || word_ == "parameters") && !has_arguments_ && !has_early_;
  where_ = arguments ? kArguments : kSkipped;
  has_early_ = has_early_ || (arguments && !begun_);
  scanner_ = {};
  return InValue(c);
}

ObjectCall::State ObjectCall::InValue(char c) {
  const JsonScanner::Step step = scanner_.Push(c);
  if (step == JsonScanner::Step::kBad) return Broken(c);
  const bool inside = step != JsonScanner::Step::kEndsBefore;
  if (inside && where_ == kArguments) {
    has_arguments_ = begun_;
    if (begun_) writer_->Arguments(std::string_view(&c, 1));
    else early_ += c;
  } else if (inside) {
    Keep(c);
  }
  if (step == JsonScanner::Step::kMore) return State::kOpen;
  where_ = kAfterValue;
  scanner_ = {};
  return inside ? State::kOpen : Step(c);
}

ObjectCall::State ObjectCall::EndName() {
  std::string name;
  if (!UnescapeJson(word_, &name) || name.empty()) return State::kBroken;
  if (known_ != nullptr && std::find(known_->begin(), known_->end(), name) == known_->end()) return State::kBroken;
  begun_ = true;
  where_ = kAfterValue;
  if (has_early_) {
    writer_->CallName(name, held_);
    writer_->Arguments(early_, "");
    has_arguments_ = true;
  } else {
    const size_t before = held_.size() - word_.size() - 1;
    writer_->Markup(std::string_view(held_).substr(0, before));
    writer_->CallName(name, word_);
    Keep('"');
  }
  held_.clear();
  early_.clear();
  return State::kOpen;
}

// No JSON any more. Behind a name this is still what the call's arguments are, unless it has them.
ObjectCall::State ObjectCall::Broken(char c) {
  if (!begun_) return State::kBroken;
  if (has_arguments_) {
    writer_->CallEnd();
    return State::kBroken;
  }
  where_ = kRest;
  writer_->Arguments(std::string_view(&c, 1));
  return State::kOpen;
}

void ObjectCall::Close() {
  if (!begun_) return;
  if (!has_arguments_ && where_ != kRest) writer_->Arguments("{}", "");
  writer_->CallEnd();
}

void ObjectCall::Cut() {
  if (begun_ && has_arguments_ && where_ != kArguments) writer_->CallEnd();
}

bool ObjectCall::may_begin() const {
  if (begun_ || where_ == kBefore) return false;
  if (known_ != nullptr && !BeginsLikeACall(held_)) return false;
  if (where_ == kKey) {
    return known_ == nullptr ||
           std::any_of(std::begin(kCallKeys), std::end(kCallKeys), [this](std::string_view key) { return key.starts_with(word_); });
  }
  if (where_ != kName || known_ == nullptr) return true;
  // A character may be written as an escape, of which there may be a part.
  std::string name;
  for (size_t size = word_.size(); !UnescapeJson(std::string_view(word_).substr(0, size), &name); --size) {}
  return std::any_of(known_->begin(), known_->end(), [&](const std::string& each) { return each.starts_with(name); });
}

}  // namespace cachalot
