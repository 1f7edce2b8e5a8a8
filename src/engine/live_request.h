// LiveRequest: a request between Submit and its last output. Each of its choices (answers) is a sequence of
// its own to the scheduler; they share the callback and end one by one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/bad_words.h"
#include "engine/engine.h"
#include "engine/request_stream.h"
#include "sched/sequence.h"

namespace cachalot {

struct LiveRequest;

struct Choice final : Sequence {
  Choice(uint64_t seq_id, SequenceSpec seq_spec, LiveRequest* request_in, int32_t index_in,
         RequestStream stream_in)
      : Sequence(seq_id, std::move(seq_spec)),
        index(index_in),
        request(request_in),
        stream(std::move(stream_in)) {}

  // What every step looks at shares a cache line with the last of the sequence.
  const int32_t index;
  LiveRequest* const request;
  int64_t queue_us = 0;             // published, and so are these
  int32_t num_prompt_computed = 0;
  bool plain = false;               // its tokens go out as they are
  RequestStream stream;
  BadWords bad_words;
  int32_t retaken_at = -1;          // the position that is drawn again; its token stays, whatever it is

  std::span<const int32_t> answer(int32_t end) const {
    return std::span(tokens).first(static_cast<size_t>(end)).subspan(static_cast<size_t>(num_prompt));
  }
};

struct alignas(64) LiveRequest {
  OutputCallback on_output;
  uint64_t id = 0;
  int64_t deadline_us = 0;  // on the engine's clock
  bool cancelled = false;
  std::vector<std::unique_ptr<Choice>> choices;  // null: it had its last output
  int32_t num_live = 0;                          // of the choices
};

}  // namespace cachalot
