// The half of PointToPoint that waits: in the calls of the user's threads, and in a thread of its own.
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <limits>
#include <system_error>

#include "cpu/point_to_point.h"

namespace collectives {
namespace {

using Memory = RealMemory;

// After kSpins looks: yield so often, or so long, then sleep. On a busy machine one yield may cost a turn of
// every other process.
constexpr int kYields = 200;
constexpr double kYieldSeconds = 1e-3;
constexpr int kLooks = 1000;      // looks after which the reasons to stop are asked for in any case
constexpr int kSleepMillis = 20;  // so a death is noticed within this time
constexpr std::chrono::seconds kRest{2};
constexpr double kForever = std::numeric_limits<double>::infinity();

}  // namespace

void PointToPoint::send(const Message& message) {
  run(make_request(Collective::send, message, nullptr, nullptr));
}

int PointToPoint::recv(const Message& message) {
  return run(make_request(Collective::recv, message, nullptr, nullptr))->source();
}

std::shared_ptr<Request> PointToPoint::post_send(const Message& message, Done done, void* context) {
  return post(make_request(Collective::send, message, done, context));
}

std::shared_ptr<Request> PointToPoint::post_recv(const Message& message, Done done, void* context) {
  return post(make_request(Collective::recv, message, done, context));
}

std::shared_ptr<Request> PointToPoint::post(const std::shared_ptr<Request>& request) {
  Lock lock(mutex_);
  begin(lock, request);
  engage();
  return request;
}

std::shared_ptr<Request> PointToPoint::run(const std::shared_ptr<Request>& request) {
  Lock lock(mutex_);
  begin(lock, request);
  if (drive(lock, *request, kForever) == Ended::interrupted) {
    // The memory is the caller's again, and half a message may be in it: there is no going on.
    if (!request->settled_) fall({Standing::failed, Cause::interrupted, static_cast<uint16_t>(rank_)});
    deliver(lock);
    throw request->fail(Cause::interrupted, {rank_}, "interrupted by a signal");
  }
  if (request->failure_) throw *request->failure_;
  return request;
}

void PointToPoint::wait(const std::shared_ptr<Request>& request, double seconds) {
  if (!request->finished()) {
    if (membership_->forked())
      throw request->fail(Cause::closed, {rank_}, "begun in the parent process, which alone can wait for it");
    Lock lock(mutex_);
    const double until = seconds > 0 ? membership_->now() + seconds : kForever;
    switch (drive(lock, *request, until)) {
      case Ended::interrupted:
        throw request->fail(Cause::interrupted, {rank_}, "interrupted by a signal; it is still pending");
      case Ended::late: {
        char text[64];
        std::snprintf(text, sizeof text, "still pending after %g s", seconds);
        throw request->fail(Cause::timed_out, {}, text);
      }
      case Ended::settled:
        break;
    }
  }
  request->finished_.wait(false, std::memory_order_acquire);  // another thread may be in `done`
  if (request->failure_) throw *request->failure_;
}

// Moves messages until `request` is settled, the time is over, or a signal handler raised.
PointToPoint::Ended PointToPoint::drive(Lock& lock, const Request& request, double until) {
  ++waiters_;
  Ended ended = Ended::settled;
  int idle = 0, looks = 0;
  double yields_since = 0;
  while (!request.settled_) {
    idle = move_all() ? 0 : idle + 1;
    deliver(lock);
    if (request.settled_) break;
    if (idle == kSpins) yields_since = membership_->now();
    if (idle > kSpins && membership_->now() - yields_since > kYieldSeconds) idle = kSpins + kYields;
    if (idle < kSpins + kYields && ++looks < kLooks) {
      lock.unlock();
      idle < kSpins ? Memory::pause() : Memory::yield();
      lock.lock();
      continue;
    }
    looks = 0;
    // A signal handler may close() this communicator: no lock, and not counted as inside.
    lock.unlock();
    const bool interrupted = membership_->interrupted();
    const std::vector<int> dead = membership_->dead();
    lock.lock();
    if (interrupted) {
      ended = Ended::interrupted;
      break;
    }
    judge(dead);
    deliver(lock);
    if (request.settled_) break;
    if (membership_->now() >= until) {
      ended = Ended::late;
      break;
    }
    if (idle >= kSpins + kYields) nap(lock, until);
  }
  --waiters_;
  engage();
  return ended;
}

// Something has come, or room for something to go, since it was last looked for.
bool PointToPoint::moved() const {
  for (size_t peer = 0; peer < writers_.size(); ++peer) {
    if (!sends_[peer].empty() && writers_[peer].moved()) return true;
    const bool reads = wanted_from_any_ > 0 || wanted_[peer] > 0 || incoming_[peer].active;
    if (reads && readers_[peer].moved()) return true;
  }
  return false;
}

// Sleeps on the bell until a peer rings, or a thread of this rank that has settled requests. Whoever begins a
// request meanwhile looks for it on its own, after this thread has announced itself.
void PointToPoint::nap(Lock& lock, double until) {
  const uint32_t seen = Memory::load(bell_.rings);
  Memory::enter_sleep(bell_.sleepers);
  if (moved()) return Memory::leave_sleep(bell_.sleepers);
  const double left = std::ceil((until - membership_->now()) * 1000);
  ++inside_;
  lock.unlock();
  Memory::sleep(bell_.rings, seen, left < kSleepMillis ? std::max(1, static_cast<int>(left)) : kSleepMillis);
  Memory::leave_sleep(bell_.sleepers);
  lock.lock();
  --inside_;
  if (closed_) quiet_.notify_all();
}

// Sees to it that somebody moves what is pending.
void PointToPoint::engage() {
  if (pending_.empty() || waiters_ > 0 || closed_) return;
  if (running_) {
    if (parked_) work_.notify_one();
    return;
  }
  // Signals are for the user's threads: a long wait of the main thread must be woken by them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([self = shared_from_this()] { self->attend(); }).detach();
    running_ = true;
  } catch (const std::system_error&) {
    // No more threads for this process: requests go on whenever somebody waits for one.
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void PointToPoint::attend() {
  pthread_setname_np(pthread_self(), "coll-messages");
  Lock lock(mutex_);
  attendant_ = std::this_thread::get_id();
  while (!closed_) {
    if (pending_.empty() || waiters_ > 0) {
      parked_ = true;
      const bool work =
          work_.wait_for(lock, kRest, [&] { return closed_ || (!pending_.empty() && waiters_ == 0); });
      parked_ = false;
      if (!work) break;
      continue;
    }
    const bool moved = move_all();
    deliver(lock);
    if (moved) {
      // Others want the mutex too.
      lock.unlock();
      Memory::yield();
      lock.lock();
      continue;
    }
    if (closed_ || pending_.empty() || waiters_ > 0) continue;
    lock.unlock();
    const std::vector<int> dead = membership_->dead();
    lock.lock();
    judge(dead);
    deliver(lock);
    if (!closed_ && !pending_.empty() && waiters_ == 0) nap(lock, kForever);
  }
  attendant_ = {};
  running_ = false;
  quiet_.notify_all();
}

}  // namespace collectives
