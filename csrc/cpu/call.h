// One collective call as the algorithms see it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "core/descriptor.h"
#include "cpu/layout.h"
#include "cpu/reduce.h"

namespace collectives {

// `in` and `out` are packed arrays. Elements, with the descriptor's count: all_reduce count -> count;
// all_gather count -> world * count; reduce_scatter world * count -> count; broadcast count in place (in ==
// out); reduce count -> count on the root; gather count -> world * count on the root; scatter world * count
// on the root -> count; all_to_all world * count -> world * count; all_to_all_v the sums of its counts.
struct Call {
  Descriptor descriptor;
  const char* in = nullptr;
  char* out = nullptr;
  double timeout = 0;                     // seconds; 0: the communicator's
  double factor = 1;                      // of this rank's input; premul_sum only
  const uint64_t* send_counts = nullptr;  // all_to_all_v: elements to and from each rank
  const uint64_t* recv_counts = nullptr;
  const int64_t* shape = nullptr;  // of the caller's array, for the flight record alone
  uint32_t dims = 0;
  bool streamed = false;  // the outputs of all ranks fill half of the last-level cache: write them past it

  size_t item() const { return size_of(descriptor.dtype); }
  size_t count() const { return static_cast<size_t>(descriptor.count); }
  // What is written into the outputs of all ranks, per rank (all_to_all_v: as if all got what this one does).
  size_t out_bytes(int world) const {
    switch (descriptor.collective) {
      case Collective::all_gather:
      case Collective::all_to_all:
        return descriptor.bytes() * static_cast<size_t>(world);
      case Collective::reduce:
        return descriptor.bytes() / static_cast<size_t>(world);
      case Collective::all_to_all_v:
        return total(recv_counts, world) * item();
      default:
        return descriptor.bytes();
    }
  }
  // Elements that this rank puts into the call, of which `count` says the size of a part.
  size_t sent(int world) const {
    return descriptor.collective == Collective::all_to_all_v ? total(send_counts, world) : count();
  }
  // Bytes of the larger side.
  size_t bytes(int world) const {
    if (descriptor.collective == Collective::all_to_all_v)
      return std::max(total(send_counts, world), total(recv_counts, world)) * item();
    return descriptor.bytes() * (sharded(descriptor.collective) ? static_cast<size_t>(world) : 1);
  }
  ReduceFn reduction() const { return reduce_function(descriptor.dtype, descriptor.op); }

 private:
  static size_t total(const uint64_t* counts, int world) {
    return static_cast<size_t>(std::accumulate(counts, counts + world, uint64_t{0}));
  }
};

// A rank's arrays as this process sees them, where it can read them in place; null where it cannot.
struct PeerArrays {
  const char* in;
  const char* out;
};

// Elements [begin, end).
struct Range {
  size_t begin;
  size_t end;
  size_t size() const { return end - begin; }
};

// `count` elements cut into `chunks` chunks of `chunk` elements, the last one shorter.
inline Range chunk_range(size_t count, size_t chunk, size_t index) {
  const size_t begin = std::min(count, index * chunk);
  return {begin, std::min(count, begin + chunk)};
}

// A chunk cut into one shard a rank. Shards begin at cache lines of the slot, so that no two ranks write one
// line.
inline Range shard_range(size_t count, int world, int rank, size_t item) {
  const size_t line = std::max<size_t>(1, kCacheLine / item);
  const size_t even = (count + static_cast<size_t>(world) - 1) / static_cast<size_t>(world);
  const size_t shard = (even + line - 1) / line * line;
  const size_t begin = std::min(count, static_cast<size_t>(rank) * shard);
  return {begin, std::min(count, begin + shard)};
}

}  // namespace collectives
