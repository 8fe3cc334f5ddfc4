// Scatter and all_to_all: a part of its own for every rank, staged once and read by the rank that it is for.
#pragma once

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "cpu/pipeline.h"

namespace collectives {

// scatter. Bytes moved for parts of n bytes: (W - 1) n staged by the root and n read by each other rank,
// which the root does while they read the chunk before. Steps: one exchange a chunk. In place (the root's
// output is its part of the input): that part is not written.
template <class Memory>
struct Scatter {
  static constexpr bool kCollects = false;
  Staged<Memory> job;

  void stage(size_t k, unsigned bank) {
    if (!job.is_root()) return;
    const Range r = job.range(k);
    for (int step = 1; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      job.stage(job.part(job.rank(), peer, bank), input(peer, r), r.size());
    }
  }

  void consume(size_t k, unsigned bank) {
    const Range r = job.range(k);
    char* to = job.call.out + r.begin * job.item();
    const char* from = job.is_root() ? input(job.rank(), r) : job.part(job.root(), job.rank(), bank);
    if (to != from) job.deliver(to, from, r.size());
  }

  const char* input(int peer, Range r) const {
    return job.call.in + (static_cast<size_t>(peer) * job.call.count() + r.begin) * job.item();
  }
};

// Where the parts for, or from, the ranks lie in an array: elements begin(r) to begin(r) + size(r).
struct EqualParts {
  size_t count;
  size_t begin(int rank) const { return static_cast<size_t>(rank) * count; }
  size_t size(int) const { return count; }
};

struct CountedParts {
  const uint64_t* counts;
  std::vector<uint64_t> begins;

  CountedParts(const uint64_t* counts, int world) : counts(counts), begins(static_cast<size_t>(world)) {
    std::exclusive_scan(counts, counts + world, begins.begin(), uint64_t{0});
  }
  size_t begin(int rank) const { return static_cast<size_t>(begins[static_cast<size_t>(rank)]); }
  size_t size(int rank) const { return static_cast<size_t>(counts[rank]); }
};

// all_to_all and all_to_all_v. Bytes moved per rank that sends n bytes in all: those for others staged, as
// many read, and its own part copied. Steps: one exchange a chunk, which moves up to `chunk` elements of
// every part. In place (equal parts alone, the output is the input): a chunk of all parts is staged before
// any of it is written, and the rank's own part is not.
template <class Memory, class Parts>
struct AllToAll {
  static constexpr bool kCollects = false;
  Staged<Memory> job;
  Parts sent;
  Parts received;

  void stage(size_t k, unsigned bank) {
    for (int step = 1; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      const Range r = chunk_range(sent.size(peer), job.chunk, k);
      if (r.size() > 0) job.stage(job.part(job.rank(), peer, bank), input(peer, r), r.size());
    }
  }

  void consume(size_t k, unsigned bank) {
    for (int step = 0; step < job.world(); ++step) {
      const int peer = job.peer_at(step);
      const Range r = chunk_range(received.size(peer), job.chunk, k);
      if (r.size() == 0) continue;
      char* to = job.call.out + (received.begin(peer) + r.begin) * job.item();
      const char* from = step > 0 ? job.part(peer, job.rank(), bank) : input(job.rank(), r);
      if (to != from) job.deliver(to, from, r.size());
    }
  }

  const char* input(int peer, Range r) const {
    return job.call.in + (sent.begin(peer) + r.begin) * job.item();
  }
};

template <class Memory>
void run_all_to_all(const Staged<Memory>& job, size_t chunks) {
  const EqualParts parts{job.call.count()};
  run_pipeline(AllToAll<Memory, EqualParts>{job, parts, parts}, chunks);
}

// all_to_all_v. The first exchange carries what every rank sends and expects: 16 W bytes staged, 16 W^2 read.
// All ranks read all of it and come to one verdict: where two do not agree on a part, all raise and the next
// call finds them in step. Then follow as many exchanges as the largest part of all has chunks, the same
// number on all ranks; it is returned.
template <class Memory>
size_t run_all_to_all_v(const Staged<Memory>& job) {
  const Call& call = job.call;
  const auto world = static_cast<size_t>(job.world());
  const size_t row = world * sizeof(uint64_t);
  const unsigned bank = job.group.next_bank();
  char* slot = job.group.staging(job.rank(), bank);
  Memory::write(slot, call.send_counts, row, false);
  Memory::write(slot + row, call.recv_counts, row, false);
  job.scratch.staged += 2 * row;
  job.enter();
  std::vector<uint64_t> counts(2 * world * world);
  for (int peer = 0; peer < job.world(); ++peer)
    Memory::read(counts.data() + static_cast<size_t>(peer) * 2 * world, job.group.staging(peer, bank),
                 2 * row, false);
  if (std::optional<Failure> failure = parts_disagreement(counts, call.descriptor, job.group.epoch()))
    throw *failure;
  const auto largest = static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
  const size_t chunks = (largest + job.chunk - 1) / job.chunk;
  run_pipeline(AllToAll<Memory, CountedParts>{job, CountedParts(call.send_counts, job.world()),
                                              CountedParts(call.recv_counts, job.world())},
               chunks, true);
  return chunks;
}

}  // namespace collectives
