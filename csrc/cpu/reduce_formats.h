#pragma once

// How each element type lies in memory and what it is accumulated in, for the instruction set that the
// including file is compiled for. Only reduce_kernels.cpp includes this: the unnamed namespace keeps each
// instruction set's code its own.

#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "core/float_formats.h"

#if defined(__AVX512F__)
#define COLLECTIVES_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define COLLECTIVES_VECTOR_BYTES 32
#else
#define COLLECTIVES_VECTOR_BYTES 16
#endif

namespace collectives {
namespace {

template <class T, int kLanes = COLLECTIVES_VECTOR_BYTES / sizeof(T)>
struct Lanes {
  typedef T Type __attribute__((vector_size(kLanes * sizeof(T))));
};

constexpr int kFloatLanes = COLLECTIVES_VECTOR_BYTES / sizeof(float);
using Floats = Lanes<float>::Type;

#if defined(__AVX512F__)
constexpr uint16_t kAllLanes = 0xffff;  // gcc 12 warns of uninitialized values in the forms without a mask
#endif

}  // namespace

template <>
struct BitsOf<Floats> {
  using Signed = Lanes<int32_t>::Type;
  using Unsigned = Lanes<uint32_t>::Type;
};

namespace {

// Unaligned, and free to alias: inputs are any bytes.
template <class T>
COLLECTIVES_INLINE T load_raw(const char* from) {
  T value;
  __builtin_memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
COLLECTIVES_INLINE void store_raw(char* to, T value) {
  __builtin_memcpy(to, &value, sizeof(T));
}

// ---- Formats: how an element type lies in memory and what it is accumulated in ----
// Scalar, Vector and Block (for long runs) are the accumulators; load, store and round take each of them.

template <class T>
struct Plain {
  static constexpr size_t kSize = sizeof(T);
  using Scalar = T;
  using Vector = typename Lanes<T>::Type;
  using Block = Vector;

  template <class V>
  COLLECTIVES_INLINE static V load(const char* from) {
    return load_raw<V>(from);
  }
  template <class V>
  COLLECTIVES_INLINE static void store(char* to, V value) {
    store_raw(to, value);
  }
  template <class V>
  COLLECTIVES_INLINE static V round(V value) {
    return value;
  }
};

// Any non-zero byte is true; results are 0 or 1.
struct Bool : Plain<uint8_t> {
  template <class V>
  COLLECTIVES_INLINE static V load(const char* from) {
    return (V)(load_raw<V>(from) != 0) & 1;
  }
};

// The lanes of a float vector hold 32-bit integers, memory holds the low 16 or 8 bits of each. The
// instructions are named because gcc 12 makes long sequences or scalar code of the general conversion.
using Words = Lanes<uint32_t>::Type;

template <class T>
COLLECTIVES_INLINE Words widen(const char* from) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 2) return (Words)_mm512_maskz_cvtepu16_epi32(kAllLanes, load_raw<__m256i>(from));
  return (Words)_mm512_maskz_cvtepu8_epi32(kAllLanes, load_raw<__m128i>(from));
#elif defined(__AVX2__)
  if constexpr (sizeof(T) == 2) return (Words)_mm256_cvtepu16_epi32(load_raw<__m128i>(from));
  return (Words)_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(load_raw<int64_t>(from)));
#elif defined(__SSE2__)
  const __m128i zero = _mm_setzero_si128();
  if constexpr (sizeof(T) == 2)
    return (Words)_mm_unpacklo_epi16(_mm_cvtsi64_si128(load_raw<int64_t>(from)), zero);
  return (Words)_mm_unpacklo_epi16(_mm_unpacklo_epi8(_mm_cvtsi32_si128(load_raw<int32_t>(from)), zero), zero);
#elif defined(__aarch64__)
  if constexpr (sizeof(T) == 2) return (Words)vmovl_u16(load_raw<uint16x4_t>(from));
  const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(load_raw<uint32_t>(from)));
  return (Words)vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
#else
  return __builtin_convertvector(load_raw<typename Lanes<T, kFloatLanes>::Type>(from), Words);
#endif
}

template <class T>
COLLECTIVES_INLINE void narrow(char* to, Words words) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 2) {
    store_raw(to, _mm512_maskz_cvtepi32_epi16(kAllLanes, (__m512i)words));
  } else {
    store_raw(to, _mm512_maskz_cvtepi32_epi8(kAllLanes, (__m512i)words));
  }
#elif defined(__AVX2__)
  const __m256i halves = _mm256_packus_epi32((__m256i)words, (__m256i)words);  // each 128-bit half twice
  if constexpr (sizeof(T) == 2) {
    store_raw(to, _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
  } else {
    const __m256i bytes = _mm256_packus_epi16(halves, halves);
    const __m128i joined =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
    store_raw(to, _mm_cvtsi128_si64(joined));
  }
#elif defined(__SSE2__)
  // SSE2 packs with signed saturation only, which the sign extension of the low 16 bits keeps from happening.
  const __m128i extended = _mm_srai_epi32(_mm_slli_epi32((__m128i)words, 16), 16);
  const __m128i halves = _mm_packs_epi32(extended, extended);
  if constexpr (sizeof(T) == 2) {
    store_raw(to, _mm_cvtsi128_si64(halves));
  } else {
    store_raw(to, _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves)));
  }
#elif defined(__aarch64__)
  const uint16x4_t halves = vmovn_u32((uint32x4_t)words);
  if constexpr (sizeof(T) == 2) {
    store_raw(to, halves);
  } else {
    store_raw(to, vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(halves, halves))), 0));
  }
#else
  store_raw(to, __builtin_convertvector(words, typename Lanes<T, kFloatLanes>::Type));
#endif
}

// Accumulated in float, kept in memory as T.
template <class Codec, class T>
struct Encoded {
  static constexpr size_t kSize = sizeof(T);
  using Scalar = float;
  using Vector = Floats;
  using Block = Floats;

  template <class V>
  COLLECTIVES_INLINE static V load(const char* from) {
    if constexpr (sizeof(V) == sizeof(float)) {
      return Codec::template decode<V>(load_raw<T>(from));
    } else {
      return Codec::template decode<V>(widen<T>(from));
    }
  }
  template <class V>
  COLLECTIVES_INLINE static void store(char* to, V value) {
    if constexpr (sizeof(V) == sizeof(float)) {
      store_raw(to, static_cast<T>(Codec::encode(value)));
    } else {
      narrow<T>(to, Codec::encode(value));
    }
  }
  template <class V>
  COLLECTIVES_INLINE static V round(V value) {
    return Codec::template decode<V>(Codec::encode(value));
  }
};

// Elements with even and with odd indices.
struct FloatPair {
  Floats even;
  Floats odd;
};

// A bfloat16 is the upper half of a float, so that a (little-endian) word of memory holds two without any
// shuffling.
struct Brain : Encoded<BFloat16, uint16_t> {
  using Block = FloatPair;
  using Encoded::round;
  using Encoded::store;

  template <class V>
  COLLECTIVES_INLINE static V load(const char* from) {
    if constexpr (__is_same(V, FloatPair)) {
      const Words words = load_raw<Words>(from);
      return {(Floats)(words << 16), (Floats)(words & 0xffff0000u)};
    } else {
      return Encoded::load<V>(from);
    }
  }
  COLLECTIVES_INLINE static void store(char* to, FloatPair value) {
    store_raw(to, BFloat16::encode(value.even) | BFloat16::encode(value.odd) << 16);
  }
  COLLECTIVES_INLINE static FloatPair round(FloatPair value) { return {round(value.even), round(value.odd)}; }
};

#if defined(__F16C__)
// gcc leaves conversions of _Float16 scalar, so the instructions are named. Their bits are those of the
// generic code.
struct Half : Encoded<Float16, uint16_t> {
  static constexpr uint16_t kAll =
      0xffff;  // the unmasked forms of AVX-512 warn of uninitialized values in gcc 12

  template <class V>
  COLLECTIVES_INLINE static V load(const char* from) {
    if constexpr (sizeof(V) == sizeof(float)) {
      return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_raw<uint16_t>(from))));
    } else {
#if defined(__AVX512F__)
      return _mm512_maskz_cvtph_ps(kAllLanes, load_raw<__m256i>(from));
#else
      return _mm256_cvtph_ps(load_raw<__m128i>(from));
#endif
    }
  }
  template <class V>
  COLLECTIVES_INLINE static void store(char* to, V value) {
    constexpr int kNearestEven = 0;
    if constexpr (sizeof(V) == sizeof(float)) {
      const __m128i bits = _mm_cvtps_ph(_mm_set_ss(value), kNearestEven);
      store_raw(to, static_cast<uint16_t>(_mm_cvtsi128_si32(bits)));
    } else {
#if defined(__AVX512F__)
      store_raw(to, _mm512_maskz_cvtps_ph(kAllLanes, value, kNearestEven));
#else
      store_raw(to, _mm256_cvtps_ph(value, kNearestEven));
#endif
    }
  }
};
#else
using Half = Encoded<Float16, uint16_t>;
#endif

}  // namespace
}  // namespace collectives
