#include "core/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace collectives {

Mapping::Mapping(int fd, size_t offset, size_t bytes) : bytes_(bytes) {
  // Beyond the end of the file a touch would be a bus error.
  struct stat status{};
  if (fstat(fd, &status) != 0)
    throw std::system_error(errno, std::generic_category(), "shared memory of a rank: fstat");
  const auto size = static_cast<size_t>(status.st_size);
  if (offset > size || bytes > size - offset)
    throw std::runtime_error("shared memory of a rank is shorter than it announced");
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (at == MAP_FAILED)
    throw std::system_error(errno, std::generic_category(),
                            "mapping " + std::to_string(bytes) + " bytes of shared memory");
  data_ = static_cast<char*>(at);
  madvise(data_, bytes_, MADV_DONTFORK);
}

Mapping::~Mapping() { munmap(data_, bytes_); }

std::shared_ptr<Window> Window::open(int fd, Of whose) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY) return nullptr;
  const int protection = whose == Of::self ? PROT_READ | PROT_WRITE : PROT_READ;
  void* at = mmap(nullptr, kWindowBytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (at == MAP_FAILED) return nullptr;
  madvise(at, kWindowBytes, MADV_DONTDUMP);  // a core file would walk through all of it
  if (whose == Of::peer) madvise(at, kWindowBytes, MADV_DONTFORK);
  return std::shared_ptr<Window>(new Window(static_cast<char*>(at)));
}

Window::~Window() { munmap(data_, kWindowBytes); }

Arena::Arena() : file_(memfd_create("collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
  if (!file_) throw std::system_error(errno, std::generic_category(), "memfd_create");
  if (fcntl(file_.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0)
    throw std::system_error(errno, std::generic_category(), "sealing a memfd");
}

size_t Arena::allocate(size_t bytes) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second < bytes) continue;
    const auto [offset, room] = *it;
    free_.erase(it);
    if (room > bytes) free_[offset + bytes] = room - bytes;
    return offset;
  }
  if (ftruncate(file_.get(), static_cast<off_t>(size_ + bytes)) != 0)
    throw std::system_error(errno, std::generic_category(),
                            "growing the shared memory of this process to " + std::to_string(size_ + bytes) +
                                " bytes (limit: ulimit -f)");
  return std::exchange(size_, size_ + bytes);
}

void Arena::release(size_t offset, size_t bytes) {
  fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
  auto next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      offset = before->first;
      bytes += before->second;
      free_.erase(before);
    }
  }
  if (next != free_.end() && offset + bytes == next->first) {
    bytes += next->second;
    free_.erase(next);
  }
  free_[offset] = bytes;
}

}  // namespace collectives
