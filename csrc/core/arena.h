// Shared memory: one memfd per process, of which communicators take slices, and mappings of slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "core/file.h"

namespace collectives {

// Pages of a memfd mapped shared. Not inherited by forked children, which could only disturb the peers.
class Mapping {
 public:
  // Throws std::system_error where the kernel refuses, std::runtime_error where the file is too short.
  Mapping(int fd, size_t offset, size_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

// A memfd that grows: anonymous, so that nothing is ever in /dev/shm and a killed job leaves nothing behind.
// Pages cost memory once they are touched. It can not be shrunk by anybody (a seal), so that a peer's mapping
// never faults. Not thread-safe.
class Arena {
 public:
  Arena();
  int fd() const { return file_.get(); }
  void close() { file_.reset(); }
  // Offset of `bytes` (whole pages) of zeroed memory.
  size_t allocate(size_t bytes);
  // Gives the pages back to the system.
  void release(size_t offset, size_t bytes);

 private:
  File file_;
  size_t size_ = 0;
  std::map<size_t, size_t> free_;  // offset -> bytes; neighbours are merged
};

}  // namespace collectives
