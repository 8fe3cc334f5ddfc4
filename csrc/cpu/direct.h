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

// all_gather, broadcast, gather, scatter and all_to_all. Bytes moved per rank for n bytes a part: all_gather
// and all_to_all (W - 1) n read from peers and n copied, gather the same by the root; broadcast and scatter n
// read from the root. Steps: two exchanges. Order: the first carries the addresses and orders the inputs, the
// second ends the reads and tells all ranks whether they worked. Returns false on all ranks where some memory
// could not be read (memory of a device, say, or protected, or all_to_all in place, whose inputs would be
// written while they are read): the inputs are as they were, and the call is to be made another way. A peer
// that dies is named by the exchange like any other. The peers' memory is never written.
template <class Memory>
bool run_direct(Group<Memory>& group, const Call& call) {
  const Collective collective = call.descriptor.collective;
  const int root = static_cast<int>(call.descriptor.root), rank = group.rank();
  const size_t bytes = call.descriptor.bytes();
  const size_t mine = bytes * static_cast<size_t>(rank);  // where this rank's part of all is
  const bool overwrites = collective == Collective::all_to_all && call.in == call.out && bytes > 0;
  const uint64_t address = overwrites ? 0 : reinterpret_cast<uint64_t>(call.in);
  unsigned bank = group.next_bank();
  group.enter(&address, sizeof address);
  bool worked = !overwrites;
  auto pull = [&](int peer, char* to, size_t offset) {
    uint64_t theirs;
    Memory::read(&theirs, group.line(peer, bank).payload, sizeof theirs, false);
    worked = worked && (theirs != 0 || bytes == 0) && group.pull(peer, to, theirs + offset, bytes);
  };
  auto copy_own = [&](char* to, const char* from) {
    if (to == from) return;
    if (call.streamed)
      stream_copy(to, from, bytes);
    else
      std::memcpy(to, from,
                  bytes);  // between two arrays of a kind REP MOVSB, which reads no line it fills, is best
  };
  // The part at `offset` of every rank's input. Begins with its own: not all read one rank at a time.
  auto pull_all = [&](size_t offset) {
    copy_own(call.out + mine, call.in + offset);
    for (int step = 1; step < group.world(); ++step) {
      const int peer = (rank + step) % group.world();
      pull(peer, call.out + static_cast<size_t>(peer) * bytes, offset);
    }
  };
  switch (collective) {
    case Collective::all_gather:
      pull_all(0);
      break;
    case Collective::gather:
      if (rank == root) pull_all(0);
      break;
    case Collective::all_to_all:
      if (worked) pull_all(mine);
      break;
    case Collective::broadcast:
      if (rank != root) pull(root, call.out, 0);
      break;
    case Collective::scatter:
      if (rank == root)
        copy_own(call.out, call.in + mine);
      else
        pull(root, call.out, mine);
      break;
    default:  // the plan makes no others direct
      break;
  }
  // A peer that gave up has said so before it let go of its array; none can have left in peace yet.
  group.check_peers();
  bank = group.next_bank();
  group.exchange(&worked, sizeof worked);
  for (int peer = 0; peer < group.world(); ++peer) worked = worked && group.line(peer, bank).payload[0] == 1;
  return worked;
}

}  // namespace collectives
