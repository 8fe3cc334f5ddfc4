// Two-shot: each rank reduces one shard of every chunk; all_reduce then collects the other ranks' results.
#pragma once

#include <vector>

#include "cpu/call.h"
#include "cpu/pipeline.h"

namespace collectives {

inline constexpr size_t kReduceBlock = 8 << 10;

// Reduces `elements` elements to the output at `offset` bytes and, if the peers `want` them, to this rank's
// result slot. The kernels write through the cache; what is to go past it is reduced in blocks that stay in
// the first-level cache.
template <class Memory>
void reduce_out(Group<Memory>& group, const Call& call, size_t offset, std::vector<const void*>& sources,
                size_t elements, unsigned bank, bool wanted) {
  alignas(64) char block[kReduceBlock];
  char* out = call.out + offset;
  char* slot = group.result(group.rank(), bank);
  const bool far = wanted && group.far();
  const size_t most = call.streamed || far ? kReduceBlock / call.item() : elements;
  for (size_t done = 0; done < elements; done += most) {
    const size_t count = std::min(most, elements - done);
    const size_t bytes = count * call.item();
    char* to = call.streamed ? block : out;
    Memory::reduce(call.reduction(), to, wanted && !far ? slot : nullptr, sources.data(), group.world(),
                   count);
    if (far) Memory::write(slot, to, bytes, true);
    if (call.streamed) Memory::read(out, block, bytes, true);
    out += bytes;
    slot += bytes;
    for (const void*& source : sources) source = static_cast<const char*>(source) + bytes;
  }
}

// all_reduce. Bytes moved per rank for n bytes: (W-1)/W n staged, (W-1)/W n read from peers and reduced with
// n/W of its own into output and result slot, (W-1)/W n collected. Steps: one exchange a chunk and one more.
// Numerics: rank order, one rounding; the owner's bits are what every rank gets. In place: a chunk is staged
// before any of it is written.
template <class Memory>
class TwoShotAllReduce {
 public:
  static constexpr bool kCollects = true;

  TwoShotAllReduce(Group<Memory>& group, const Call& call, size_t chunk, std::vector<const void*>& sources)
      : group_(group), call_(call), chunk_(chunk), sources_(sources) {}

  void stage(size_t k, unsigned bank) {
    const Range chunk = chunk_of(k);
    const Range mine = shard_of(chunk, group_.rank());
    char* slot = group_.staging(group_.rank(), bank);
    const char* in = call_.in + chunk.begin * call_.item();
    Memory::write(slot, in, mine.begin * call_.item(), group_.far());
    Memory::write(slot + mine.end * call_.item(), in + mine.end * call_.item(),
                  (chunk.size() - mine.end) * call_.item(), group_.far());
  }

  void consume(size_t k, unsigned bank) {
    const Range chunk = chunk_of(k);
    const Range mine = shard_of(chunk, group_.rank());
    const size_t offset = (chunk.begin + mine.begin) * call_.item();
    for (int peer = 0; peer < group_.world(); ++peer)
      sources_[static_cast<size_t>(peer)] =
          peer == group_.rank() ? call_.in + offset : group_.staging(peer, bank) + mine.begin * call_.item();
    reduce_out(group_, call_, offset, sources_, mine.size(), bank, true);
  }

  void collect(size_t k, unsigned bank) {
    const Range chunk = chunk_of(k);
    for (int step = 1; step < group_.world(); ++step) {
      const int peer = (group_.rank() + step) % group_.world();
      const Range theirs = shard_of(chunk, peer);
      Memory::read(call_.out + (chunk.begin + theirs.begin) * call_.item(), group_.result(peer, bank),
                   theirs.size() * call_.item(), call_.streamed);
    }
  }

 private:
  Range chunk_of(size_t k) const { return chunk_range(call_.count(), chunk_, k); }
  Range shard_of(Range chunk, int rank) const {
    return shard_range(chunk.size(), group_.world(), rank, call_.item());
  }

  Group<Memory>& group_;
  const Call& call_;
  size_t chunk_;
  std::vector<const void*>& sources_;
};

// reduce_scatter: the first half of two-shot. Bytes moved per rank for an output of n bytes: (W-1) n staged,
// (W-1) n read, n written. Steps: one exchange a chunk. In place (the output is this rank's part of the
// input): the peers read staged copies, and of its own part each element is read before it is written.
template <class Memory>
class TwoShotReduceScatter {
 public:
  static constexpr bool kCollects = false;

  TwoShotReduceScatter(Group<Memory>& group, const Call& call, size_t chunk,
                       std::vector<const void*>& sources)
      : group_(group), call_(call), chunk_(chunk), sources_(sources) {}

  void stage(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    for (int peer = 0; peer < group_.world(); ++peer)
      if (peer != group_.rank())
        Memory::write(part(group_.rank(), peer, bank), input(peer, r), r.size() * call_.item(), group_.far());
  }

  void consume(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    for (int peer = 0; peer < group_.world(); ++peer)
      sources_[static_cast<size_t>(peer)] =
          peer == group_.rank() ? input(peer, r) : part(peer, group_.rank(), bank);
    reduce_out(group_, call_, r.begin * call_.item(), sources_, r.size(), bank, false);
  }

 private:
  const char* input(int peer, Range r) const {
    return call_.in + (static_cast<size_t>(peer) * call_.count() + r.begin) * call_.item();
  }
  // Where `from` stages what it has for `to`.
  char* part(int from, int to, unsigned bank) const {
    return group_.staging(from, bank) + static_cast<size_t>(to) * chunk_ * call_.item();
  }

  Group<Memory>& group_;
  const Call& call_;
  size_t chunk_;
  std::vector<const void*>& sources_;
};

}  // namespace collectives
