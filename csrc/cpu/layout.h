// What one rank keeps in shared memory for one communicator: a control block, staging slots, the record of
// its last calls, and one end of the rings through which messages between two ranks go.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/descriptor.h"
#include "cpu/flight.h"

namespace collectives {

inline constexpr size_t kCacheLine = 64;
inline constexpr size_t kLinePair = 2 * kCacheLine;  // prefetchers fetch adjacent lines together
inline constexpr size_t kPage = 4096;
inline constexpr int kMaxWorld = 1024;  // ranks of one host; every exchange reads a line of each
inline constexpr size_t kPayload = 40;  // bytes that ride in a flag line beside the flag and the fingerprint

inline constexpr size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// A flag line: one cache line with one writer. `sequence` is stored last and announces the rest.
template <class Word>
struct alignas(kCacheLine) FlagLine {
  enum Kind : uint8_t { call = 1, refused = 2 };

  Word sequence;
  Kind kind;
  uint8_t payload_bytes;
  bool far;        // see Group::far
  bool symmetric;  // see Group::offer_symmetric
  Descriptor descriptor;
  unsigned char payload[kPayload];
};

// Written by its owner alone, but for `sleepers`, which the peers count up and down.
template <class Word>
struct ControlBlock {
  struct Token {  // who this memory belongs to; read back by the peers before anything else is believed
    unsigned char process[16];
    uint32_t rank;
    uint32_t world;
    uint32_t serial;
  } token;
  alignas(kLinePair) Word standing;
  alignas(kLinePair) Word sleepers;
  struct alignas(kLinePair) Bank {
    FlagLine<Word> line;
  } banks[2];  // by parity of the sequence number
};
static_assert(sizeof(FlagLine<uint32_t>) == kCacheLine);
static_assert(sizeof(ControlBlock<uint32_t>) <= kPage);

// On this a rank sleeps that waits for messages. Its own threads count themselves in `sleepers`; peers count
// `rings` up.
template <class Word>
struct alignas(kLinePair) Doorbell {
  Word rings;
  Word sleepers;
};

// A rank's counters of the two rings that it shares with one peer, each a monotone number of bytes modulo
// 2^32.
template <class Word>
struct RingEnds {
  alignas(kLinePair) Word written;  // into its own ring, which the peer reads
  alignas(kLinePair) Word taken;    // out of the peer's ring
};

// Slot addresses are functions of the communicator's capacity and the rank, never of a message's size. Each
// bank has a staging slot of `slot_bytes` and a result slot for the one shard that this rank reduces of a
// chunk. Behind them lie a doorbell, the ring ends, and a ring for what this rank sends to each peer: 256 KB
// where up to 16 ranks meet, less among more, so that the rings of a rank stay within 4 MB. Pages cost memory
// once they are touched.
struct SliceLayout {
  size_t slot_bytes;
  size_t result_bytes;
  size_t ring_bytes;  // a power of two
  size_t world;

  SliceLayout(size_t slot_bytes, int world)
      : slot_bytes(slot_bytes),
        result_bytes(round_up(slot_bytes / static_cast<size_t>(world) + 2 * kLinePair, kPage)),
        ring_bytes(std::clamp<size_t>(std::bit_floor((size_t{4} << 20) / static_cast<size_t>(world)), kPage,
                                      256 << 10)),
        world(static_cast<size_t>(world)) {}

  size_t staging(unsigned bank) const { return kPage + bank * slot_bytes; }
  size_t result(unsigned bank) const { return kPage + 2 * slot_bytes + bank * result_bytes; }
  size_t flight() const { return kPage + 2 * (slot_bytes + result_bytes); }
  size_t doorbell() const { return flight() + round_up(sizeof(FlightPages), kPage); }
  size_t ring_ends(int peer) const {
    return doorbell() + sizeof(Doorbell<uint32_t>) + static_cast<size_t>(peer) * sizeof(RingEnds<uint32_t>);
  }
  size_t ring(int peer) const { return rings() + static_cast<size_t>(peer) * ring_bytes; }
  size_t total() const { return rings() + world * ring_bytes; }

 private:
  size_t rings() const { return round_up(ring_ends(static_cast<int>(world)), kPage); }
};

}  // namespace collectives
