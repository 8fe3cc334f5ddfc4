// What to tell the users of ranks that do not agree on a call, or of a group that broke in one.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/failure.h"
#include "core/watch.h"

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

// The same for all_to_all_v, where the ranks must agree on the size of each part. counts[(2 * r + 0) * world
// + p] is what rank r sends to rank p, counts[(2 * r + 1) * world + p] what it expects from it. Nothing where
// all agree. The culprits are both ranks of every such pair: nobody can tell which of them is wrong.
std::optional<Failure> parts_disagreement(const std::vector<uint64_t>& counts, const Descriptor& mine,
                                          uint64_t epoch);

// How a call found the group broken, or broke it.
struct Breakdown {
  Descriptor call;
  uint64_t epoch;
  int rank;  // the one that tells
  int world;
  Standing standing;      // of that rank
  double timeout;         // seconds
  bool expired;           // its own timeout was over
  std::vector<int> late;  // ranks that have not arrived
};

// The failure for it, with what the culprits did last.
Failure broken(const Breakdown& breakdown, const Watch& watch);
// The same for a call after the one that said `first`: it was not made.
Failure still_broken(const Breakdown& breakdown, const Failure& first);

}  // namespace collectives
