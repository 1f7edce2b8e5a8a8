#include "engine/request_stream.h"

#include <utility>

namespace cachalot {
namespace {

constexpr size_t kUsualTextBytes = 256;  // of one step; longer texts make the buffer grow

}  // namespace

RequestStream::RequestStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings)
    : matcher_(std::move(stop_strings)) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(*tokenizer);
  text_.reserve(kUsualTextBytes);
}

void RequestStream::Push(int32_t token) {
  if (decoder_ && !stopped_) stopped_ = matcher_.Push(decoder_->Push(token), &text_);
}

void RequestStream::Finish() {
  if (!decoder_ || stopped_) return;
  stopped_ = matcher_.Push(decoder_->Finish(), &text_);
  if (!stopped_) matcher_.Finish(&text_);
}

}  // namespace cachalot
