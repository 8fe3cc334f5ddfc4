// The schedule that all staged algorithms share; what differs is a policy.
#pragma once

#include <cstddef>

#include "cpu/group.h"

namespace collectives {

// Runs `policy` over `chunks` chunks, one exchange of flags a chunk:
//
//     stage(k)    write chunk k for the peers into this rank's staging slot
//     exchange    everybody's chunk k is staged, and everybody's result of chunk k-1 is written
//     consume(k)  read the peers' staging slots
//     collect(k)  read the peers' result slots; one exchange later than consume(k), only where the policy has
//     results
//
// Reuse: a staging slot written before exchange s is read between s and s+1 and written again before s+2,
// after this rank has waited for s+1. A result slot written after exchange s is read between s+1 and s+2 and
// written again after s+2. So two banks suffice, and the next call may follow at once: no barrier ends a
// call.
template <class Memory, class Policy>
void run_pipeline(Group<Memory>& group, Policy&& policy, size_t chunks) {
  constexpr size_t kTail = Policy::kCollects ? 1 : 0;
  for (size_t k = 0; k < chunks + kTail; ++k) {
    const unsigned bank = group.next_bank();
    if (k < chunks) policy.stage(k, bank);
    if (k == 0)
      group.enter();
    else
      group.exchange();
    if (k < chunks) policy.consume(k, bank);
    if constexpr (Policy::kCollects)
      if (k > 0) policy.collect(k - 1, bank ^ 1);
  }
}

}  // namespace collectives
