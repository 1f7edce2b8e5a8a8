#include "engine/request_stream.h"

#include <utility>

namespace cachalot {
namespace {

constexpr size_t kUsualTextBytes = 256;  // of one step; longer texts make the buffer grow

}  // namespace

RequestStream::RequestStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings, TextOptions options,
                             ReasoningLimits reasoning, std::vector<int32_t> shown_ids)
    : matcher_(std::move(stop_strings), options.include_stop), guide_(std::move(reasoning)), options_(options) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(*tokenizer, options.skip_special, std::move(shown_ids));
  text_.reserve(kUsualTextBytes);
}

void RequestStream::Push(int32_t token) {
  if (!decoder_ || stopped_) return;
  const std::string piece = decoder_->Push(token);
  guide_.Push(piece);
  if (num_tokens_++ < options_.min_tokens)
    text_ += piece;
  else
    stopped_ = matcher_.Push(piece, &text_);
}

void RequestStream::Finish() {
  if (!decoder_ || stopped_) return;
  stopped_ = matcher_.Push(decoder_->Finish(), &text_);
  if (!stopped_) matcher_.Finish(&text_);
}

}  // namespace cachalot
