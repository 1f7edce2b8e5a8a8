// A stable sort whose comparison may fail, with Python's way of reversing (equal items keep their order).
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"

namespace cachalot::jinja {

// `less(a, b)` is a Result<bool>. Merge sort: n log n comparisons whatever they answer.
template <typename T, typename Less>
Status StableSort(std::vector<T>* items, Less less, bool reverse = false) {
  std::vector<T> other(items->size());
  std::vector<T>* from = items;
  std::vector<T>* to = &other;
  const size_t n = items->size();
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t begin = 0; begin < n; begin += 2 * width) {
      const size_t middle = std::min(begin + width, n);
      const size_t end = std::min(begin + 2 * width, n);
      size_t a = begin;
      size_t b = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_b = a == middle;
        if (a < middle && b < end) {
          auto earlier = reverse ? less((*from)[a], (*from)[b]) : less((*from)[b], (*from)[a]);
          RETURN_IF_ERROR(earlier.status());
          take_b = earlier.value();
        }
        (*to)[out] = std::move((*from)[take_b ? b++ : a++]);
      }
    }
    std::swap(from, to);
  }
  if (from != items) *items = std::move(*from);
  return Status::Ok();
}

}  // namespace cachalot::jinja
