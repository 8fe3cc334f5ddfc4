// What one process shares among all its communicators: its identity, its arena, and one link to each peer
// process.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "core/arena.h"
#include "core/heap.h"
#include "core/link.h"

namespace collectives {

// What each rank tells the others through the rendezvous; equal in size on all ranks and compared field by
// field.
struct Announcement {
  char magic[8];  // also the version of this struct and of everything in shared memory
  ProcessId process;
  Secret secret;
  unsigned char host[16];  // hash of what makes the host: ranks whose hashes differ cannot share memory
  uint64_t address;        // of the slice in the process's own memory
  uint64_t offset;         // of the slice in the arena of the process
  uint64_t bytes;          // of the slice
  uint64_t slot_bytes;
  uint32_t rank;
  uint32_t world;
  int32_t pid;
  uint32_t serial;  // of the slice: tells a slice from a later one at the same place
};
static_assert(sizeof(Announcement) == 104);

class Process {
 public:
  // The process's only instance, made when first asked for, and again in a forked child.
  static std::shared_ptr<Process> current();
  // To its heap, from any thread and at any time: memory that is not its own, such as the parent's in a
  // forked child, stays as it is.
  static void give_back(void* memory) noexcept;

  Process();
  const Identity& identity() const { return identity_; }
  static const unsigned char* host();  // 16 bytes

  // A zeroed slice of this process's arena.
  struct Slice {
    size_t offset;
    uint32_t serial;
    std::shared_ptr<Mapping> memory;
  };
  Slice allocate(size_t bytes);
  void release(const Slice& slice);

  // Links this process with all that announced themselves. Throws std::runtime_error when `seconds` are
  // over or `stop` says so.
  void meet(const std::vector<Announcement>& peers, double seconds, const std::function<bool()>& stop);

  // The slice that a met process announced; ranks of one process share the mapping that allocate() made.
  std::shared_ptr<Mapping> map(const Announcement& peer);
  // The link to a met process; null for this very process.
  std::shared_ptr<Link> link(const Announcement& peer);

  // Memory of this process that its peers can read in place.
  Heap& heap() { return heap_; }
  // Where the memory of the linked process begins, offset 0 of its arena; null where it cannot be mapped.
  char* window(Link& link);

  // Work that waits until peers have let go of memory; tried now and at every allocation. Returns true when
  // done.
  void retire(std::function<bool()> finish);

  // True in a child of the process that made this.
  bool forked() const { return forked_.load(std::memory_order_relaxed); }
  // In the child after fork(): closes what belongs to the parent, so that its end of file comes when it dies.
  void abandon();
  std::mutex& mutex() { return mutex_; }

 private:
  void sweep(std::unique_lock<std::mutex>& lock);
  bool linked(const ProcessId& id);

  Identity identity_;
  std::atomic<bool> forked_{false};
  File listener_;
  std::mutex meeting_;  // one thread at a time meets; whoever is inside serves every peer that knocks
  std::mutex mutex_;    // guards what follows
  Arena arena_;
  Heap heap_{arena_, mutex_};
  std::map<size_t, std::weak_ptr<Mapping>> own_;  // by offset
  uint32_t slices_ = 0;
  std::map<ProcessId, std::shared_ptr<Link>> links_;  // communicators share them
  std::vector<std::function<bool()>> retired_;
};

}  // namespace collectives
