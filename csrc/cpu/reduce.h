#pragma once

#include <cstddef>

#include "core/dtype.h"
#include "core/op.h"

namespace collectives {

// dst[i] = round_T(((src[0][i] op src[1][i]) op src[2][i]) ...) over `sources` >= 1 inputs of `count`
// elements, and the same bits go to also[i] unless `also` is null. Any alignment. `dst` may equal one src[r]
// exactly; otherwise neither output may overlap an input or the other output. Accumulation is in fp32 (fp64
// for fp64; 64 bits for averages of integers; other integers wrap in their own type; complex numbers as pairs
// of reals) with one rounding at the end, so that the bits depend on neither the instruction set nor how a
// tensor was cut into calls. premul_sum multiplies src[r] by factors[r], itself rounded to the type of
// accumulation, before it adds; no other operator looks at `factors`. The calling thread must round to
// nearest.
using ReduceFn = void (*)(void* dst, void* also, const void* const* src, int sources, size_t count,
                          const double* factors);

// The kernel for the best instruction set of this CPU; nullptr where supports() is false.
ReduceFn reduce_function(DType dtype, Op op);

// "baseline", "x86-64-v3", "x86-64-v4" or "neon".
const char* instruction_set();

// The same for a named instruction set; nullptr also where this build or this CPU lacks it.
ReduceFn reduce_function(DType dtype, Op op, const char* instruction_set);

}  // namespace collectives
