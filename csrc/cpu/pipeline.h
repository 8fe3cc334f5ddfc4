// The schedule that all staged algorithms share; what differs is a policy.
#pragma once

#include <cstddef>
#include <type_traits>
#include <vector>

#include "cpu/call.h"
#include "cpu/group.h"

namespace collectives {

// What a call works with and leaves behind, kept from call to call: a call allocates nothing.
struct Scratch {
  std::vector<const void*> sources;  // the inputs of one reduction
  std::vector<double> factors;       // what premul_sum multiplies them by
  size_t staged = 0;                 // bytes written into this rank's staging and result slots

  explicit Scratch(int world) : sources(static_cast<size_t>(world)), factors(static_cast<size_t>(world)) {}
};

// What every policy works on: a call of a group, cut into chunks of at most `chunk` elements.
template <class Memory>
struct Staged {
  Group<Memory>& group;
  const Call& call;
  size_t chunk;
  Scratch& scratch;

  int rank() const { return group.rank(); }
  int world() const { return group.world(); }
  size_t item() const { return call.item(); }
  Range range(size_t k) const { return chunk_range(call.count(), chunk, k); }
  // The peers in an order of each rank's own, so that not all read one rank at a time; step 0 is this rank.
  int peer_at(int step) const { return (rank() + step) % world(); }

  int root() const { return static_cast<int>(call.descriptor.root); }
  bool is_root() const { return root() == rank(); }
  // The result of reduce and gather is the root's alone; the others' `out` may be null.
  bool has_result() const { return is_root() || !to_root(); }
  // Some peer gets one, and so reads what this rank has for it.
  bool peers_have_result() const { return world() > 1 && !(to_root() && is_root()); }

  // Where `from` stages what it has for `to`, if it has a part for each rank.
  char* part(int from, int to, unsigned bank) const {
    return group.staging(from, bank) + static_cast<size_t>(to) * chunk * item();
  }

  // The call's first exchange. The factors of premul_sum ride in the lines; they must be taken out of them
  // now, since the lines are written again two exchanges on.
  void enter() const {
    const Descriptor& d = call.descriptor;
    if (d.op != Op::premul_sum || !reduces(d.collective)) return group.enter();
    const unsigned bank = group.next_bank();
    group.enter(&call.factor, sizeof call.factor);
    for (int peer = 0; peer < world(); ++peer)
      Memory::read(&scratch.factors[static_cast<size_t>(peer)], group.line(peer, bank).payload,
                   sizeof call.factor, false);
  }
  void stage(char* slot, const char* from, size_t elements) const {
    Memory::write(slot, from, elements * item(), group.far());
    scratch.staged += elements * item();
  }
  void deliver(char* to, const char* from, size_t elements) const {
    Memory::read(to, from, elements * item(), call.streamed);
  }
  // Reduces scratch.sources.
  void reduce(char* to, char* also, size_t elements) const {
    Memory::reduce(call.reduction(), to, also, scratch.sources.data(), world(), elements,
                   scratch.factors.data());
  }

 private:
  bool to_root() const {
    return call.descriptor.collective == Collective::reduce ||
           call.descriptor.collective == Collective::gather;
  }
};

// Runs `policy` over `chunks` chunks, one exchange of flags a chunk:
//
//     stage(k)    write chunk k for the peers into this rank's staging slot
//     exchange    everybody's chunk k is staged, and everybody's result of chunk k-1 is written
//     consume(k)  read the peers' staging slots
//     collect(k)  read the peers' result slots, one exchange later; only where the policy has results
//
// The first exchange is the call's, unless the policy has `entered` the call by one of its own.
//
// Reuse: a staging slot written before exchange s is read between s and s+1 and written again before s+2,
// after this rank has waited for s+1. A result slot written after exchange s is read between s+1 and s+2 and
// written again after s+2. So two banks suffice, and the next call may follow at once: no barrier ends a
// call.
template <class Policy>
void run_pipeline(Policy&& policy, size_t chunks, bool entered = false) {
  auto& group = policy.job.group;
  constexpr size_t kTail = std::remove_reference_t<Policy>::kCollects ? 1 : 0;
  for (size_t k = 0; k < chunks + kTail; ++k) {
    const unsigned bank = group.next_bank();
    if (k < chunks) policy.stage(k, bank);
    if (k == 0 && !entered)
      policy.job.enter();
    else
      group.exchange();
    if (k < chunks) policy.consume(k, bank);
    if constexpr (kTail > 0)
      if (k > 0) policy.collect(k - 1, bank ^ 1);
  }
}

}  // namespace collectives
