// A dummy model as a GGUF file in the layout that llama.cpp reads: MLA as attn_k_b and attn_v_b, experts
// stacked, rotary rows of Llama-shaped models permuted. The values are those of the in-memory dummy,
// rearranged.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/gguf_value.h"
#include "weights/dummy/dummy_source.h"

namespace cachalot {

// Called now and then with the bytes written so far and in all; false stops the work (kCancelled).
using WriteProgress = std::function<bool(int64_t done_bytes, int64_t total_bytes)>;

// `tokenizer`: the tokenizer.* entries, with model.spec.vocab_size tokens. Memory use does not grow with the
// model.
Status WriteDummyGguf(const DummyModel& model, const std::vector<GgufEntry>& tokenizer,
                      const std::string& path, const WriteProgress& progress);

}  // namespace cachalot
