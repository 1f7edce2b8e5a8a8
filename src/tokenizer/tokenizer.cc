#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/utf8.h"

namespace cachalot {

Tokenizer::Tokenizer(std::unique_ptr<TokenizerImpl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, const EncodeOptions& options) const {
  return impl_->Encode(text, options);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.Push(id);
  return text + decoder.Finish();
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return impl_->TokenBytes(id);
}
bool Tokenizer::IsSpecial(int32_t id) const {
  return impl_->HasFlag(id, TokenizerImpl::kSpecial);
}
bool Tokenizer::IsControl(int32_t id) const {
  return impl_->HasFlag(id, TokenizerImpl::kControl);
}
int32_t Tokenizer::vocab_size() const {
  return impl_->vocab.size();
}
int32_t Tokenizer::bos_id() const {
  return impl_->bos_id;
}
int32_t Tokenizer::eos_id() const {
  return impl_->eos_id;
}
int32_t Tokenizer::pad_id() const {
  return impl_->pad_id;
}
std::span<const int32_t> Tokenizer::stop_ids() const {
  return impl_->stop_ids;
}

bool Tokenizer::add_bos() const {
  return impl_->bos_id >= 0 && !impl_->prefix_ids.empty() && impl_->prefix_ids.front() == impl_->bos_id;
}

std::optional<int32_t> Tokenizer::FindToken(std::string_view text) const {
  const int32_t id = impl_->vocab.Find(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

const std::string& Tokenizer::chat_template() const {
  return impl_->chat_template;
}
const std::map<std::string, std::string>& Tokenizer::named_chat_templates() const {
  return impl_->named_chat_templates;
}
const std::string& Tokenizer::bos_text() const {
  return impl_->bos_text;
}
const std::string& Tokenizer::eos_text() const {
  return impl_->eos_text;
}
const std::string& Tokenizer::description() const {
  return impl_->description;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special, std::vector<int32_t> shown_ids)
    : tokenizer_(&tokenizer), skip_special_(skip_special), shown_ids_(std::move(shown_ids)) {}

std::string StreamDecoder::Push(int32_t id) {
  std::string text;
  if (skip_special_ && tokenizer_->IsSpecial(id) &&
      std::find(shown_ids_.begin(), shown_ids_.end(), id) == shown_ids_.end()) {
    return text;
  }
  std::string_view bytes = tokenizer_->TokenBytes(id);
  if (bytes.empty()) return text;
  if (at_start_ && tokenizer_->impl_->style().strip_leading_space && bytes.front() == ' ')
    bytes.remove_prefix(1);
  at_start_ = false;
  if (pending_.empty()) {
    pending_.assign(bytes.substr(AppendReplacingInvalid(bytes, &text)));
    return text;
  }
  pending_.append(bytes);
  pending_.erase(0, AppendReplacingInvalid(pending_, &text));
  return text;
}

std::string StreamDecoder::Finish() {
  at_start_ = true;
  if (pending_.empty()) return "";
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace cachalot
