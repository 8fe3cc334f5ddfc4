// The cheapest clock: a counter of constant rate, alike on all cores. A look costs half a clock_gettime.
#pragma once

#include <chrono>
#include <cstdint>
#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#endif

namespace collectives {

inline uint64_t ticks() {
#if defined(__x86_64__) || defined(__i386__)
  return __rdtsc();
#elif defined(__aarch64__)
  uint64_t value;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// One moment on both clocks. Two of them tell the rate of the counter, so that nobody has to calibrate it.
struct Moment {
  uint64_t ticks = 0;
  uint64_t wall = 0;  // nanoseconds since 1970

  static Moment now() {
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    return {collectives::ticks(),
            static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count())};
  }
};

// The wall clock at `ticks`, between two moments; no later than the second.
inline uint64_t wall_at(uint64_t ticks, const Moment& first, const Moment& second) {
  if (ticks >= second.ticks || second.wall <= first.wall) return second.wall;
  if (ticks <= first.ticks) return first.wall;
  const double part =
      static_cast<double>(ticks - first.ticks) / static_cast<double>(second.ticks - first.ticks);
  return first.wall + static_cast<uint64_t>(part * static_cast<double>(second.wall - first.wall));
}

}  // namespace collectives
