// RequestStream: the text of one request, from its tokens, with stop strings found and cut off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/call_guide.h"
#include "engine/reasoning_guide.h"
#include "engine/stop_matcher.h"
#include "tokenizer/tokenizer.h"

namespace cachalot {

struct TextOptions {
  int32_t min_tokens = 0;     // what the first so many bring is not looked through for stop strings
  bool include_stop = false;  // a stop string is part of the text
  bool skip_special = true;   // special tokens are not
};

struct Request;

class RequestStream {
 public:
  // Without a tokenizer the text is always empty.
  RequestStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings, TextOptions options = {},
                ReasoningLimits reasoning = {}, std::vector<int32_t> shown_ids = {}, CallRule call = {});

  // Begins a new piece of text.
  void BeginStep() { text_.clear(); }
  void Push(int32_t token);
  // A sampled token, is_stop: one that ends the answer. False: it may not stand here; forced() says what must.
  bool Take(int32_t token, bool is_stop);
  // Tokens that must follow here; the answer then goes on behind them. Empty: none.
  std::span<const int32_t> forced() const { return call_end_.empty() ? guide_.forced() : std::span<const int32_t>(call_end_); }
  // They are pushed, up to the one that completes a stop string; returns how many.
  size_t PushForced(std::span<const int32_t> ids);
  // No more tokens: gives out what was held back, unless a stop string ended the text.
  void Finish();

  // What was completed since BeginStep.
  std::string_view text() const { return text_; }
  // A stop string is complete; the text ends before it.
  bool stopped() const { return stopped_; }
  const ReasoningGuide& guide() const { return guide_; }

 private:
  void Add(const std::string& piece);
  bool Refuse();

  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  StopMatcher matcher_;
  ReasoningGuide guide_;
  CallGuide call_;
  std::vector<int32_t> call_end_;  // what completes it, due
  TextOptions options_;
  int32_t num_tokens_ = 0;
  std::string text_;
  bool stopped_ = false;
};

// Of one of its choices.
RequestStream MakeStream(const Request& request, const Tokenizer* tokenizer);

}  // namespace cachalot
