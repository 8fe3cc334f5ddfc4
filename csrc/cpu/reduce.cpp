#include "cpu/reduce.h"

#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace collectives {

// Each is defined by reduce_kernels.cpp compiled for that instruction set.
#if defined(__x86_64__)
namespace baseline {
ReduceFn select_kernel(DType dtype, Op op);
}
namespace v3 {
ReduceFn select_kernel(DType dtype, Op op);
}
namespace v4 {
ReduceFn select_kernel(DType dtype, Op op);
}
#elif defined(__aarch64__)
namespace neon {
ReduceFn select_kernel(DType dtype, Op op);
}
#else
namespace baseline {
ReduceFn select_kernel(DType dtype, Op op);
}
#endif

namespace {

struct InstructionSet {
  const char* name;
  bool (*usable)();
  ReduceFn (*select)(DType, Op);
};

bool always() { return true; }

#if defined(__x86_64__)

// All that -march=x86-64-v3 lets the compiler use, not just AVX2: hypervisors mask single features. The
// builtin also asks whether the system saves the wide registers; it does not know every feature in every
// compiler, hence the raw bits.
bool has_v3() {
  unsigned eax, ebx, ecx, edx;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kMovbe = 1u << 22, kF16c = 1u << 29;
  if ((ecx & kMovbe) == 0 || (ecx & kF16c) == 0) return false;
  if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) == 0) return false;
  constexpr unsigned kLzcnt = 1u << 5;
  if ((ecx & kLzcnt) == 0) return false;
  return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") &&
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("fma");
}

bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}

// Best first.
constexpr InstructionSet kInstructionSets[] = {
    {"x86-64-v4", has_v4, v4::select_kernel},
    {"x86-64-v3", has_v3, v3::select_kernel},
    {"baseline", always, baseline::select_kernel},
};

#elif defined(__aarch64__)
constexpr InstructionSet kInstructionSets[] = {{"neon", always, neon::select_kernel}};
#else
constexpr InstructionSet kInstructionSets[] = {{"baseline", always, baseline::select_kernel}};
#endif

const InstructionSet& best() {
  static const InstructionSet& chosen = []() -> const InstructionSet& {
    for (const InstructionSet& set : kInstructionSets) {
      if (set.usable()) return set;
    }
    __builtin_unreachable();  // the last one always is
  }();
  return chosen;
}

}  // namespace

ReduceFn reduce_function(DType dtype, Op op) { return best().select(dtype, op); }

ReduceFn reduce_function(DType dtype, Op op, const char* instruction_set) {
  for (const InstructionSet& set : kInstructionSets) {
    if (std::string_view(set.name) == instruction_set && set.usable()) return set.select(dtype, op);
  }
  return nullptr;
}

const char* instruction_set() { return best().name; }

}  // namespace collectives
