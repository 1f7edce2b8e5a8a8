// HeapHook: counts what a test allocates, to prove that a step in steady state allocates nothing.
// Linking the library replaces malloc and its relatives for the whole program (glibc), so that allocations of
// C code count too; under AddressSanitizer, which has its own malloc, only operator new counts.
#pragma once

#include <cstdint>

namespace cachalot {

// Allocations of all threads since the program started.
int64_t NumHeapAllocations();

// Counts the allocations of all threads from its construction on.
class HeapCounter {
 public:
  HeapCounter() : start_(NumHeapAllocations()) {}
  int64_t count() const { return NumHeapAllocations() - start_; }

 private:
  int64_t start_;
};

}  // namespace cachalot
