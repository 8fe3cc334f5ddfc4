// One-shot: every rank stages its input, and every rank reads what it needs from all of them.
#pragma once

#include "cpu/pipeline.h"

namespace collectives {

// all_reduce, and reduce, in which the root alone reads and reduces and the others alone stage. Bytes moved
// per rank for n bytes: n staged, (W - 1) * n read from peers, n written. Steps: one exchange a chunk.
// Numerics: rank order, one rounding. In place: element i is read before it is written, and the peers read
// the staged copy.
template <class Memory>
struct OneShotReduce {
  static constexpr bool kCollects = false;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    const Range r = job.range(k);
    if (job.peers_have_result())
      job.stage(job.group.staging(job.rank(), bank), job.call.in + r.begin * job.item(), r.size());
  }

  void consume(size_t k, unsigned bank) {
    if (!job.has_result()) return;
    const Range r = job.range(k);
    const size_t offset = r.begin * job.item();
    for (int peer = 0; peer < job.world(); ++peer)
      job.scratch.sources[static_cast<size_t>(peer)] =
          peer == job.rank() ? job.call.in + offset : job.group.staging(peer, bank);
    job.reduce(job.call.out + offset, nullptr, r.size());
  }
};

// all_gather, and gather, in which the root alone reads and the others alone stage. Bytes moved per rank for
// n bytes a rank: n staged, W * n written, of which (W - 1) * n read from peers. Steps: one exchange a chunk.
// In place (the input is this rank's part of the output): that part is not written.
template <class Memory>
struct OneShotGather {
  static constexpr bool kCollects = false;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    const Range r = job.range(k);
    if (job.peers_have_result())
      job.stage(job.group.staging(job.rank(), bank), job.call.in + r.begin * job.item(), r.size());
  }

  void consume(size_t k, unsigned bank) {
    if (!job.has_result()) return;
    const Range r = job.range(k);
    for (int step = 0; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      char* to = job.call.out + (static_cast<size_t>(peer) * job.call.count() + r.begin) * job.item();
      const char* from = step > 0 ? job.group.staging(peer, bank) : job.call.in + r.begin * job.item();
      if (to != from) job.deliver(to, from, r.size());
    }
  }
};

// broadcast. Bytes moved: n staged by the root, n read by each other rank; the root fills bank k+1 while they
// read k. Steps: one exchange a chunk.
template <class Memory>
struct OneShotBroadcast {
  static constexpr bool kCollects = false;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    const Range r = job.range(k);
    if (job.is_root() && job.peers_have_result())
      job.stage(job.group.staging(job.root(), bank), job.call.in + r.begin * job.item(), r.size());
  }

  void consume(size_t k, unsigned bank) {
    const Range r = job.range(k);
    if (!job.is_root())
      job.deliver(job.call.out + r.begin * job.item(), job.group.staging(job.root(), bank), r.size());
  }
};

}  // namespace collectives
