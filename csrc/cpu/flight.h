// The flight record: what a rank called last, in its slice of shared memory, where its peers can read it also
// after its death.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "core/ticks.h"

namespace collectives {

inline constexpr size_t kFlightRecords = 64;  // of each ring
inline constexpr uint32_t kFlightDims = 6;
inline constexpr uint8_t kNoShape = 0xff;  // nobody told, or more than kFlightDims dimensions

// One call, or one message between two ranks, as its reader gets it. native/table.h and
// collectives/flight_record.py know the layout too.
struct FlightRecord {
  enum State : uint8_t { queued = 1, started = 2, completed = 3, failed = 4 };

  uint64_t serial;      // records of this ring so far, this one included
  uint64_t epoch;       // number of the call; of a message among those from this sender to this receiver
  uint64_t count;       // as in the descriptor
  uint64_t queued_at;   // nanoseconds since 1970; the call began, and waits for its peers to describe it too
  uint64_t started_at;  // all had described the same call; 0: not so far, or a call of a few bytes
  uint64_t ended_at;    // completed or failed; 0: not so far
  int64_t shape[kFlightDims];  // of the caller's array
  uint32_t root;               // of a message: the other rank
  uint32_t tag;                // messages only
  uint8_t collective;
  uint8_t op;
  uint8_t dtype;
  uint8_t algorithm;  // the one that ran, once that is known
  uint8_t state;
  uint8_t dims;  // or kNoShape
  uint8_t reserved[18];

  Descriptor descriptor() const {
    return {count, Collective(collective), Op(op), DType(dtype), Algorithm(algorithm), root};
  }
};
static_assert(sizeof(FlightRecord) == 128);

// A record in shared memory: the words of a FlightRecord, its times in ticks. The first word is odd while the
// rest is written, then twice the serial number.
//
// Memory order. Every word that is stored between the odd value and the even one is stored with release, and
// read with acquire: a reader that gets one of them sees the odd value, or a later one, when it looks at the
// first word again, and tries once more. On x86 these are plain moves; fences would be no cheaper, and
// ThreadSanitizer does not model them. A state that follows is one word, stored last.
struct FlightSlot {
  static constexpr size_t kWords = sizeof(FlightRecord) / sizeof(uint64_t);
  std::atomic<uint64_t> words[kWords];
};
struct FlightPages {
  alignas(128) std::atomic<uint64_t> origin_ticks;
  std::atomic<uint64_t> origin_wall;
  alignas(128) FlightSlot calls[kFlightRecords];
  FlightSlot messages[kFlightRecords];
};
static_assert(sizeof(FlightSlot) == sizeof(FlightRecord) && std::atomic<uint64_t>::is_always_lock_free);

// The writer's end of one ring: 64 records, the oldest one overwritten by the next. One writer at a time; no
// system call, no fence, about ten stores and a look at the clock for begin(), two and a look for end().
class FlightRing {
 public:
  explicit FlightRing(FlightSlot* slots) : slots_(slots) {}

  // A new record, queued; returns its serial number. For a call `tag` is 0; for a message (collective send or
  // recv) `descriptor.root` is the other rank.
  uint64_t begin(const Descriptor& descriptor, uint64_t epoch, const int64_t* shape, uint32_t dims,
                 uint32_t tag = 0);
  // These pass over a record that has been overwritten, and the serial number 0.
  void start(uint64_t serial);
  // Of a message: which one of that sender it is, and, where a receive named none, who sent it.
  void match(uint64_t serial, uint32_t peer, uint32_t tag, uint64_t epoch);
  void end(uint64_t serial, FlightRecord::State state, Algorithm algorithm);

  uint64_t last() const { return serial_; }

 private:
  FlightSlot* slot(uint64_t serial) const;
  void follow(uint64_t serial, size_t time, FlightRecord::State state, std::optional<Algorithm> algorithm);

  FlightSlot* slots_;
  uint64_t serial_ = 0;
};

// The record of one call: failed, unless complete() was called. Calls that a broken communicator turns away
// are not worth the place of those that broke it: `ring` is null for them.
class FlightEntry {
 public:
  FlightEntry(FlightRing* ring, const Descriptor& descriptor, uint64_t epoch, const int64_t* shape,
              uint32_t dims)
      : ring_(ring),
        serial_(ring != nullptr ? ring->begin(descriptor, epoch, shape, dims) : 0),
        algorithm_(descriptor.algorithm) {}
  ~FlightEntry() {
    if (serial_ != 0) ring_->end(serial_, state_, algorithm_);
  }
  FlightEntry(const FlightEntry&) = delete;
  FlightEntry& operator=(const FlightEntry&) = delete;

  void choose(Algorithm algorithm) { algorithm_ = algorithm; }
  void complete() { state_ = FlightRecord::completed; }

 private:
  FlightRing* ring_;
  uint64_t serial_;
  FlightRecord::State state_ = FlightRecord::failed;
  Algorithm algorithm_;
};

// For the owner, before anybody else can see the pages.
void open_flight_pages(FlightPages& pages);

// What is there, oldest first, calls before messages. From any process and at any time; a record that is
// being written, or whose writer died writing it, is left out.
std::vector<FlightRecord> read_flight(const FlightPages& pages);

// "all_reduce(sum, float32, 100 elements), call 57, completed 12.3 s ago": of the call or message that the
// rank is in, else of the one that ended last; empty if none.
std::string last_call(const std::vector<FlightRecord>& records);

}  // namespace collectives
