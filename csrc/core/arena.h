// Shared memory: one memfd per process, of which communicators take slices, and mappings of slices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

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

// The most of one process's memory that another one reads in place.
inline constexpr size_t kWindowBytes = size_t{64} << 30;

// Address space for a whole memfd however far it grows: what lies beyond its end becomes valid as it grows,
// so that a peer's memory is mapped once. Costs no memory but for page tables of what is touched.
class Window {
 public:
  enum class Of : uint8_t {
    self,  // read and written; forked children inherit it, since the program's own arrays lie in it
    peer,  // read only, and not inherited
  };
  // Null where the kernel refuses, and where the address space of this process is limited (RLIMIT_AS): a
  // window would leave nothing of it for the program.
  static std::shared_ptr<Window> open(int fd, Of whose);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  char* data() const { return data_; }

 private:
  explicit Window(char* data) : data_(data) {}
  char* data_;
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
