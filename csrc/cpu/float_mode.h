// The floating-point environment of a reduction.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace collectives {

// While it lives, the thread rounds to nearest and keeps denormals, whatever its owner has set (flush-to-zero
// is popular): the bits of a result must not depend on which rank reduced it.
class DefaultFloatMode {
 public:
#if defined(__x86_64__)
  DefaultFloatMode() : saved_(_mm_getcsr()) {
    if ((saved_ & kMode) != 0) _mm_setcsr(saved_ & ~kMode);
  }
  ~DefaultFloatMode() {
    if ((saved_ & kMode) != 0) _mm_setcsr(saved_);
  }

 private:
  static constexpr unsigned kMode = 0x8000 | 0x6000 | 0x0040;  // flush to zero, rounding, denormals are zero
  unsigned saved_;
#elif defined(__aarch64__)
  DefaultFloatMode() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    if ((saved_ & kMode) != 0) asm volatile("msr fpcr, %0" ::"r"(saved_ & ~kMode));
  }
  ~DefaultFloatMode() {
    if ((saved_ & kMode) != 0) asm volatile("msr fpcr, %0" ::"r"(saved_));
  }

 private:
  static constexpr uint64_t kMode = 7u << 22;  // flush to zero, rounding
  uint64_t saved_;
#else
  DefaultFloatMode() {}
#endif

 public:
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
};

}  // namespace collectives
