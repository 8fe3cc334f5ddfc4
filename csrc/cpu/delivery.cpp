// How messages move: out of the senders' arrays into the rings, and from there to whoever asked for them.
#include <algorithm>
#include <new>

#include "cpu/point_to_point.h"

namespace collectives {

// Moves what can be moved, a ring's worth for each peer and direction at most, so that nobody waits long for
// the mutex. Returns whether anything moved.
bool PointToPoint::move_all() {
  bool moved = false;
  for (int i = 0, start = first_; i < world_; ++i) {
    const int peer = (start + i) % world_;
    if (peer == rank_) continue;
    moved |= push(peer);
    moved |= pull(peer);
  }
  return moved;
}

bool PointToPoint::push(int peer) {
  auto& queue = sends_[static_cast<size_t>(peer)];
  auto& ring = writers_[static_cast<size_t>(peer)];
  size_t left = group_.layout().ring_bytes;
  bool moved = false;
  while (left > 0 && !queue.empty()) {
    const std::shared_ptr<Request> request = queue.front();
    const MessageHeader header = request->message_.header();
    const size_t put =
        ring.put(header, static_cast<const char*>(request->message_.data), request->offset_, left);
    if (put == 0) break;
    moved = true;
    if (request->offset_ == 0) membership_->messages().start(request->recorded_);
    left -= put;
    request->offset_ += put;
    if (request->offset_ < image_bytes(header.bytes)) continue;
    queue.pop_front();
    settle(request);
  }
  return moved;
}

bool PointToPoint::pull(int peer) {
  Incoming& in = incoming_[static_cast<size_t>(peer)];
  auto& ring = readers_[static_cast<size_t>(peer)];
  size_t left = group_.layout().ring_bytes;
  bool moved = false;
  while (left > 0) {
    if (!in.active) {
      if (wanted_from_any_ == 0 && wanted_[static_cast<size_t>(peer)] == 0) break;
      if (!ring.next(in.header) || !route(in, peer)) break;
    }
    const size_t taken = ring.take(in.header, in.to, in.offset, left);
    if (taken == 0) break;
    moved = true;
    left -= taken;
    in.offset += taken;
    if (Request* request = in.receiver()) request->offset_ = in.offset;
    if (in.offset == image_bytes(in.header.bytes)) arrive(in);
  }
  return moved;
}

// Decides where a message goes whose header has come. False where there is no memory for one that came
// unexpected: it stays in the ring until there is, or until it is asked for.
bool PointToPoint::route(Incoming& in, int source) {
  uint64_t& come = come_[static_cast<size_t>(source)];
  if (auto request = match(source, come + 1, in.header)) {
    if (request->matches(in.header)) {
      in.to = static_cast<char*>(request->message_.data);
      in.request = std::move(request);
    } else {
      settle(request, request->mismatched(in.header, source));
    }
  } else {
    std::unique_ptr<char[]> memory(new (std::nothrow) char[in.header.bytes]);
    if (!memory) return false;
    in.to = memory.get();
    in.unexpected = unexpected_.insert(unexpected_.end(),
                                       {source, come + 1, in.header, std::move(memory), false, nullptr});
  }
  ++come;
  in.active = true;
  return true;
}

void PointToPoint::arrive(Incoming& in) {
  const Incoming done = std::exchange(in, {});
  if (done.request) {
    settle(done.request);
  } else if (done.to != nullptr) {
    done.unexpected->complete = true;
    if (const auto claimed = done.unexpected->claimed) hand_over(done.unexpected, claimed);
  }
}

// The first receive that takes a message with this header; it is then the message's.
std::shared_ptr<Request> PointToPoint::match(int source, uint64_t number, const MessageHeader& header) {
  const auto found = std::find_if(receives_.begin(), receives_.end(),
                                  [&](const auto& request) { return request->takes(source, header.tag); });
  if (found == receives_.end()) return nullptr;
  std::shared_ptr<Request> request = std::move(*found);
  receives_.erase(found);
  if (request->message_.peer == kAnySource) {
    --wanted_from_any_;
    first_ = (source + 1) % world_;
  } else {
    --wanted_[static_cast<size_t>(source)];
  }
  request->source_ = source;
  recorded_match(*request, source, number);
  return request;
}

// Gives a message that came unexpected, and is complete, to its receive.
void PointToPoint::hand_over(const std::list<Unexpected>::iterator& found,
                             const std::shared_ptr<Request>& request) {
  const Unexpected message = std::move(*found);
  unexpected_.erase(found);
  if (!request->matches(message.header))
    return settle(request, request->mismatched(message.header, message.source));
  copy(request->message_.data, message.data.get(), message.header.bytes);
  settle(request);
}

}  // namespace collectives
