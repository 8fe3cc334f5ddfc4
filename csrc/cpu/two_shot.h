// Two-shot: each rank reduces one shard of every chunk; who wants the whole then collects the other ranks'
// results.
#pragma once

#include <algorithm>

#include "cpu/pipeline.h"

namespace collectives {

inline constexpr size_t kReduceBlock = 8 << 10;  // with its sources it fits a first-level cache of 32 KB

// Reduces `elements` elements of job.scratch.sources to `out` and to `slot`, this rank's result slot, for the
// peers; either may be null. The kernels write through the cache; what is to go past it is reduced in blocks
// that stay in the first-level cache. Leaves the sources behind the elements that it read.
template <class Memory>
void reduce_out(const Staged<Memory>& job, char* out, char* slot, size_t elements) {
  alignas(64) char block[kReduceBlock];
  const bool streamed = out != nullptr && job.call.streamed;
  const bool far = slot != nullptr && job.group.far();
  const size_t most = streamed || far ? kReduceBlock / job.item() : elements;
  for (size_t done = 0; done < elements; done += most) {
    const size_t count = std::min(most, elements - done);
    const size_t bytes = count * job.item();
    char* to = streamed || (out == nullptr && far) ? block : out != nullptr ? out : slot;
    job.reduce(to, slot != nullptr && !far && to != slot ? slot : nullptr, count);
    if (far)
      job.stage(slot, to, count);
    else if (slot != nullptr)
      job.scratch.staged += bytes;
    if (streamed) job.deliver(out, block, count);
    if (out != nullptr) out += bytes;
    if (slot != nullptr) slot += bytes;
    for (const void*& source : job.scratch.sources) source = static_cast<const char*>(source) + bytes;
  }
}

// all_reduce, and reduce, in which the root alone collects and the others write result slots alone. Bytes
// moved per rank for n bytes: (W-1)/W n staged, (W-1)/W n read from peers and reduced with n/W of its own
// into output and result slot, (W-1)/W n collected. Steps: one exchange a chunk and one more. Numerics: rank
// order, one rounding; the owner's bits are what every rank gets. In place: a chunk is staged before any of
// it is written.
template <class Memory>
struct TwoShotReduce {
  static constexpr bool kCollects = true;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    const Range chunk = job.range(k);
    const Range mine = shard(chunk, job.rank());
    char* slot = job.group.staging(job.rank(), bank);
    const char* in = job.call.in + chunk.begin * job.item();
    job.stage(slot, in, mine.begin);
    job.stage(slot + mine.end * job.item(), in + mine.end * job.item(), chunk.size() - mine.end);
  }

  void consume(size_t k, unsigned bank) {
    const Range chunk = job.range(k);
    const Range mine = shard(chunk, job.rank());
    const size_t offset = (chunk.begin + mine.begin) * job.item();
    for (int peer = 0; peer < job.world(); ++peer)
      job.scratch.sources[static_cast<size_t>(peer)] =
          peer == job.rank() ? job.call.in + offset : job.group.staging(peer, bank) + mine.begin * job.item();
    reduce_out(job, job.has_result() ? job.call.out + offset : nullptr,
               job.peers_have_result() ? job.group.result(job.rank(), bank) : nullptr, mine.size());
  }

  void collect(size_t k, unsigned bank) {
    if (!job.has_result()) return;
    const Range chunk = job.range(k);
    for (int step = 1; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      const Range theirs = shard(chunk, peer);
      job.deliver(job.call.out + (chunk.begin + theirs.begin) * job.item(), job.group.result(peer, bank),
                  theirs.size());
    }
  }

  Range shard(Range chunk, int rank) const {
    return shard_range(chunk.size(), job.world(), rank, job.item());
  }
};

// reduce_scatter: the first half of two-shot. Bytes moved per rank for an output of n bytes: (W-1) n staged,
// (W-1) n read, n written. Steps: one exchange a chunk. In place (the output is this rank's part of the
// input): the peers read staged copies, and of its own part each element is read before it is written.
template <class Memory>
struct TwoShotReduceScatter {
  static constexpr bool kCollects = false;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    const Range r = job.range(k);
    for (int step = 1; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      job.stage(job.part(job.rank(), peer, bank), input(peer, r), r.size());
    }
  }

  void consume(size_t k, unsigned bank) {
    const Range r = job.range(k);
    for (int peer = 0; peer < job.world(); ++peer)
      job.scratch.sources[static_cast<size_t>(peer)] =
          peer == job.rank() ? input(peer, r) : job.part(peer, job.rank(), bank);
    reduce_out(job, job.call.out + r.begin * job.item(), nullptr, r.size());
  }

  const char* input(int peer, Range r) const {
    return job.call.in + (static_cast<size_t>(peer) * job.call.count() + r.begin) * job.item();
  }
};

}  // namespace collectives
