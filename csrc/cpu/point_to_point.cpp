#include "cpu/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace collectives {
namespace {

using Word = RealMemory::Word;

RingEnds<Word>& ends(char* slice, const SliceLayout& layout, int peer) {
  return *reinterpret_cast<RingEnds<Word>*>(slice + layout.ring_ends(peer));
}
Doorbell<Word>& doorbell(char* slice, const SliceLayout& layout) {
  return *reinterpret_cast<Doorbell<Word>*>(slice + layout.doorbell());
}

}  // namespace

std::shared_ptr<PointToPoint> PointToPoint::make(std::shared_ptr<Membership> membership) {
  // In a forked child the threads that hold the mutex or wait for a condition do not exist: nothing may be
  // destroyed there.
  return {new PointToPoint(std::move(membership)), [](PointToPoint* self) {
            if (!self->membership_->forked()) delete self;
          }};
}

PointToPoint::PointToPoint(std::shared_ptr<Membership> membership)
    : membership_(std::move(membership)),
      group_(membership_->group()),
      rank_(group_.rank()),
      world_(group_.world()),
      bell_(doorbell(group_.slice(rank_), group_.layout())),
      sent_(static_cast<size_t>(world_)),
      asked_(static_cast<size_t>(world_)),
      come_(static_cast<size_t>(world_)),
      sends_(static_cast<size_t>(world_)),
      wanted_(static_cast<size_t>(world_)),
      incoming_(static_cast<size_t>(world_)) {
  const SliceLayout& layout = group_.layout();
  char* own = group_.slice(rank_);
  for (int peer = 0; peer < world_; ++peer) {
    char* theirs = group_.slice(peer);
    RingEnds<Word>&mine = ends(own, layout, peer), &other = ends(theirs, layout, rank_);
    Doorbell<Word>& bell = doorbell(theirs, layout);
    writers_.emplace_back(own + layout.ring(peer), layout.ring_bytes, mine.written, other.taken, bell);
    readers_.emplace_back(theirs + layout.ring(rank_), layout.ring_bytes, mine.taken, other.written, bell);
  }
}

std::shared_ptr<Request> PointToPoint::make_request(Collective side, const Message& message, Done done,
                                                    void* context) {
  if (membership_->forked())
    throw Failure(Cause::closed, name(side), 0, {rank_},
                  std::string(name(side)) +
                      ": this communicator was made in the parent process; a forked child must make its own");
  if (message.peer >= world_ || message.peer < (side == Collective::send ? 0 : kAnySource))
    throw BadArgument("rank " + std::to_string(message.peer) +
                      (side == Collective::send ? " to send to" : " to receive from") + " is no rank: 0 to " +
                      std::to_string(world_ - 1));
  if (message.count > std::numeric_limits<int64_t>::max() / size_of(message.dtype))
    throw BadArgument("a message of " + std::to_string(message.count) + " elements fits into no memory");
  if (!(message.timeout > 0)) throw BadArgument("the timeout must be a positive number of seconds");
  return std::make_shared<Request>(side, message, done, context);
}

// Moves at once what can be moved. Throws where the communicator is, or now becomes, broken or closed.
void PointToPoint::begin(Lock& lock, const std::shared_ptr<Request>& request) {
  request->number_ = ++posted_;
  request->deadline_ = membership_->now() + request->message_.timeout;
  // What is sent to a rank that has left is lost.
  if (request->sends() && !closed_)
    if (const Standing theirs = group_.standing(request->message_.peer); theirs.state == Standing::closed)
      fall({Standing::failed, theirs.cause, theirs.culprit});
  const Standing own = standing();
  if (own.state == Standing::open) {
    record(*request);
    request->sends() ? begin_send(request) : begin_recv(request);
  }
  deliver(lock);
  if (own.state != Standing::open) throw broken(*request, own, false);
}

void PointToPoint::begin_send(const std::shared_ptr<Request>& request) {
  const int peer = request->message_.peer;
  if (peer == rank_) return send_to_self(request);
  request->pending_ = pending_.insert(pending_.end(), request);
  sends_[static_cast<size_t>(peer)].push_back(request);
  push(peer);
}

void PointToPoint::send_to_self(const std::shared_ptr<Request>& request) {
  const MessageHeader header = request->message_.header();
  const auto* data = static_cast<const char*>(request->message_.data);
  std::unique_ptr<char[]> kept;
  const uint64_t number = ++come_[static_cast<size_t>(rank_)];
  const auto receiver = match(rank_, number, header);
  if (!receiver) kept.reset(new char[header.bytes]);
  char* to = receiver ? static_cast<char*>(receiver->message_.data) : kept.get();
  if (!receiver || receiver->matches(header)) copy(to, data, header.bytes);
  if (receiver) {
    settle(receiver,
           receiver->matches(header) ? std::optional<Failure>{} : receiver->mismatched(header, rank_));
  } else {
    unexpected_.push_back({rank_, number, header, std::move(kept), true, nullptr});
  }
  request->pending_ = pending_.insert(pending_.end(), request);
  settle(request);
}

void PointToPoint::begin_recv(const std::shared_ptr<Request>& request) {
  request->pending_ = pending_.insert(pending_.end(), request);
  const auto found = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const Unexpected& u) {
    return !u.claimed && request->takes(u.source, u.header.tag);
  });
  if (found != unexpected_.end()) {
    request->source_ = found->source;
    recorded_match(*request, found->source, found->number);
    if (found->complete) return hand_over(found, request);
    found->claimed = request;
    pull(found->source);
    return;
  }
  receives_.push_back(request);
  const int peer = request->message_.peer;
  ++(peer == kAnySource ? wanted_from_any_ : wanted_[static_cast<size_t>(peer)]);
  if (peer == kAnySource)
    move_all();
  else if (peer != rank_)
    pull(peer);
}

// In the flight record. A receive goes by the number of the message that it will get if messages are received
// in the order in which they are sent, until it is known which one it gets.
void PointToPoint::record(Request& request) {
  const Message& m = request.message_;
  auto& counts = request.sends() ? sent_ : asked_;
  const uint64_t number = m.peer == kAnySource ? 0 : ++counts[static_cast<size_t>(m.peer)];
  request.recorded_ = membership_->messages().begin(m.descriptor(request.side_), number, nullptr, 0, m.tag);
}

void PointToPoint::recorded_match(const Request& request, int source, uint64_t number) {
  if (request.message_.peer == kAnySource) ++asked_[static_cast<size_t>(source)];
  FlightRing& ring = membership_->messages();
  ring.match(request.recorded_, static_cast<uint32_t>(source), request.message_.tag, number);
  ring.start(request.recorded_);
}

void PointToPoint::settle(const std::shared_ptr<Request>& request, std::optional<Failure> failure) {
  const std::shared_ptr<Request> kept = request;  // the argument may lie in the list
  membership_->messages().end(kept->recorded_, failure ? FlightRecord::failed : FlightRecord::completed,
                              Algorithm::automatic);
  kept->failure_ = std::move(failure);
  kept->settled_ = true;
  pending_.erase(kept->pending_);
  settled_some_ = true;
  if (kept->done_ != nullptr)
    undelivered_.push_back(kept);
  else
    kept->finish();
}

// Tells everybody whom it concerns of the requests that were settled. Lets go of the mutex meanwhile.
void PointToPoint::deliver(Lock& lock) {
  if (!std::exchange(settled_some_, false)) return;
  if (!closed_ && RealMemory::load(bell_.sleepers) != 0) RealMemory::ring(bell_.rings);
  if (undelivered_.empty()) return;
  const auto settled = std::exchange(undelivered_, {});
  lock.unlock();
  for (const auto& request : settled) request->finish();
  lock.lock();
}

Standing PointToPoint::standing() const { return closed_ ? *closed_ : group_.standing(rank_); }

// Ends requests that cannot be served any more. `dead` was asked for before, so that what those ranks have
// left in the rings is seen here.
void PointToPoint::judge(const std::vector<int>& dead) {
  if (closed_ || pending_.empty()) return;
  if (!group_.healthy()) return end_all();
  std::vector<Standing> standings;
  bool trouble = !dead.empty();
  for (int peer = 0; peer < world_; ++peer) {
    standings.push_back(group_.standing(peer));
    trouble |= standings.back().state != Standing::open;
  }
  // A peer may have sent and then left in peace: what it sent counts.
  if (trouble) move_all();
  for (const Standing& s : standings)
    if (s.state != Standing::open && s.cause != Cause::closed)
      return fall({Standing::failed, s.cause == Cause::interrupted ? Cause::aborted : s.cause, s.culprit});
  std::vector<Cause> gone(standings.size(), Cause::none);
  for (int peer : dead) gone[static_cast<size_t>(peer)] = Cause::died;
  for (size_t peer = 0; peer < gone.size(); ++peer)
    if (standings[peer].state == Standing::closed) gone[peer] = Cause::closed;
  // From any source: any rank that died may be the one, but of those that closed only the last.
  const auto first_dead = std::find(gone.begin(), gone.end(), Cause::died);
  const auto first_closed = std::find(gone.begin(), gone.end(), Cause::closed);
  const auto left =
      static_cast<int>(gone.size()) - static_cast<int>(std::count(gone.begin(), gone.end(), Cause::closed));
  const auto lost = first_dead != gone.end() ? first_dead : left <= 1 ? first_closed : gone.end();
  const double now = membership_->now();
  for (const auto& request : pending_) {
    const int peer = request->peer();
    const auto found = peer == kAnySource ? lost : gone.begin() + peer;
    if (found != gone.end() && *found != Cause::none)
      return fall({Standing::failed, *found, static_cast<uint16_t>(found - gone.begin())});
    if (std::exchange(request->judged_offset_, request->offset_) != request->offset_)
      request->deadline_ = now + request->message_.timeout;
    if (now > request->deadline_)
      return fall(peer == kAnySource
                      ? Standing{Standing::failed, Cause::aborted, static_cast<uint16_t>(rank_)}
                      : Standing{Standing::failed, Cause::timed_out, static_cast<uint16_t>(peer)},
                  request.get());
  }
}

void PointToPoint::fall(Standing why, const Request* late) {
  group_.record(why);
  end_all(late);
}

// With what the culprit did last; where others blame this rank, with what the other side of the message did.
Failure PointToPoint::broken(const Request& request, Standing s, bool late) const {
  const int who = s.culprit != rank_ ? s.culprit : request.peer();
  const bool known = !closed_ && s.state == Standing::failed && who != rank_ && who != kAnySource;
  return request.broken(s, rank_, late, known ? membership_->last_call(who) : "");
}

void PointToPoint::end_all(const Request* late) {
  const Standing s = standing();
  while (!pending_.empty()) {
    const std::shared_ptr<Request> request = pending_.front();
    settle(request, broken(*request, s, request.get() == late));
  }
  for (auto& queue : sends_) queue.clear();
  receives_.clear();
  unexpected_.clear();
  incoming_.assign(incoming_.size(), {});
  wanted_.assign(wanted_.size(), 0);
  wanted_from_any_ = 0;
}

void PointToPoint::close() {
  Lock lock(mutex_);
  if (closed_) return;
  Standing s = group_.standing(rank_);
  if (s.state == Standing::open) s = {Standing::closed, Cause::closed, static_cast<uint16_t>(rank_)};
  if (RealMemory::load(bell_.sleepers) != 0) RealMemory::ring(bell_.rings);
  closed_ = s;
  end_all();
  work_.notify_all();
  deliver(lock);
  quiet_.wait(lock, [&] { return inside_ == 0 && (!running_ || attendant_ == std::this_thread::get_id()); });
}

}  // namespace collectives
