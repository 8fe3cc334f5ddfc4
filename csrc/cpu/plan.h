// Which algorithm serves a call, and in what pieces: a function of the descriptor and of circumstances that
// all ranks see alike, so that they come to the same plan without a word.
#pragma once

#include <cstddef>
#include <string>

#include "core/descriptor.h"

namespace collectives {

struct Circumstances {
  int world;
  size_t slot_bytes;
  bool direct;  // every rank may read every other one's memory
  bool far;     // some ranks sit behind different caches
};

struct Plan {
  Algorithm algorithm = Algorithm::one_shot;
  size_t chunk = 0;   // elements that one exchange moves for each rank (of the count in the descriptor)
  size_t chunks = 1;  // at least 1: an empty call still exchanges flags; all_to_all_v learns them as it runs
  const char* reason = "";  // why this algorithm
};

// The collectives that can read the ranks' own arrays in place.
bool serves_symmetric(Collective collective);
// Such calls without a forced algorithm first ask whether all arrays are symmetric, if all ranks have such
// memory; a plan made beforehand knows nothing of it.
bool tries_symmetric(const Descriptor& descriptor, int world);

// Throws BadArgument where descriptor.algorithm forces one that cannot serve the call.
Plan make_plan(const Descriptor& descriptor, const Circumstances& circumstances);

}  // namespace collectives
