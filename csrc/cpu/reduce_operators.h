#pragma once

// The operators on accumulators, for the instruction set that the including file is compiled for. Only
// reduce_kernels.cpp includes this: see reduce_formats.h.

#include <cstdint>

#include "cpu/reduce_formats.h"

namespace collectives {
namespace {

struct Operator {
  // What source `r` puts into the accumulator.
  template <class V>
  COLLECTIVES_INLINE static V weigh(V x, const double*, int) {
    return x;
  }
  template <class V>
  COLLECTIVES_INLINE static V finish(V accumulated, int) {
    return accumulated;
  }
};

struct Sum : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return a + x;
  }
};

struct Avg : Sum {
  template <class V>
  COLLECTIVES_INLINE static V finish(V accumulated, int sources) {
    if constexpr (__is_same(V, double) || __is_same(V, Lanes<double>::Type)) {
      return accumulated / static_cast<double>(sources);
    } else {
      return accumulated / static_cast<float>(sources);
    }
  }
};

struct PremulSum : Sum {
  template <class V>
  COLLECTIVES_INLINE static V weigh(V x, const double* factors, int r) {
    if constexpr (__is_same(V, double) || __is_same(V, Lanes<double>::Type)) {
      return x * factors[r];
    } else {
      return x * static_cast<float>(factors[r]);
    }
  }
};

struct Product : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return a * x;
  }
  // Promotion to int would overflow.
  COLLECTIVES_INLINE static uint16_t combine(uint16_t a, uint16_t x) {
    return static_cast<uint16_t>(uint32_t{a} * x);
  }
};

// A NaN stays once it is there; of equal values (0 and -0) the earlier stays.
struct Min : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return ((a <= x) | (a != a)) ? a : x;
  }
};

struct Max : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return ((a >= x) | (a != a)) ? a : x;
  }
};

struct And : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return a & x;
  }
};

struct Or : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return a | x;
  }
};

struct Xor : Operator {
  template <class V>
  COLLECTIVES_INLINE static V combine(V a, V x) {
    return a ^ x;
  }
};

template <class O, class V>
COLLECTIVES_INLINE V weigh(V x, const double* factors, int r) {
  return O::weigh(x, factors, r);
}

template <class O>
COLLECTIVES_INLINE FloatPair weigh(FloatPair x, const double* factors, int r) {
  return {O::weigh(x.even, factors, r), O::weigh(x.odd, factors, r)};
}

template <class O, class V>
COLLECTIVES_INLINE V combine(V a, V x) {
  return O::combine(a, x);
}

template <class O>
COLLECTIVES_INLINE FloatPair combine(FloatPair a, FloatPair x) {
  return {O::combine(a.even, x.even), O::combine(a.odd, x.odd)};
}

template <class O, class V>
COLLECTIVES_INLINE V finish(V accumulated, int sources) {
  return O::finish(accumulated, sources);
}

template <class O>
COLLECTIVES_INLINE FloatPair finish(FloatPair accumulated, int sources) {
  return {O::finish(accumulated.even, sources), O::finish(accumulated.odd, sources)};
}

}  // namespace
}  // namespace collectives
