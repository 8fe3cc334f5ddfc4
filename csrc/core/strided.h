#pragma once

#include <cstddef>
#include <cstdint>

namespace collectives {

// An N-d array in memory that it does not own. Only the first `dims` entries of `shape` and `strides` are
// set; strides are in bytes and may be zero or negative. Element order is row-major (the last dimension
// varies fastest).
struct Strided {
  static constexpr int kMaxDims = 64;

  void* data = nullptr;  // the element at index (0, 0, ...)
  size_t item = 0;       // bytes per element
  int dims = 0;
  int64_t shape[kMaxDims];
  int64_t strides[kMaxDims];

  size_t count() const;
  size_t bytes() const { return count() * item; }

  // Elements lie one after another in row-major order. Dimensions of size 1 may have any stride.
  bool is_contiguous() const;

  // True where two index tuples may address the same byte. Conservative: it also refuses a few layouts whose
  // dimensions interleave without ever meeting, which no view made by slicing or transposing has.
  bool self_overlaps() const;

  // All bytes of the elements lie in [low, high); empty arrays have low == high.
  struct Extent {
    uintptr_t low;
    uintptr_t high;
  };
  Extent extent() const;
};

// Copies the elements of `src` to `dst`, contiguous and in row-major order. The two may not overlap.
void pack(void* dst, const Strided& src);

// The inverse of pack(). Bytes between the elements of `dst` keep their values.
void unpack(const Strided& dst, const void* src);

}  // namespace collectives
