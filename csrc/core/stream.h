// Copies that leave no trace in the cache.
#pragma once

#include <cstddef>

namespace collectives {

// memcpy with non-temporal stores where the machine has them. An ordinary store first reads the line that it
// is going to overwrite; for an output that the caches cannot hold anyway that is a third of the memory
// traffic. Non-temporal stores are not ordered by a later release: this ends with a store fence.
void stream_copy(void* to, const void* from, size_t bytes);

}  // namespace collectives
