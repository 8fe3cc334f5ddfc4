// The schedule that all staged algorithms share; what differs is a policy.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "cpu/call.h"
#include "cpu/group.h"

namespace collectives {

// What every policy works on: a call of a group, cut into chunks of at most `chunk` elements.
template <class Memory>
struct Staged {
  Group<Memory>& group;
  const Call& call;
  size_t chunk;
  std::vector<const void*>& sources;  // scratch: the inputs of one reduction

  int rank() const { return group.rank(); }
  int world() const { return group.world(); }
  size_t item() const { return call.item(); }
  Range range(size_t k) const { return chunk_range(call.count(), chunk, k); }
  // The peers in an order of each rank's own, so that not all read one rank at a time; step 0 is this rank.
  int peer_at(int step) const { return (rank() + step) % world(); }
  void stage(char* slot, const char* from, size_t elements) const {
    Memory::write(slot, from, elements * item(), group.far());
  }
  void deliver(char* to, const char* from, size_t elements) const {
    Memory::read(to, from, elements * item(), call.streamed);
  }
};

// Runs `policy` over `chunks` chunks, one exchange of flags a chunk:
//
//     stage(k)    write chunk k for the peers into this rank's staging slot
//     exchange    everybody's chunk k is staged, and everybody's result of chunk k-1 is written
//     consume(k)  read the peers' staging slots
//     collect(k)  read the peers' result slots, one exchange later; only where the policy has results
//
// Reuse: a staging slot written before exchange s is read between s and s+1 and written again before s+2,
// after this rank has waited for s+1. A result slot written after exchange s is read between s+1 and s+2 and
// written again after s+2. So two banks suffice, and the next call may follow at once: no barrier ends a
// call.
template <class Policy>
void run_pipeline(Policy&& policy, size_t chunks) {
  auto& group = policy.job.group;
  constexpr size_t kTail = std::remove_reference_t<Policy>::kCollects ? 1 : 0;
  for (size_t k = 0; k < chunks + kTail; ++k) {
    const unsigned bank = group.next_bank();
    if (k < chunks) policy.stage(k, bank);
    if (k == 0)
      group.enter();
    else
      group.exchange();
    if (k < chunks) policy.consume(k, bank);
    if constexpr (kTail > 0)
      if (k > 0) policy.collect(k - 1, bank ^ 1);
  }
}

}  // namespace collectives
