#include "engine/request_stream.h"

#include <utility>

#include "engine/engine.h"

namespace cachalot {
namespace {

constexpr size_t kUsualTextBytes = 256;  // of one step; longer texts make the buffer grow

}  // namespace

RequestStream::RequestStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings, TextOptions options,
                             ReasoningLimits reasoning, std::vector<int32_t> shown_ids, CallRule call)
    : tokenizer_(tokenizer), matcher_(std::move(stop_strings), options.include_stop), guide_(std::move(reasoning)),
      call_(std::move(call)), options_(options) {
  if (tokenizer == nullptr) return;
  decoder_.emplace(*tokenizer, options.skip_special, std::move(shown_ids));
  text_.reserve(kUsualTextBytes);
}

RequestStream MakeStream(const Request& request, const Tokenizer* tokenizer) {
  return RequestStream(tokenizer, request.stop_strings,
                       {.min_tokens = request.min_tokens, .include_stop = request.include_stop, .skip_special = request.skip_special},
                       request.reasoning, request.shown_ids, request.call);
}

void RequestStream::Push(int32_t token) {
  if (decoder_ && !stopped_) Add(decoder_->Push(token));
}

bool RequestStream::Take(int32_t token, bool is_stop) {
  const bool is_text = !is_stop || options_.include_stop;
  if (!decoder_ || stopped_ || !call_.open()) {
    if (is_text) Push(token);
    return true;
  }
  if (!is_stop) {
    StreamDecoder before = *decoder_;
    const std::string piece = decoder_->Push(token);
    const CallGuide call_before = call_;
    if (call_.Push(piece) && (!decoder_->pending() || call_.takes_text())) {
      Add(piece);
      return true;
    }
    call_ = call_before;
    decoder_ = std::move(before);
  }
  if (!Refuse()) return false;
  if (is_text) Push(token);
  return true;
}

// False: the call is completed here. What cannot be written in tokens cannot be forced: then the token stands.
bool RequestStream::Refuse() {
  const CallGuide::Ending ending = call_.Rest();
  const std::pair<int64_t, int64_t> name{0, static_cast<int64_t>(ending.name_bytes)};
  EncodeOptions options{.add_special = false};
  if (ending.name_bytes > 0) options.user_ranges = std::span(&name, 1);
  call_.End();
  Result<std::vector<int32_t>> ids = tokenizer_->Encode(ending.text, options);
  if (ids.ok()) call_end_ = std::move(*ids);
  return call_end_.empty();
}

size_t RequestStream::PushForced(std::span<const int32_t> ids) {
  const bool ends_call = !call_end_.empty();
  if (!ends_call) guide_.BeginForced();
  size_t num_pushed = 0;
  while (num_pushed < ids.size() && !stopped_) Push(ids[num_pushed++]);
  if (ends_call) call_end_.clear();
  else if (guide_.then_forced()) call_.Begin();
  return num_pushed;
}

void RequestStream::Add(const std::string& piece) {
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
