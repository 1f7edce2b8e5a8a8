#include "tokenizer/tokenizer_json.h"

#include <cmath>

#include "formats/text.h"

namespace cachalot {
namespace {

using nlohmann::json;

constexpr int64_t kMaxBytes = int64_t{128} << 20;
constexpr int kMaxDepth = 32;
constexpr int64_t kMaxValues = 500'000;  // in the rest

// Takes the parser's events. Returning false stops the parser, with the reason in error().
class Reader final : public nlohmann::json_sax<json> {
 public:
  explicit Reader(std::string_view place) : place_(place) {}

  TokenizerJson& result() { return result_; }
  const Status& error() const { return error_; }

  bool null() override { return Scalar(nullptr); }
  bool boolean(bool value) override { return Scalar(value); }
  bool number_integer(number_integer_t value) override { return Number(value); }
  bool number_unsigned(number_unsigned_t value) override {
    return Number(value > INT64_MAX ? INT64_MAX : static_cast<int64_t>(value));
  }
  bool number_float(number_float_t value, const string_t&) override {
    return skip_depth_ == 0 && where_ == kScoredToken ? Score(value) : Scalar(value);
  }
  bool binary(binary_t&) override { return Fail("a binary value"); }

  bool string(string_t& value) override {
    if (skip_depth_ > 0) return true;
    if (where_ == kMerges) return SplitMerge(value);
    if (where_ == kMergePair) {
      if (++pair_size_ > 2) return Fail("a merge of more than two tokens");
      auto& merge = result_.merges.back();
      (pair_size_ == 1 ? merge.left_size : merge.right_size) = static_cast<uint32_t>(value.size());
      result_.arena.append(value);
      return true;
    }
    if (where_ == kScoredToken && pair_size_ == 0) {
      ++pair_size_;
      result_.vocab.push_back({Here(), static_cast<uint32_t>(value.size()), static_cast<int64_t>(result_.vocab.size())});
      result_.arena.append(value);
      return true;
    }
    return Scalar(std::move(value));
  }

  bool key(string_t& key) override {
    if (skip_depth_ > 0) return true;
    if (where_ == kVocab && !result_.has_vocab_list) {
      result_.vocab.push_back({Here(), static_cast<uint32_t>(key.size()), -1});
      result_.arena.append(key);
      return true;
    }
    if (depth_ == 1) in_model_ = key == "model";
    if (depth_ == 2 && in_model_) next_ = key == "vocab" ? kVocab : key == "merges" ? kMerges : kRest;
    member_ = &open_.back()->get_ref<json::object_t&>()[std::move(key)];
    return true;
  }

  bool start_object(std::size_t) override {
    if (skip_depth_ > 0) return Skip();
    if (where_ == kRest && next_ == kVocab) {
      if (!result_.vocab.empty()) return Fail("model.vocab is given twice");
      return Enter(kVocab);
    }
    if (where_ != kRest || next_ == kMerges) return Fail("an object where a token or merge should be");
    return Open(json::value_t::object);
  }

  bool start_array(std::size_t) override {
    if (skip_depth_ > 0) return Skip();
    if (where_ == kRest && next_ == kVocab) {
      if (!result_.vocab.empty()) return Fail("model.vocab is given twice");
      result_.has_vocab_list = true;
      return Enter(kVocab);
    }
    if (where_ == kVocab && result_.has_vocab_list) {
      pair_size_ = 0;
      return Enter(kScoredToken);
    }
    if (where_ == kRest && next_ == kMerges) {
      if (!result_.merges.empty()) return Fail("model.merges is given twice");
      return Enter(kMerges);
    }
    if (where_ == kMerges) {
      pair_size_ = 0;
      result_.merges.push_back({Here(), 0, 0});
      return Enter(kMergePair);
    }
    if (where_ != kRest) return Fail("an array where a token or merge should be");
    return Open(json::value_t::array);
  }

  bool end_object() override { return Leave(); }
  bool end_array() override { return Leave(); }

  bool parse_error(std::size_t position, const std::string&, const json::exception& exception) override {
    std::string_view what = exception.what();
    if (const size_t end = what.find("] "); end != std::string_view::npos) what.remove_prefix(end + 2);
    error_ = Corrupt("{}: no valid JSON at byte {}: {}", place_, position, Printable(what, 200));
    return false;
  }

 private:
  enum Where { kRest, kVocab, kScoredToken, kMerges, kMergePair };

  bool Fail(std::string_view what) {
    error_ = Corrupt("{}: {}", place_, what);
    return false;
  }
  uint32_t Here() const { return static_cast<uint32_t>(result_.arena.size()); }

  bool Enter(Where where) {
    where_ = where;
    next_ = kRest;
    ++depth_;
    return true;
  }

  bool Skip() {
    next_ = kRest;
    if (depth_ + ++skip_depth_ > kMaxDepth) return Fail("JSON nested too deep");
    return true;
  }

  bool Open(json::value_t type) {
    if (depth_ >= kMaxDepth) return Fail(fmt::format("JSON nested more than {} deep", kMaxDepth));
    json* container = Add(json(type));
    if (container == nullptr) return false;
    open_.push_back(container);
    ++depth_;
    return true;
  }

  bool Leave() {
    if (skip_depth_ > 0) {
      --skip_depth_;
      return true;
    }
    --depth_;
    if (where_ == kMergePair) {
      where_ = kMerges;
      return pair_size_ == 2 || Fail("a merge of fewer than two tokens");
    }
    if (where_ == kScoredToken) {
      where_ = kVocab;
      return pair_size_ == 2 || Fail("model.vocab: no text with its score");
    }
    if (where_ != kRest) {
      where_ = kRest;
      return true;
    }
    open_.pop_back();
    return true;
  }

  bool Number(int64_t value) {
    if (skip_depth_ > 0) return true;
    if (where_ == kScoredToken) return Score(static_cast<double>(value));
    if (where_ != kVocab || result_.has_vocab_list) return Scalar(value);
    result_.vocab.back().id = value;
    return true;
  }

  bool Score(double value) {
    if (++pair_size_ != 2 || !(std::abs(value) < 1e30)) return Fail("model.vocab: no text with its score");
    result_.scores.push_back(static_cast<float>(value));
    return true;
  }

  bool Scalar(json value) {
    if (skip_depth_ > 0) return true;
    if (where_ == kScoredToken || (where_ == kVocab && result_.has_vocab_list)) {
      return Fail("model.vocab: no text with its score");
    }
    if (where_ == kVocab) {
      return Fail(fmt::format("model.vocab: the id of '{}' is no integer",
                              Printable(result_.Text(result_.vocab.back()))));
    }
    if (where_ != kRest) return Fail("model.merges: not two texts");
    return Add(std::move(value)) != nullptr;
  }

  json* Add(json value) {
    next_ = kRest;
    if (++num_values_ > kMaxValues) {
      Fail(fmt::format("more than {} JSON values besides the vocabulary", kMaxValues));
      return nullptr;
    }
    if (open_.empty()) {
      result_.rest = std::move(value);
      return &result_.rest;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->get_ref<json::array_t&>();
      array.push_back(std::move(value));
      return &array.back();
    }
    *member_ = std::move(value);
    return member_;
  }

  bool SplitMerge(std::string_view text) {
    const size_t space = text.find(' ', 1);
    if (space == std::string_view::npos || space + 1 >= text.size()) {
      return Fail(fmt::format("model.merges: '{}' is not two tokens with a space between", Printable(text)));
    }
    result_.merges.push_back(
        {Here(), static_cast<uint32_t>(space), static_cast<uint32_t>(text.size() - space - 1)});
    result_.arena.append(text.substr(0, space));
    result_.arena.append(text.substr(space + 1));
    return true;
  }

  std::string_view place_;
  TokenizerJson result_;
  Status error_;
  Where where_ = kRest;
  Where next_ = kRest;  // what the value of the last key is
  bool in_model_ = false;
  int depth_ = 0;
  int skip_depth_ = 0;
  int pair_size_ = 0;
  int64_t num_values_ = 0;
  std::vector<json*> open_;  // an open container is not moved: its parent only grows after it is closed
  json* member_ = nullptr;   // where the value of the last key goes
};

}  // namespace

Result<TokenizerJson> ParseTokenizerJson(std::string_view text, std::string_view place) {
  if (static_cast<int64_t>(text.size()) > kMaxBytes) {
    return Corrupt("{}: {} bytes of JSON, the limit is {}", place, text.size(), kMaxBytes);
  }
  Reader reader(place);
  try {
    if (!json::sax_parse(text, &reader)) return reader.error();
  } catch (const std::exception& exception) {  // out of memory
    return Exhausted("{}: parsing {} bytes of JSON failed: {}", place, text.size(), exception.what());
  }
  return std::move(reader.result());
}

}  // namespace cachalot
