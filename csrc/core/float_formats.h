#pragma once

#include <cstdint>

// Conversions between float and the 16- and 8-bit formats, written once for a single float and for a vector
// of them (the GNU vector extension), without branches. All of it is integer arithmetic except one exact or
// rounding addition of normal numbers, so that flush-to-zero modes of the calling thread change nothing.
// Encoding rounds to nearest, ties to even. Everything is always_inline: object files built for different
// instruction sets share no code from here.

#define COLLECTIVES_INLINE [[gnu::always_inline]] inline

namespace collectives {

// The integer types of the same shape as F.
template <class F>
struct BitsOf;

template <>
struct BitsOf<float> {
  using Signed = int32_t;
  using Unsigned = uint32_t;
};

// A format with an implicit leading bit and subnormals. Encoded bits sit in the low bits of a 32-bit lane.
template <int kExponentBits, int kMantissaBits, bool kHasInfinity>
struct SmallFloat {
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kSignBit = kExponentBits + kMantissaBits;
  static constexpr int32_t kMagnitude = (1 << kSignBit) - 1;
  static constexpr int32_t kRebias = (127 - ((1 << (kExponentBits - 1)) - 1)) << 23;
  static constexpr int32_t kMinNormal = kRebias + (1 << 23);  // as float bits
  static constexpr int32_t kInfinity = kMagnitude >> kMantissaBits << kMantissaBits;
  static constexpr int32_t kMax = kHasInfinity ? kInfinity : kMagnitude - 1;  // what overflow becomes

  template <class F>
  COLLECTIVES_INLINE static F decode(typename BitsOf<F>::Unsigned bits) {
    using I = typename BitsOf<F>::Signed;
    const I all = (I)bits;
    const I magnitude = (all & kMagnitude) << kShift;
    const I sign = (all >> kSignBit) << 31;
    const I normal = magnitude + kRebias;
    // A subnormal becomes a normal number by borrowing the smallest normal's leading bit, which is then
    // subtracted.
    const F borrowed = __builtin_bit_cast(F, (I)(magnitude + kMinNormal));
    const I subnormal = __builtin_bit_cast(I, (F)(borrowed - __builtin_bit_cast(float, kMinNormal)));
    const I special = magnitude | 0x7f800000;
    const I finite = magnitude < (1 << 23) ? subnormal : normal;
    constexpr int32_t kLastFinite = (kHasInfinity ? kInfinity - 1 : kMax) << kShift;
    return __builtin_bit_cast(F, (I)((magnitude > kLastFinite ? special : finite) | sign));
  }

  template <class F>
  COLLECTIVES_INLINE static typename BitsOf<F>::Unsigned encode(F value) {
    using I = typename BitsOf<F>::Signed;
    using U = typename BitsOf<F>::Unsigned;
    const U all = __builtin_bit_cast(U, value);
    const I magnitude = (I)(all & 0x7fffffffu);
    const I sign = (I)((all >> 31) << kSignBit);
    const I odd = (magnitude >> kShift) & 1;
    const I normal = (magnitude - kRebias + ((1 << (kShift - 1)) - 1) + odd) >> kShift;
    // The sum's unit in the last place is the smallest subnormal, so that the addition does the rounding.
    constexpr int32_t kAligned = kRebias + ((kShift + 1) << 23);
    const F aligned = __builtin_bit_cast(F, magnitude) + __builtin_bit_cast(float, kAligned);
    const I subnormal = __builtin_bit_cast(I, aligned) - kAligned;
    const I finite = magnitude < kMinNormal ? subnormal : normal;
    const I limit = I{} + kMax;
    // NaN: binary16 keeps the payload's high bits as the hardware conversions do; the 8-bit formats have all
    // ones.
    const I nan = kMantissaBits == 10
                      ? ((magnitude >> kShift) & kMagnitude) | kInfinity | (1 << (kMantissaBits - 1))
                      : I{} + kMagnitude;
    constexpr int32_t kOverflow = (kMax << kShift) + kRebias;  // float bits that cannot round to below kMax
    const I number = magnitude > kOverflow ? limit : finite;
    return (U)((magnitude > 0x7f800000 ? nan : number) | sign);
  }
};

using Float16 = SmallFloat<5, 10, true>;
using Float8E5M2 = SmallFloat<5, 2, true>;
using Float8E4M3FN = SmallFloat<4, 3, false>;  // no infinity: overflow saturates to 448

// The upper half of a float.
struct BFloat16 {
  template <class F>
  COLLECTIVES_INLINE static F decode(typename BitsOf<F>::Unsigned bits) {
    using U = typename BitsOf<F>::Unsigned;
    return __builtin_bit_cast(F, (U)(bits << 16));
  }

  template <class F>
  COLLECTIVES_INLINE static typename BitsOf<F>::Unsigned encode(F value) {
    using U = typename BitsOf<F>::Unsigned;
    const U all = __builtin_bit_cast(U, value);
    const U rounded = (all + 0x7fffu + ((all >> 16) & 1u)) >> 16;
    const U nan = (all >> 16) | 0x40u;  // rounding could carry a NaN into infinity
    return value != value ? nan : rounded;
  }
};

}  // namespace collectives
