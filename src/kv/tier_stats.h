// What the tiers below the KV cache did, for whoever watches.
#pragma once

#include <cstdint>

namespace cachalot {

struct KvTierStats {
  bool present = false;
  int64_t blocks = 0;             // there now,
  int64_t bytes = 0;              // in files of this size, those of other models included
  int64_t max_bytes = 0;
  int64_t hit_blocks = 0;         // that requests found there and not in memory,
  int64_t promoted_blocks = 0;    // of them, those that were brought into memory
  int64_t promotions = 0;         // requests that waited for some
  int64_t declined = 0;           // requests for which computing was the faster way,
  int64_t given_up = 0;           // or turned out to be, while blocks were read
  int64_t written_blocks = 0;
  int64_t written_bytes = 0;
  int64_t read_blocks = 0;
  int64_t read_bytes = 0;
  int64_t refused_blocks = 0;     // not written: the disk, or the copy, does not keep up, or the disk refused the last time
  int64_t evicted_blocks = 0;     // made place
  int64_t unreadable_blocks = 0;  // were there and are not what was written, or could not be read
  int64_t write_errors = 0;
  double read_bytes_per_second = 0;     // measured; 0: not yet
  double prefill_tokens_per_second = 0;
};

}  // namespace cachalot
