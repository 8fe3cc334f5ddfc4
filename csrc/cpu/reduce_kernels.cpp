// The reduction kernels, for one instruction set. On x86-64 this file is compiled once per set, with
// COLLECTIVES_ISA naming the namespace of the single function that each object exports. All else is in an
// unnamed namespace or always inlined: a shared inline function could otherwise be linked from the object
// with the widest instructions and run on a CPU without them. For the same reason nothing of the standard
// library is used here.

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "core/op.h"
#include "cpu/reduce.h"
#include "cpu/reduce_formats.h"
#include "cpu/reduce_operators.h"

#ifndef COLLECTIVES_ISA
#if defined(__aarch64__)
#define COLLECTIVES_ISA neon
#else
#define COLLECTIVES_ISA baseline
#endif
#endif

namespace collectives {
namespace {

// ---- Kernels ----

// What an accumulator takes in memory.
template <class F, class V>
constexpr size_t kBytesOf = sizeof(V) / sizeof(typename F::Scalar) * F::kSize;

// Reduces kCount consecutive accumulators at byte `at`, all in registers. Every load precedes every store,
// which is what lets `dst` be one of the inputs.
template <class F, class O, class V, int kCount>
COLLECTIVES_INLINE void reduce_step(char* dst, char* also, const void* const* src, int sources,
                                    const double* factors, size_t at) {
  constexpr size_t kBytes = kBytesOf<F, V>;
  V accumulated[kCount];
  const char* first = static_cast<const char*>(src[0]) + at;
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k)
    accumulated[k] = weigh<O>(F::template load<V>(first + k * kBytes), factors, 0);
  for (int r = 1; r < sources; ++r) {
    const char* next = static_cast<const char*>(src[r]) + at;
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      accumulated[k] =
          combine<O>(accumulated[k], weigh<O>(F::template load<V>(next + k * kBytes), factors, r));
#if defined(COLLECTIVES_ROUND_EACH_ADDITION)
      accumulated[k] = F::round(accumulated[k]);  // wrong on purpose: tests prove that they see it
#endif
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < kCount; ++k) {
    accumulated[k] = finish<O>(accumulated[k], sources);
    F::store(dst + at + k * kBytes, accumulated[k]);
  }
  if (also != nullptr) {
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) F::store(also + at + k * kBytes, accumulated[k]);
  }
}

// Hides the loop from the vectoriser: what it iterates over is a remainder already.
COLLECTIVES_INLINE void keep_scalar() { asm volatile(""); }

template <class F, class O>
void reduce(void* dst, void* also, const void* const* src, int sources, size_t count, const double* factors) {
  using Block = typename F::Block;
  using Vector = typename F::Vector;
  using Scalar = typename F::Scalar;
  constexpr size_t kBlocks = 4 * kBytesOf<F, Block>;
  constexpr size_t kVector = kBytesOf<F, Vector>;
  char* const to = static_cast<char*>(dst);
  char* const copy = static_cast<char*>(also);
  const size_t bytes = count * F::kSize;
  size_t at = 0;
  for (; bytes - at >= kBlocks; at += kBlocks)
    reduce_step<F, O, Block, 4>(to, copy, src, sources, factors, at);
  for (; bytes - at >= kVector; at += kVector)
    reduce_step<F, O, Vector, 1>(to, copy, src, sources, factors, at);
  for (; at < bytes; at += F::kSize) {
    reduce_step<F, O, Scalar, 1>(to, copy, src, sources, factors, at);
    keep_scalar();
  }
}

// The mean of integers: the sum wraps in 64 bits, the division truncates toward zero.
template <class T, class Wide>
void average_integers(void* dst, void* also, const void* const* src, int sources, size_t count,
                      const double*) {
  for (size_t at = 0; at < count * sizeof(T); at += sizeof(T)) {
    uint64_t sum = 0;
    for (int r = 0; r < sources; ++r) {
      sum += static_cast<uint64_t>(static_cast<Wide>(load_raw<T>(static_cast<const char*>(src[r]) + at)));
    }
    const T mean = static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(sources));
    store_raw(static_cast<char*>(dst) + at, mean);
    if (also != nullptr) store_raw(static_cast<char*>(also) + at, mean);
    keep_scalar();
  }
}

// Complex numbers: the real and the imaginary parts by themselves.
template <class F, class O>
void reduce_pairs(void* dst, void* also, const void* const* src, int sources, size_t count,
                  const double* factors) {
  reduce<F, O>(dst, also, src, sources, 2 * count, factors);
}

// ---- Choice of kernel ----

template <class F>
ReduceFn floating(Op op) {
  switch (op) {
    case Op::sum:
      return reduce<F, Sum>;
    case Op::avg:
      return reduce<F, Avg>;
    case Op::min:
      return reduce<F, Min>;
    case Op::max:
      return reduce<F, Max>;
    case Op::product:
      return reduce<F, Product>;
    case Op::premul_sum:
      return reduce<F, PremulSum>;
    default:
      return nullptr;
  }
}

template <class F>
ReduceFn complex_pairs(Op op) {
  switch (op) {
    case Op::sum:
      return reduce_pairs<F, Sum>;
    case Op::avg:
      return reduce_pairs<F, Avg>;
    case Op::premul_sum:
      return reduce_pairs<F, PremulSum>;
    default:
      return nullptr;
  }
}

// T gives the order; what does not depend on the sign is done in Unsigned, whose overflow is defined.
template <class T, class Unsigned, class Wide = int64_t>
ReduceFn integer(Op op) {
  switch (op) {
    case Op::sum:
      return reduce<Plain<Unsigned>, Sum>;
    case Op::avg:
      return average_integers<T, Wide>;
    case Op::min:
      return reduce<Plain<T>, Min>;
    case Op::max:
      return reduce<Plain<T>, Max>;
    case Op::product:
      return reduce<Plain<Unsigned>, Product>;
    case Op::band:
      return reduce<Plain<Unsigned>, And>;
    case Op::bor:
      return reduce<Plain<Unsigned>, Or>;
    case Op::bxor:
      return reduce<Plain<Unsigned>, Xor>;
    case Op::premul_sum:
      return nullptr;
  }
  return nullptr;
}

ReduceFn boolean(Op op) {
  switch (op) {
    case Op::sum:
    case Op::max:
    case Op::bor:
      return reduce<Bool, Or>;
    case Op::min:
    case Op::product:
    case Op::band:
      return reduce<Bool, And>;
    case Op::bxor:
      return reduce<Bool, Xor>;
    case Op::avg:
    case Op::premul_sum:
      return nullptr;
  }
  return nullptr;
}

}  // namespace

namespace COLLECTIVES_ISA {

ReduceFn select_kernel(DType dtype, Op op) {
  switch (dtype) {
    case DType::f32:
      return floating<Plain<float>>(op);
    case DType::f64:
      return floating<Plain<double>>(op);
    case DType::f16:
      return floating<Half>(op);
    case DType::bf16:
      return floating<Brain>(op);
    case DType::f8e4m3:
      return floating<Encoded<Float8E4M3FN, uint8_t>>(op);
    case DType::f8e5m2:
      return floating<Encoded<Float8E5M2, uint8_t>>(op);
    case DType::i8:
      return integer<int8_t, uint8_t>(op);
    case DType::i16:
      return integer<int16_t, uint16_t>(op);
    case DType::i32:
      return integer<int32_t, uint32_t>(op);
    case DType::i64:
      return integer<int64_t, uint64_t>(op);
    case DType::u8:
      return integer<uint8_t, uint8_t>(op);
    case DType::u16:
      return integer<uint16_t, uint16_t>(op);
    case DType::u32:
      return integer<uint32_t, uint32_t>(op);
    case DType::u64:
      return integer<uint64_t, uint64_t, uint64_t>(op);
    case DType::b8:
      return boolean(op);
    case DType::c64:
      return complex_pairs<Plain<float>>(op);
    case DType::c128:
      return complex_pairs<Plain<double>>(op);
  }
  return nullptr;
}

}  // namespace COLLECTIVES_ISA
}  // namespace collectives
