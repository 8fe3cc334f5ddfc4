// What to tell the users of ranks that do not agree on a call.
#pragma once

#include <string>
#include <vector>

#include "core/failure.h"

namespace collectives {

// What one rank published for a call.
struct Said {
  bool refused;
  Descriptor descriptor;
  std::string reason;  // of a refusal
};

// The failure for a call on which the ranks, `said[rank]`, do not agree. A function of what all ranks read
// alike, so that all raise the same. The culprits are the ranks that refused or, where none did, those
// outside a clear majority.
Failure disagreement(const std::vector<Said>& said, const Descriptor& mine, uint64_t epoch);

}  // namespace collectives
