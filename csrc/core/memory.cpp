#include "core/memory.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace collectives {
namespace {

// Not FUTEX_PRIVATE: the word lies in a memfd and its sleepers are other processes.
long futex(const RealMemory::Word& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(RealMemory::Word) == sizeof(uint32_t) && RealMemory::Word::is_always_lock_free);
  return syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void RealMemory::yield() { sched_yield(); }

void RealMemory::wake(const Word& flag) { futex(flag, FUTEX_WAKE, INT_MAX, nullptr); }

bool RealMemory::pull(pid_t pid, void* to, uint64_t from, size_t bytes) {
  auto* source = reinterpret_cast<char*>(from);
  if (pid == 0) {
    if (bytes != 0) std::memcpy(to, source, bytes);
    return true;
  }
  if (pid < 0) return false;
  for (size_t done = 0; done < bytes;) {  // one call moves at most 2 GB
    const iovec local{static_cast<char*>(to) + done, bytes - done};
    const iovec remote{source + done, bytes - done};
    const ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
    if (moved <= 0) return false;
    done += static_cast<size_t>(moved);
  }
  return true;
}

void RealMemory::sleep(const Word& flag, uint32_t seen, int milliseconds) {
  timespec time{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  futex(flag, FUTEX_WAIT, seen, &time);
}

}  // namespace collectives
