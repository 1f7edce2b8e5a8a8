// What the gate of a quantised KV cache (kv_gate.h) allows.
#pragma once

#include <string>

namespace cachalot {

struct KvGateOptions {
  float max_kl = 0;                  // nats; 0: no gate
  std::string fallback = "refuse";   // refuse, auto (the next more exact types, at last f16), or a type
  std::string text = "";             // a file; "": kKvGateText
};

}  // namespace cachalot
