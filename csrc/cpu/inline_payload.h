// Tiny calls: the payload rides in the flag line.
//
// Bytes moved per rank: one cache line written, W - 1 read; of a rooted call only as many payloads as the
// call has inputs and outputs. Steps: one exchange. Order, reuse and failure: those of the flag line itself
// (group.h).
#pragma once

#include <vector>

#include "cpu/call.h"
#include "cpu/group.h"

namespace collectives {

template <class Memory>
void run_inline(Group<Memory>& group, const Call& call, std::vector<const void*>& sources) {
  const unsigned bank = group.next_bank();
  const int world = group.world(), rank = group.rank(), root = static_cast<int>(call.descriptor.root);
  const size_t bytes = call.descriptor.bytes();
  const size_t all = bytes * static_cast<size_t>(world);
  auto payload = [&](int peer) { return group.line(peer, bank).payload; };
  const size_t mine = bytes * static_cast<size_t>(rank);  // where this rank's part of all is
  // Reads what each rank said at `offset` into one part after another.
  auto collect = [&](size_t offset) {
    for (int peer = 0; peer < world; ++peer)
      Memory::read(call.out + static_cast<size_t>(peer) * bytes, payload(peer) + offset, bytes, false);
  };
  auto reduce = [&](size_t offset) {
    for (int peer = 0; peer < world; ++peer) sources[static_cast<size_t>(peer)] = payload(peer) + offset;
    Memory::reduce(call.reduction(), call.out, nullptr, sources.data(), world, call.count(), nullptr);
  };
  switch (call.descriptor.collective) {
    case Collective::all_reduce:
      group.enter(call.in, bytes);
      return reduce(0);
    case Collective::reduce:
      group.enter(call.in, bytes);
      if (rank == root) reduce(0);
      return;
    case Collective::reduce_scatter:
      group.enter(call.in, all);
      return reduce(mine);
    case Collective::all_gather:
      group.enter(call.in, bytes);
      return collect(0);
    case Collective::gather:
      group.enter(call.in, bytes);
      if (rank == root) collect(0);
      return;
    case Collective::all_to_all:
      group.enter(call.in, all);
      return collect(mine);
    case Collective::broadcast:
      group.enter(call.in, rank == root ? bytes : 0);
      if (rank != root) Memory::read(call.out, payload(root), bytes, false);
      return;
    case Collective::scatter:
      group.enter(call.in, rank == root ? all : 0);
      Memory::read(call.out, payload(root) + mine, bytes, false);
      return;
    case Collective::barrier:
    case Collective::delegated:
      return group.enter();
    default:  // the plan makes no others inline
      return;
  }
}

}  // namespace collectives
