#include "core/memory.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
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

void RealMemory::sleep(const Word& flag, uint32_t seen, int milliseconds) {
  timespec time{milliseconds / 1000, (milliseconds % 1000) * 1'000'000L};
  futex(flag, FUTEX_WAIT, seen, &time);
}

}  // namespace collectives
