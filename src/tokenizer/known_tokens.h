// What is known of tokens by their text alone, where files say too little: which end a generation, which are
// markup.
#pragma once

#include <span>
#include <string_view>

namespace cachalot {

// Texts that end a generation wherever a vocabulary has them.
std::span<const std::string_view> KnownEndTexts();

// Whether an added token of this text is markup that steers the model (roles, thinking, tool calls), even if
// the vocabulary does not call it special.
bool LooksLikeMarkup(std::string_view text);

}  // namespace cachalot
