#pragma once

#include <cstdint>
#include <string>
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

// Complex numbers reduce as pairs of reals, so only what is the same for both parts; the mean of truth values
// has no bool.
constexpr bool supports(DType dtype, Op op) {
  switch (op) {
    case Op::sum:
      return true;
    case Op::min:
    case Op::max:
    case Op::product:
      return !is_complex(dtype);
    case Op::avg:
      return dtype != DType::b8;
    case Op::premul_sum:
      return is_floating(dtype) || is_complex(dtype);
    case Op::band:
    case Op::bor:
    case Op::bxor:
      return is_integer(dtype) || dtype == DType::b8;
  }
  return false;
}

// "sum, avg and premul_sum"
inline std::string supported_ops(DType dtype) {
  std::string text, last;
  for (int i = 0; i < kOpCount; ++i) {
    if (!supports(dtype, static_cast<Op>(i))) continue;
    if (!last.empty()) text += (text.empty() ? "" : ", ") + last;
    last = kOpNames[i];
  }
  return text + " and " + last;
}

}  // namespace collectives
