// The known word that a mistyped one was most likely meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace cachalot {

// Insertions, deletions, replacements and swaps of neighbours that turn one word into the other.
int EditDistance(std::string_view a, std::string_view b);

// Of words that begin with each other the longer common beginning wins, then the smaller distance. "" when
// nothing is near: a third of the word's letters may be wrong, of one or two letters none. Leading dashes do
// not count.
std::string Nearest(std::string_view word, std::span<const std::string> known);
// "; did you mean 'WORD'?", or "" when nothing is near.
std::string NearestHint(std::string_view word, std::span<const std::string> known);

}  // namespace cachalot
