// The 16- and 8-bit float formats against a reference that works in double precision with libm: every encoded
// value, every rounding boundary and its two neighbours, overflow, infinity, NaN and random bits; with and
// without the flush-to-zero modes of the CPU.

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>

#include "core/float_formats.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace collectives;

namespace {

int failures = 0;

struct Layout {
  const char* name;
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t magnitude_mask() const { return (1u << (exponent_bits + mantissa_bits)) - 1; }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  bool is_nan(uint32_t bits) const {
    const uint32_t magnitude = bits & magnitude_mask();
    return has_infinity ? magnitude > infinity() : magnitude == magnitude_mask();
  }
  bool is_negative(uint32_t bits) const { return bits >> (exponent_bits + mantissa_bits) & 1; }
  uint32_t max_finite() const { return has_infinity ? infinity() - 1 : magnitude_mask() - 1; }
};

// The value of a magnitude as if the exponent had no special meaning, so that infinity stands one step above
// the largest finite number.
double plain_value(const Layout& layout, uint32_t magnitude) {
  const int exponent = static_cast<int>(magnitude >> layout.mantissa_bits);
  const double mantissa = magnitude & ((1u << layout.mantissa_bits) - 1);
  const double leading = exponent == 0 ? 0.0 : std::ldexp(1.0, layout.mantissa_bits);
  return std::ldexp(mantissa + leading,
                    (exponent == 0 ? 1 : exponent) - layout.bias() - layout.mantissa_bits);
}

uint32_t reference_encode(const Layout& layout, float value) {
  const uint32_t sign = std::signbit(value) ? layout.magnitude_mask() + 1 : 0;
  const uint32_t overflow = layout.has_infinity ? layout.infinity() : layout.max_finite();
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(value)) return sign | overflow;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - layout.bias());
  const double steps = std::nearbyint(std::ldexp(magnitude, layout.mantissa_bits - exponent));
  // Steps of one binade carry into the next exponent by themselves.
  const double bits =
      std::ldexp(static_cast<double>(exponent + layout.bias() - 1), layout.mantissa_bits) + steps;
  return sign | (bits > layout.max_finite() ? overflow : static_cast<uint32_t>(bits));
}

template <class Codec>
void check_encode(const Layout& layout, uint32_t float_bits) {
  const float value = std::bit_cast<float>(float_bits);
  const uint32_t got = Codec::template encode<float>(value);
  if ((float_bits & 0x7fffffffu) > 0x7f800000u) {
    const bool sign_kept = layout.is_negative(got) == (float_bits >> 31 != 0);
    if (layout.is_nan(got) && sign_kept && got <= (layout.magnitude_mask() << 1 | 1)) return;
  } else if (got == reference_encode(layout, value)) {
    return;
  }
  if (++failures < 20) std::printf("%s: encode(0x%08x) gave 0x%x\n", layout.name, float_bits, got);
}

template <class Codec>
void check_decode(const Layout& layout, uint32_t bits) {
  const float got = Codec::template decode<float>(bits);
  const uint32_t got_bits = std::bit_cast<uint32_t>(got);
  const uint32_t magnitude = bits & layout.magnitude_mask();
  bool right = layout.is_negative(bits) == (got_bits >> 31 != 0);
  if (layout.is_nan(bits)) {
    right = right && (got_bits & 0x7fffffffu) > 0x7f800000u;
  } else if (layout.has_infinity && magnitude == layout.infinity()) {
    right = right && (got_bits & 0x7fffffffu) == 0x7f800000u;
  } else {
    const float wanted = static_cast<float>(plain_value(layout, magnitude));
    right = right && (got_bits & 0x7fffffffu) == std::bit_cast<uint32_t>(wanted);
  }
  if (!right && ++failures < 20) std::printf("%s: decode(0x%x) gave 0x%08x\n", layout.name, bits, got_bits);
}

template <class Codec>
void check(const Layout& layout) {
  for (uint32_t bits = 0; bits <= (layout.magnitude_mask() << 1 | 1); ++bits)
    check_decode<Codec>(layout, bits);
  for (uint32_t magnitude = 0; magnitude <= layout.magnitude_mask(); ++magnitude) {
    const double here = plain_value(layout, magnitude);
    const double next = plain_value(layout, magnitude + 1);
    for (const double point : {here, (here + next) / 2}) {
      const uint32_t center = std::bit_cast<uint32_t>(static_cast<float>(point));
      for (int step = -1; step <= 1; ++step) {
        const uint32_t bits = (center + static_cast<uint32_t>(step)) & 0x7fffffffu;
        check_encode<Codec>(layout, bits);
        check_encode<Codec>(layout, bits | 0x80000000u);
      }
    }
  }
  for (const uint32_t bits :
       {0x7f800000u, 0x7f7fffffu, 0x7f800001u, 0x7fc00000u, 0x7fffffffu, 0x00000001u, 0x007fffffu}) {
    check_encode<Codec>(layout, bits);
    check_encode<Codec>(layout, bits | 0x80000000u);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 1000000; ++i) check_encode<Codec>(layout, static_cast<uint32_t>(random()));
}

void check_all() {
  check<Float16>({"float16", 5, 10, true});
  check<BFloat16>({"bfloat16", 8, 7, true});
  check<Float8E4M3FN>({"float8_e4m3fn", 4, 3, false});
  check<Float8E5M2>({"float8_e5m2", 5, 2, true});
}

}  // namespace

int main() {
  check_all();
#if defined(__x86_64__)
  // Not bfloat16, whose subnormals are floats that the reference itself would flush; its code is integer
  // only.
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040u);  // flush to zero, denormals are zero
  check<Float16>({"float16, flushing", 5, 10, true});
  check<Float8E4M3FN>({"float8_e4m3fn, flushing", 4, 3, false});
  check<Float8E5M2>({"float8_e5m2, flushing", 5, 2, true});
  _mm_setcsr(saved);
#endif
  std::printf("%s\n", failures == 0 ? "ok" : "FAILED");
  return failures != 0;
}
