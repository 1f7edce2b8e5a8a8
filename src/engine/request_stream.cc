#include "engine/request_stream.h"

#include <utility>

namespace cachalot {
namespace {

constexpr size_t kUsualTextBytes = 256;  // of one step; longer texts make the buffer grow

}  // namespace

RequestStream::RequestStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings,
                             ReasoningLimits reasoning, std::vector<int32_t> shown_ids)
    : matcher_(std::move(stop_strings)), guide_(std::move(reasoning)) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(*tokenizer, /*skip_special=*/true, std::move(shown_ids));
  text_.reserve(kUsualTextBytes);
}

void RequestStream::Push(int32_t token) {
  if (!decoder_ || stopped_) return;
  const std::string text = decoder_->Push(token);
  guide_.Push(text);
  stopped_ = matcher_.Push(text, &text_);
}

void RequestStream::Finish() {
  if (!decoder_ || stopped_) return;
  stopped_ = matcher_.Push(decoder_->Finish(), &text_);
  if (!stopped_) matcher_.Finish(&text_);
}

}  // namespace cachalot
