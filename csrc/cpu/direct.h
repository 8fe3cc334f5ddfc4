// Direct: each rank reads the other ranks' own arrays, by process_vm_readv. Nothing is staged. It needs the
// kernel's leave (Membership::direct), and a second exchange, because nobody may return while it is being
// read.
//
// It wins for data that is only moved, where copies through the slots cost most: beyond the caches, and where
// ranks sit behind different caches. Reductions gain nothing by it (measured): what is pulled must be stored
// before it is added.
#pragma once

#include <cstring>

#include "core/copy.h"
#include "cpu/call.h"
#include "cpu/group.h"

namespace collectives {

// all_gather and broadcast. Bytes moved per rank for n bytes a rank: all_gather (W - 1) n read from peers and
// n copied; broadcast n read from the root. Steps: two exchanges. Order: the first carries the addresses and
// orders the inputs, the second ends the reads and tells all ranks whether they worked. Returns false on all
// ranks where some memory could not be read (memory of a device, say, or protected): the inputs are as they
// were, and the call is to be made another way. A peer that dies is named by the exchange like any other. The
// peers' memory is never written.
template <class Memory>
bool run_direct(Group<Memory>& group, const Call& call) {
  const auto mine = reinterpret_cast<uint64_t>(call.in);
  const size_t bytes = call.descriptor.bytes();
  unsigned bank = group.next_bank();
  group.enter(&mine, sizeof mine);
  bool worked = true;
  auto pull = [&](int peer, char* to) {
    uint64_t theirs;
    Memory::read(&theirs, group.line(peer, bank).payload, sizeof theirs, false);
    worked = worked && group.pull(peer, to, theirs, bytes);
  };
  if (call.descriptor.collective == Collective::broadcast) {
    const int root = static_cast<int>(call.descriptor.root);
    if (root != group.rank()) pull(root, call.out);
  } else {
    for (int step = 0; step < group.world();
         ++step) {  // begins with its own: not all read one rank at a time
      const int peer = (group.rank() + step) % group.world();
      char* to = call.out + static_cast<size_t>(peer) * bytes;
      if (step > 0)
        pull(peer, to);
      else if (to != call.in && call.streamed)
        stream_copy(to, call.in, bytes);
      else if (to != call.in)
        std::memcpy(to, call.in,
                    bytes);  // between two arrays of a kind REP MOVSB, which reads no line it fills, is best
    }
  }
  // A peer that gave up has said so before it let go of its array; none can have left in peace yet.
  group.check_peers();
  bank = group.next_bank();
  group.exchange(&worked, sizeof worked);
  for (int peer = 0; peer < group.world(); ++peer) worked = worked && group.line(peer, bank).payload[0] == 1;
  return worked;
}

}  // namespace collectives
