// Which algorithm serves a call, and in what pieces: a function of the descriptor, the world size and the
// slot size, so that all ranks come to the same plan without a word.
#pragma once

#include <cstddef>
#include <string>

#include "core/descriptor.h"

namespace collectives {

struct Plan {
  Algorithm algorithm = Algorithm::one_shot;
  size_t chunk = 0;   // elements that one exchange moves for each rank (of the count in the descriptor)
  size_t chunks = 1;  // at least 1: an empty call still exchanges flags
};

// Throws BadArgument where descriptor.algorithm forces one that cannot serve the call.
Plan make_plan(const Descriptor& descriptor, int world, size_t slot_bytes);

// Why make_plan chose what it chose, in a sentence.
std::string reason(const Descriptor& descriptor, const Plan& plan, int world);

}  // namespace collectives
