#pragma once

#include <cstdint>
#include <string_view>

#include "core/dtype.h"

namespace collectives {

// Reduction operators. The values travel between ranks: append, never renumber.
enum class Op : uint8_t { sum, avg, min, max, product, band, bor, bxor, premul_sum };

inline constexpr int kOpCount = 9;
inline constexpr const char* kOpNames[kOpCount] = {"sum",  "avg", "min",  "max",       "product",
                                                   "band", "bor", "bxor", "premul_sum"};

constexpr const char* name(Op op) { return kOpNames[static_cast<int>(op)]; }

// Sets `op` and returns true where `text` names an operator.
constexpr bool parse(std::string_view text, Op& op) {
  for (int i = 0; i < kOpCount; ++i) {
    if (text == kOpNames[i]) {
      op = static_cast<Op>(i);
      return true;
    }
  }
  return false;
}

// Complex numbers move but do not reduce; the mean of truth values has no bool.
constexpr bool supports(DType dtype, Op op) {
  switch (op) {
    case Op::sum:
    case Op::min:
    case Op::max:
    case Op::product:
      return !is_complex(dtype);
    case Op::avg:
      return is_floating(dtype) || is_integer(dtype);
    case Op::band:
    case Op::bor:
    case Op::bxor:
      return is_integer(dtype) || dtype == DType::b8;
  }
  return false;
}

}  // namespace collectives
