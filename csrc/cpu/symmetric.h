// Symmetric: each rank reads the other ranks' own arrays, through windows on the symmetric memory of their
// processes (core/heap.h). Nothing is staged.
//
// Agreement. The first exchange of the call carries where each rank's arrays lie. All ranks read the same
// lines, so all know whether every array that a peer must read is symmetric, and go on, or make the call
// another way.
//
// Reuse. There are no slots: what a rank reads is the peers' arrays themselves, between the first exchange
// and the last. A rank writes only its own output, and of memory that peers read (in place) only what they
// have read. The last exchange ends the call, because nobody may touch its arrays while they are being read.
//
// Failure. As in every exchange. A dead peer's memory stays mapped and readable. A peer that gave up may have
// overwritten its array while this rank read it: leave() looks for that before it lets the others go on.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/call.h"
#include "cpu/group.h"
#include "cpu/plan.h"
#include "cpu/two_shot.h"

namespace collectives {

// Where a rank's arrays lie, as offsets in the memory of its process.
struct Places {
  static constexpr uint64_t kNowhere = ~uint64_t{0};  // not in symmetric memory
  uint64_t in = kNowhere;
  uint64_t out = kNowhere;
  bool reads_peers = false;
  double factor = 1;  // premul_sum
};
static_assert(sizeof(Places) <= kPayload);

// What the peers read of a rank that takes part in the call is symmetric.
inline bool is_symmetric(const Places& places, const Descriptor& d, int rank) {
  const bool in = places.in != Places::kNowhere, out = places.out != Places::kNowhere;
  if (d.collective == Collective::broadcast) return in || rank != static_cast<int>(d.root);
  return in && (out || d.collective != Collective::all_reduce);
}

// One call. `window(rank)` is where the memory of the rank's process begins in this one.
template <class Memory>
class Symmetric {
 public:
  Symmetric(Group<Memory>& group, const Call& call, std::vector<PeerArrays>& peers, Scratch& scratch)
      : group_(group), call_(call), peers_(peers), scratch_(scratch) {}

  // The first exchange. True on all ranks alike where the call can go on.
  template <class Window>
  bool enter(const Places& mine, Window window) {
    bank_ = group_.next_bank();
    group_.enter(&mine, sizeof mine);
    for (int peer = 0; peer < world(); ++peer) {
      const Places theirs = places(peer);
      if (!theirs.reads_peers || !is_symmetric(theirs, call_.descriptor, peer)) return false;
    }
    for (int peer = 0; peer < world(); ++peer) {
      const Places theirs = places(peer);
      auto at = [&](uint64_t offset) { return offset == Places::kNowhere ? nullptr : window(peer) + offset; };
      peers_[static_cast<size_t>(peer)] = {at(theirs.in), at(theirs.out)};
      scratch_.factors[static_cast<size_t>(peer)] = theirs.factor;
    }
    return true;
  }

  // After enter() was false: what to tell a caller who insists, the same words on all ranks.
  std::string objection() const {
    std::vector<int> elsewhere, blind;
    for (int peer = 0; peer < world(); ++peer) {
      const Places theirs = places(peer);
      if (!theirs.reads_peers) blind.push_back(peer);
      if (!is_symmetric(theirs, call_.descriptor, peer)) elsewhere.push_back(peer);
    }
    std::string text = "algorithm symmetric: ";
    if (!elsewhere.empty())
      text += "an array of " + list_ranks(elsewhere) +
              " is not in symmetric memory: collectives.empty() makes "
              "arrays that are";
    else
      text += list_ranks(blind) +
              " cannot map the memory of its peers: is its address space limited (ulimit -v)?";
    return text;
  }

  void run(const Plan& plan) {
    switch (call_.descriptor.collective) {
      case Collective::all_reduce:
        return all_reduce(plan);
      case Collective::reduce_scatter:
        return reduce_scatter();
      case Collective::all_gather:
        return all_gather();
      case Collective::broadcast:
        return broadcast();
      default:
        return;  // no plan is symmetric: serves_symmetric()
    }
  }

 private:
  int rank() const { return group_.rank(); }
  int world() const { return group_.world(); }
  size_t item() const { return call_.item(); }
  const PeerArrays& peer(int rank) const { return peers_[static_cast<size_t>(rank)]; }
  Places places(int peer) const {
    Places theirs;
    Memory::read(&theirs, group_.line(peer, bank_).payload, sizeof theirs, false);
    return theirs;
  }

  // Bytes moved per rank for n bytes: n read from all inputs and reduced into n/W of its output, (W-1)/W n
  // collected from the outputs of the others. Steps: one exchange a chunk and two. Numerics: rank order, one
  // rounding; the owner's bits are what every rank gets. In place: of its own array a rank writes first its
  // own shard of a chunk, which no peer reads as input, and one exchange later the shards that their owners
  // have reduced by then, and of which peers read only their own outputs.
  void all_reduce(const Plan& plan) {
    for (size_t k = 0; k <= plan.chunks; ++k) {
      if (k < plan.chunks) {
        const Range mine = shard(plan, k, rank());
        // The peers read it next: past the caches where they sit behind others, not where it only is large.
        reduce(mine.begin, mine.begin, mine.size(), group_.far());
      }
      if (k > 0)
        for (int step = 1; step < world(); ++step) {
          const int owner = (rank() + step) % world();
          const Range theirs = shard(plan, k - 1, owner);
          copy_from(peer(owner).out + theirs.begin * item(), theirs.begin, theirs.size());
        }
      if (k < plan.chunks) group_.exchange();
    }
    leave();
  }

  // Bytes moved per rank for an output of n bytes: W n read, n written. Steps: two exchanges. In place (the
  // output is this rank's part of the input): no peer reads that part.
  void reduce_scatter() {
    reduce(static_cast<size_t>(rank()) * call_.count(), 0, call_.count(), call_.streamed);
    leave();
  }

  // Bytes moved per rank for n bytes a rank: W n read and written; in place (the input is this rank's part of
  // the output) its own part stays. Steps: two exchanges.
  void all_gather() {
    for (int step = 0; step < world(); ++step) {  // begins with its own: not all read one rank at a time
      const int from = (rank() + step) % world();
      const char* theirs = step == 0 ? call_.in : peer(from).in;
      const size_t at = static_cast<size_t>(from) * call_.count();
      if (theirs != call_.out + at * item()) copy_from(theirs, at, call_.count());
    }
    leave();
  }

  // Bytes moved: n read from the root and written by each other rank. Steps: two exchanges.
  void broadcast() {
    const int root = static_cast<int>(call_.descriptor.root);
    if (root != rank()) copy_from(peer(root).in, 0, call_.count());
    leave();
  }

  // The last exchange. A peer that gave up said so before it let go of its array; what was read before is
  // ordered before this look at it by drain() (on machines where a later load can overtake an earlier one).
  void leave() {
    Memory::drain();
    group_.check_peers();
    group_.exchange();
  }

  // In elements of the array, beginning at cache lines of it.
  Range shard(const Plan& plan, size_t k, int rank) const {
    const Range chunk = chunk_range(call_.count(), plan.chunk, k);
    const Range part = shard_range(chunk.size(), world(), rank, item());
    return {chunk.begin + part.begin, chunk.begin + part.end};
  }

  void copy_from(const char* theirs, size_t to, size_t elements) const {
    Memory::read(call_.out + to * item(), theirs, elements * item(), call_.streamed);
  }

  // Reduces `elements` elements of all inputs from element `from` on into the output. The kernels write
  // through the caches; what is to go past them is reduced in blocks that stay in the first level.
  void reduce(size_t from, size_t to, size_t elements, bool past) {
    alignas(64) char block[kReduceBlock];
    const size_t most = past ? kReduceBlock / item() : elements;
    for (size_t done = 0; done < elements; done += most) {
      const size_t count = std::min(most, elements - done);
      for (int r = 0; r < world(); ++r)
        scratch_.sources[static_cast<size_t>(r)] =
            (r == rank() ? call_.in : peer(r).in) + (from + done) * item();
      char* out = call_.out + (to + done) * item();
      Memory::reduce(call_.reduction(), past ? block : out, nullptr, scratch_.sources.data(), world(), count,
                     scratch_.factors.data());
      if (past) Memory::write(out, block, count * item(), true);
    }
  }

  Group<Memory>& group_;
  const Call& call_;
  std::vector<PeerArrays>& peers_;  // scratch, one a rank
  Scratch& scratch_;
  unsigned bank_ = 0;  // of the first exchange
};

}  // namespace collectives
