// One-shot: every rank stages its input, and every rank reads what it needs from all of them.
#pragma once

#include <vector>

#include "cpu/call.h"
#include "cpu/pipeline.h"

namespace collectives {

// all_reduce. Bytes moved per rank for n bytes: n staged, (W - 1) * n read from peers, n written.
// Steps: one exchange a chunk. Numerics: rank order, one rounding. In place: element i is read before it is
// written, and the peers read the staged copy.
template <class Memory>
class OneShotAllReduce {
 public:
  static constexpr bool kCollects = false;

  OneShotAllReduce(Group<Memory>& group, const Call& call, size_t chunk, std::vector<const void*>& sources)
      : group_(group), call_(call), chunk_(chunk), sources_(sources) {}

  void stage(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    Memory::write(group_.staging(group_.rank(), bank), call_.in + r.begin * call_.item(),
                  r.size() * call_.item(), group_.far());
  }

  void consume(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    const size_t offset = r.begin * call_.item();
    for (int peer = 0; peer < group_.world(); ++peer)
      sources_[static_cast<size_t>(peer)] =
          peer == group_.rank() ? call_.in + offset : group_.staging(peer, bank);
    Memory::reduce(call_.reduction(), call_.out + offset, nullptr, sources_.data(), group_.world(), r.size());
  }

 private:
  Group<Memory>& group_;
  const Call& call_;
  size_t chunk_;
  std::vector<const void*>& sources_;
};

// all_gather. Bytes moved per rank for n bytes a rank: n staged, W * n written, of which (W - 1) * n read
// from peers. In place (the input is this rank's part of the output): that part is not written.
template <class Memory>
class OneShotAllGather {
 public:
  static constexpr bool kCollects = false;

  OneShotAllGather(Group<Memory>& group, const Call& call, size_t chunk)
      : group_(group), call_(call), chunk_(chunk) {}

  void stage(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    Memory::write(group_.staging(group_.rank(), bank), call_.in + r.begin * call_.item(),
                  r.size() * call_.item(), group_.far());
  }

  // Each rank begins with its own part and goes round, so that the ranks do not all read one slot at a time.
  void consume(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    const size_t bytes = r.size() * call_.item();
    for (int step = 0; step < group_.world(); ++step) {
      const int peer = (group_.rank() + step) % group_.world();
      char* to = call_.out + (static_cast<size_t>(peer) * call_.count() + r.begin) * call_.item();
      if (step > 0)
        Memory::read(to, group_.staging(peer, bank), bytes, call_.streamed);
      else if (const char* mine = call_.in + r.begin * call_.item(); to != mine)
        Memory::read(to, mine, bytes, call_.streamed);
    }
  }

 private:
  Group<Memory>& group_;
  const Call& call_;
  size_t chunk_;
};

// broadcast. Bytes moved: n staged by the root, n read by each other rank; the root fills bank k+1 while they
// read k.
template <class Memory>
class OneShotBroadcast {
 public:
  static constexpr bool kCollects = false;

  OneShotBroadcast(Group<Memory>& group, const Call& call, size_t chunk)
      : group_(group), call_(call), chunk_(chunk) {}

  void stage(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    if (is_root())
      Memory::write(group_.staging(root(), bank), call_.in + r.begin * call_.item(), r.size() * call_.item(),
                    group_.far());
  }

  void consume(size_t k, unsigned bank) {
    const Range r = chunk_range(call_.count(), chunk_, k);
    if (!is_root())
      Memory::read(call_.out + r.begin * call_.item(), group_.staging(root(), bank), r.size() * call_.item(),
                   call_.streamed);
  }

 private:
  int root() const { return static_cast<int>(call_.descriptor.root); }
  bool is_root() const { return root() == group_.rank(); }

  Group<Memory>& group_;
  const Call& call_;
  size_t chunk_;
};

}  // namespace collectives
