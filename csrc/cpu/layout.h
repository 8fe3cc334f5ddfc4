// What one rank keeps in shared memory for one communicator: a control block, staging slots, and
// the record of its last calls.
#pragma once

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
  bool far;  // see Group::far
  uint8_t reserved;
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

// Slot addresses are functions of the communicator's capacity and the rank, never of a message's size. Each
// bank has a staging slot of `slot_bytes` and a result slot for the one shard that this rank reduces of a
// chunk.
struct SliceLayout {
  size_t slot_bytes;
  size_t result_bytes;

  SliceLayout(size_t slot_bytes, int world)
      : slot_bytes(slot_bytes),
        result_bytes(round_up(slot_bytes / static_cast<size_t>(world) + 2 * kLinePair, kPage)) {}

  size_t staging(unsigned bank) const { return kPage + bank * slot_bytes; }
  size_t result(unsigned bank) const { return kPage + 2 * slot_bytes + bank * result_bytes; }
  size_t flight() const { return kPage + 2 * (slot_bytes + result_bytes); }
  size_t total() const { return flight() + round_up(sizeof(FlightPages), kPage); }
};

}  // namespace collectives
