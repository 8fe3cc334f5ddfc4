// Tiny calls: the payload rides in the flag line.
//
// Bytes moved per rank: one cache line written, W - 1 read. Steps: one exchange.
// Order, reuse and failure: those of the flag line itself (group.h).
#pragma once

#include <vector>

#include "cpu/call.h"
#include "cpu/group.h"

namespace collectives {

template <class Memory>
void run_inline(Group<Memory>& group, const Call& call, std::vector<const void*>& sources) {
  const unsigned bank = group.next_bank();
  const int world = group.world();
  const size_t bytes = call.descriptor.bytes();
  auto payload = [&](int peer) { return group.line(peer, bank).payload; };
  switch (call.descriptor.collective) {
    case Collective::barrier:
      group.enter();
      return;
    case Collective::broadcast:
      group.enter(call.in, static_cast<int>(call.descriptor.root) == group.rank() ? bytes : 0);
      if (static_cast<int>(call.descriptor.root) != group.rank())
        Memory::read(call.out, payload(static_cast<int>(call.descriptor.root)), bytes, false);
      return;
    case Collective::all_gather:
      group.enter(call.in, bytes);
      for (int peer = 0; peer < world; ++peer)
        Memory::read(call.out + static_cast<size_t>(peer) * bytes, payload(peer), bytes, false);
      return;
    case Collective::all_reduce:
    case Collective::reduce_scatter: {
      const bool scatters = call.descriptor.collective == Collective::reduce_scatter;
      group.enter(call.in, scatters ? bytes * static_cast<size_t>(world) : bytes);
      const size_t offset = scatters ? bytes * static_cast<size_t>(group.rank()) : 0;
      for (int peer = 0; peer < world; ++peer) sources[static_cast<size_t>(peer)] = payload(peer) + offset;
      Memory::reduce(call.reduction(), call.out, nullptr, sources.data(), world, call.count());
      return;
    }
  }
}

}  // namespace collectives
