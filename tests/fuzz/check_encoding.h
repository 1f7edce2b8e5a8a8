// What every tokenizer that was read from hostile bytes must keep to, with any text: an error of one line, or ids that exist,
// and none of a control token for what a user wrote.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "fuzz/one_line.h"
#include "tokenizer/tokenizer_impl.h"

namespace cachalot::fuzz {

inline void CheckEncoding(const TokenizerImpl& tokenizer, std::string_view text) {
  const std::pair<int64_t, int64_t> everything[] = {{0, static_cast<int64_t>(text.size())}};
  for (const bool user : {false, true}) {
    EncodeOptions options{.add_special = !user};
    if (user) options.user_ranges = everything;
    const auto ids = tokenizer.Encode(text, options);
    if (!ids.ok()) {
      CheckOneLine(ids.status().message());
      continue;
    }
    for (const int32_t id : *ids) {
      CHECK(tokenizer.vocab.IsDefined(id)) << id;
      CHECK(!user || id == tokenizer.unk_id || !tokenizer.HasFlag(id, TokenizerImpl::kControl)) << id;
      tokenizer.TokenBytes(id);
    }
  }
}

}  // namespace cachalot::fuzz
