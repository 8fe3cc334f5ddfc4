// Symmetric memory: memory of this process that all its peers can read in place.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "core/arena.h"

namespace collectives {

// There is no symmetric memory; what() says why.
struct NoSymmetricMemory : std::bad_alloc {
  explicit NoSymmetricMemory(const char* why) : why(why) {}
  const char* what() const noexcept override { return why; }
  const char* why;
};

// Blocks of the process's arena, whole pages each. The process reaches them through one window on its own
// memory and every peer through one of its own, so an offset in the arena says to all where an array lies,
// and neither side maps anything when a block is made. Allocation is local: no peer takes part in it.
//
// Reuse. Programs allocate and free the same few sizes at each step, and the page faults of new memory, in
// this process and again in each peer, cost more than copying it. So blocks that are given back are kept with
// their pages, the oldest going first to the system, as long as
//  - all blocks, in use and kept, are together no more than what was in use at once before;
//  - the kept ones are at most kKeptBytes and kKeptBlocks.
// A kept block serves a request that needs at least four fifths of it; the one that fits best is taken.
//
// Threads: any. Peers may read a block after it was given back only in calls that have failed; they find
// whatever is there, and no fault: the arena never shrinks.
//
// Forked children inherit the parent's blocks as shared memory, which ends when they do; to give one back
// there does nothing.
class Heap {
 public:
  static constexpr size_t kKeptBytes = size_t{1} << 30;
  static constexpr size_t kKeptBlocks = 256;  // the search for a fit goes through them

  // `mutex` guards the arena; the heap's state too.
  Heap(Arena& arena, std::mutex& mutex) : arena_(arena), mutex_(mutex) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  // At least `bytes` bytes, aligned to pages, with any contents. Throws NoSymmetricMemory where the window
  // has no room or there is none, std::system_error where the arena cannot grow.
  void* allocate(size_t bytes);
  // Returns false, and does nothing, where `pointer` is not a block in use of this heap.
  bool give_back(void* pointer);

  // The offset in the arena of `bytes` bytes, if all of them lie in one block that is in use. A comparison
  // for any other memory of the process.
  std::optional<uint64_t> find(const void* pointer, size_t bytes) const;

  // Where offset 0 of the arena lies in this process; null before the first allocation.
  char* base() const { return base_.load(std::memory_order_acquire); }

  struct Usage {
    size_t live_bytes;  // in use
    size_t kept_bytes;
    size_t kept_blocks;
  };
  Usage usage() const;

 private:
  struct Block {
    uint64_t offset;
    size_t bytes;
  };
  Block take(size_t bytes);
  // Lets kept blocks go until what is in use and what is kept are no more than `most`, and within the limits.
  void trim(size_t most);

  Arena& arena_;
  std::mutex& mutex_;
  std::shared_ptr<Window> window_;
  std::atomic<char*> base_{nullptr};
  std::map<uint64_t, size_t> live_;  // offset -> bytes
  std::list<Block> kept_;            // oldest first
  size_t live_bytes_ = 0;
  size_t kept_bytes_ = 0;
  size_t most_bytes_ = 0;  // that were ever in use at once
};

}  // namespace collectives
