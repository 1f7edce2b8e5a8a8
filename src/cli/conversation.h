// The turns of a chat, and how they are made to fit the context.
// Invariant: after the system message (if any) user and assistant take turns, beginning with the user.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cachalot {

class Conversation {
 public:
  void SetSystem(std::string text) { system_ = std::move(text); }
  const std::string& system() const { return system_; }
  void AddUser(std::string text) { turns_.push_back({.user = std::move(text)}); }
  struct Answer {
    std::string content;
    std::string reasoning = {};
    std::vector<std::pair<std::string, std::string>> calls = {};  // name, arguments as JSON text
  };
  // Of the last turn; an empty answer is an answer.
  void SetAnswer(Answer answer);
  // The last question is taken back (it could not be answered).
  void DropLast();
  void Clear() { turns_.clear(); }
  int64_t num_turns() const { return static_cast<int64_t>(turns_.size()); }

  // What Json wrote.
  static Result<Conversation> FromJson(const std::string& messages_json);
  // [{"role": "system", …}, …]; bytes that are no UTF-8 become U+FFFD.
  std::string Json(int indent = -1) const;

  // Tokens of the conversation, without as many of the oldest turns as must go so that no more than `limit`
  // are left; the dropped turns are gone for good. kInvalidArgument when the last turn alone is too long.
  struct Fitted {
    std::vector<int32_t> tokens;
    int64_t dropped_turns = 0;
  };
  using Encode = std::function<Result<std::vector<int32_t>>(const std::string& messages_json)>;
  Result<Fitted> Fit(const Encode& encode, int64_t limit);

 private:
  struct Turn {
    std::string user;
    Answer assistant = {};
    bool answered = false;
  };

  std::string system_;
  std::vector<Turn> turns_;
};

}  // namespace cachalot
