// The memory policy: every access that the protocol makes to memory which another rank may write or read goes
// through one of these functions. The protocol is a template on it, so that the same text can run on an
// emulated weak memory.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "core/copy.h"

namespace collectives {

// How often a flag is looked at before its reader gives the core away: 400 looks of about 10 ns. A peer that
// has a core of its own answers within that; one that shares ours cannot answer at all until we yield.
constexpr int kSpins = 400;

// Shared memory between processes of one host.
//
// Memory order: a flag is written by one rank alone. `publish` is a sequentially consistent store, hence a
// release: whoever reads the value with `load` (acquire) sees everything that the publisher wrote before.
// Sequential consistency is needed for the sleepers: the publisher stores the flag and then looks for
// sleepers, a sleeper announces itself and then looks at the flag; with anything weaker both may see the old
// value and the wake-up is lost. No standalone fences: ThreadSanitizer does not model them.
struct RealMemory {
  using Word = std::atomic<uint32_t>;

  static uint32_t load(const Word& word) { return word.load(std::memory_order_acquire); }
  static void publish(Word& flag, uint32_t value, const Word& sleepers) {
    flag.store(value, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) wake(flag);
  }
  // The same for a reader that waits for several flags at once, and so sleeps on one bell for all of them.
  static void publish(Word& flag, uint32_t value, const Word& sleepers, Word& bell) {
    flag.store(value, std::memory_order_seq_cst);
    if (sleepers.load(std::memory_order_seq_cst) != 0) ring(bell);
  }
  // A bell has many writers. Whoever has read it before the ring does not fall asleep on it after.
  static void ring(Word& bell) {
    bell.fetch_add(1, std::memory_order_seq_cst);
    wake(bell);
  }

  // Waits until this core's earlier stores are out.
  static void drain() {
    std::atomic<uint32_t> own{0};
    own.exchange(1, std::memory_order_seq_cst);
  }
  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
  }
  static void yield();
  static void wake(const Word& flag);
  // Sleeps until `flag` is no longer `seen`, somebody wakes us, or the time is over. The caller has announced
  // itself in the owner's `sleepers` by `enter_sleep` and looked at the flag once more.
  static void enter_sleep(Word& sleepers) { sleepers.fetch_add(1, std::memory_order_seq_cst); }
  static void leave_sleep(Word& sleepers) { sleepers.fetch_sub(1, std::memory_order_relaxed); }
  static uint32_t load_before_sleep(const Word& flag) { return flag.load(std::memory_order_seq_cst); }
  static void sleep(const Word& flag, uint32_t seen, int milliseconds);

  // Plain data. Ordered by the flags alone: written before a publish, read after the load that saw it.
  // `streamed` writes past the caches; the fence that non-temporal stores need is in it.
  static void write(void* shared, const void* from, size_t bytes, bool streamed) {
    streamed ? stream_copy(shared, from, bytes) : copy(shared, from, bytes);
  }
  static void read(void* to, const void* shared, size_t bytes, bool streamed) {
    streamed ? stream_copy(to, shared, bytes) : copy(to, shared, bytes);
  }
  // Copies from the private memory of another process (of this one where pid is 0) without staging; false
  // where the kernel refuses or the process is gone.
  static bool pull(pid_t pid, void* to, uint64_t from, size_t bytes);
  // Sources may be shared or private, `to` as well; `shared_copy` (may be null) is shared. `factors`:
  // private.
  template <class Function>
  static void reduce(Function function, void* to, void* shared_copy, const void* const* sources, int count,
                     size_t elements, const double* factors) {
    function(to, shared_copy, sources, count, elements, factors);
  }
};

}  // namespace collectives
