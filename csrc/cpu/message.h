// A message between two ranks, and the request that one side has made for it.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "core/failure.h"
#include "cpu/ring.h"

namespace collectives {

inline constexpr int kAnySource = -1;

// `data` holds `count` packed elements: what is sent, or room for what comes.
struct Message {
  void* data = nullptr;
  uint64_t count = 0;
  DType dtype = DType::u8;
  int peer = kAnySource;  // the receiver; the sender, or kAnySource
  uint32_t tag = 0;
  double timeout = 0;  // seconds without any progress after which it fails

  Descriptor descriptor(Collective side) const {
    Descriptor d;
    d.count = count;
    d.collective = side;
    d.dtype = dtype;
    d.root = static_cast<uint32_t>(peer);
    return d;
  }
  MessageHeader header() const {
    return {count, count * size_of(dtype), tag, static_cast<uint8_t>(dtype), {}};
  }
};

// Called once when a request has ended, by any thread, with no lock held; null where it ended well.
using Done = void (*)(void* context, const Failure* failure);

// One send or receive that was begun. Guarded by its PointToPoint's mutex until it is finished, constant from
// then on.
class Request {
 public:
  Request(Collective side, const Message& message, Done done, void* context)
      : side_(side), message_(message), done_(done), context_(context) {}

  // True once the memory is the caller's again, and `done` has returned.
  bool finished() const { return finished_.load(std::memory_order_acquire); }
  // The sender of the message, once it has come; kAnySource before.
  int source() const { return finished() ? source_ : kAnySource; }

 private:
  friend class PointToPoint;

  bool sends() const { return side_ == Collective::send; }
  // The other rank, as far as it is known.
  int peer() const { return source_ != kAnySource ? source_ : message_.peer; }
  bool takes(int source, uint32_t tag) const {
    return message_.tag == tag && (message_.peer == source || message_.peer == kAnySource);
  }
  bool matches(const MessageHeader& header) const {
    return header.dtype == static_cast<uint8_t>(message_.dtype) && header.count == message_.count;
  }
  // Such as "recv(float32, 100 elements, from rank 2, tag 7), message 3".
  std::string describe() const;
  Failure fail(Cause cause, const std::vector<int>& culprits, const std::string& why) const;
  Failure mismatched(const MessageHeader& theirs, int source) const;
  // Why it ended when the rank's standing became `s`. `late`: it was itself too long without progress.
  // `last`: what the rank to look at called last, in words; may be empty.
  Failure broken(Standing s, int rank, bool late, const std::string& last) const;
  void finish();

  const Collective side_;
  const Message message_;
  const Done done_;
  void* const context_;
  uint64_t number_ = 0;       // how many were begun, this one included
  uint64_t recorded_ = 0;     // serial number in the flight record
  size_t offset_ = 0;         // bytes of the image that have moved
  size_t judged_offset_ = 0;  // the same when the deadline was last looked at
  double deadline_ = 0;
  int source_ = kAnySource;
  bool settled_ = false;  // it has ended
  std::optional<Failure> failure_;
  std::list<std::shared_ptr<Request>>::iterator pending_;
  std::atomic<bool> finished_{false};
};

}  // namespace collectives
