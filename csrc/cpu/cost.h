// How long a call is expected to take: a first model.
#pragma once

#include "cpu/call.h"
#include "cpu/plan.h"

namespace collectives {

// Seconds of one call whose ranks arrive together:
//
//     base + exchanges * exchange + bytes that a rank moves / bandwidth
//
// where the bytes are those that the contracts of the algorithms state: staged, read, reduced, written. The
// constants are round figures near those of docs/performance.md, not fitted to any machine; a later version
// measures them.
double estimate(const Call& call, const Plan& plan, int world, bool far);

}  // namespace collectives
