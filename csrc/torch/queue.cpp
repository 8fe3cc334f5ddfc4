#include "torch/queue.h"

#include <system_error>
#include <thread>
#include <utility>

namespace collectives::torch_adapter {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks for signals

thread_local const Queue* current = nullptr;  // whose worker this thread is

}  // namespace

bool Queue::try_enter() {
  if (forked()) return true;
  const std::lock_guard lock(mutex_);
  if (running_ || !waiting_.empty()) return false;
  running_ = true;
  return true;
}

void Queue::leave() {
  if (forked()) return;
  bool watched;
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    watched = sleepers_ > 0;
    if (!waiting_.empty()) arm(kPatience);
  }
  if (watched) turn_over_.notify_all();
}

// With the lock, as the next three.
void Queue::arm(std::chrono::nanoseconds delay) {
  if (!alarm_) return;
  alarm_->set(delay);
  armed_ = true;
}

void Queue::disarm() {
  if (!armed_) return;
  alarm_->clear();
  armed_ = false;
}

// False where one is needed and cannot be started.
bool Queue::ensure_worker() {
  if (available_ > 0 || waiting_.empty() || stopped_) return true;
  try {
    if (!alarm_) alarm_.emplace();
    std::thread([self = shared_from_this()] { self->work_off(); }).detach();
  } catch (const std::system_error&) {
    return false;
  }
  ++workers_;
  ++available_;
  return true;
}

void Queue::push(c10::intrusive_ptr<QueuedWork> work) {
  if (forked()) {
    work->run();
    return work->finish();
  }
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    return work->fail(stopped_);
  }
  waiting_.push_back(work);
  if (!ensure_worker()) {
    lock.unlock();
    return drive(*work, 0);
  }
  if (!running_ && !armed_) arm(kPatience);
}

void Queue::hurry() {
  if (forked()) return;
  const std::lock_guard lock(mutex_);
  if (!running_ && !waiting_.empty()) arm(std::chrono::nanoseconds(1));
}

// With the lock, which is given away meanwhile. The last reference to the call must not go with the lock
// held: what Python made for it goes with it, which takes the GIL, and a thread that has the GIL may want the
// lock.
void Queue::run_front(std::unique_lock<std::mutex>& lock, bool is_worker) {
  c10::intrusive_ptr<QueuedWork> work = std::move(waiting_.front());
  waiting_.pop_front();
  disarm();
  work->taken_ = true;
  running_ = true;
  lock.unlock();
  work->run();
  const bool quiet = work->finish_quietly();
  if (quiet) work.reset();
  lock.lock();
  running_ = false;
  if (sleepers_ > 0) turn_over_.notify_all();
  if (quiet) return;
  if (is_worker) --available_;
  if (!waiting_.empty()) arm(kPatience);
  ensure_worker();
  lock.unlock();
  work->finish();
  work.reset();
  lock.lock();
  if (sleepers_ > 0) turn_over_.notify_all();
  if (is_worker) ++available_;
}

void Queue::drive(QueuedWork& work, double seconds) {
  using std::chrono::steady_clock;
  const auto begun = steady_clock::now();
  take_interruption();  // of an earlier call, which has thrown it
  std::unique_lock lock(mutex_);
  while (!work.isCompleted()) {
    // A call cannot be left in the middle, so whoever has a limit does not begin one. Nor does whoever waits
    // for callbacks alone begin what lies behind: that may need what this thread is to do next.
    // Once stop() has emptied the queue, it fails the call.
    if (!running_ && !waiting_.empty() && !work.taken_ && seconds == 0) {
      run_front(lock, false);
      if (work.isCompleted()) continue;
      lock.unlock();
      const std::exception_ptr raised = take_interruption();
      lock.lock();
      if (!raised) continue;
      if (!waiting_.empty() && !running_) arm(kPatience);
      lock.unlock();
      std::rethrow_exception(raised);
    }
    auto until = steady_clock::now() + kLook;
    if (seconds > 0) {
      const auto deadline =
          begun + std::chrono::duration_cast<steady_clock::duration>(std::chrono::duration<double>(seconds));
      if (steady_clock::now() >= deadline) return;
      until = std::min(until, deadline);
    }
    ++sleepers_;
    const auto woken = turn_over_.wait_until(lock, until);
    --sleepers_;
    if (woken == std::cv_status::no_timeout) continue;
    lock.unlock();
    if (interrupted(nullptr) != 0) throw_interruption();
    lock.lock();
  }
  // Others may have to go on where this thread stops.
  if (!waiting_.empty() && !running_) arm(kPatience);
}

void Queue::work_off() {
  current = this;
  std::unique_lock lock(mutex_);
  while (!stopped_ && available_ == 1) {  // another took over while this one was in a callback
    if (!running_ && !waiting_.empty()) {
      run_front(lock, true);
      continue;
    }
    disarm();
    lock.unlock();
    alarm_->sleep();
    lock.lock();
  }
  --available_;
  --workers_;
  ensure_worker();
  worker_gone_.notify_all();
}

void Queue::stop(const std::exception_ptr& reason) {
  if (forked()) return;
  std::deque<c10::intrusive_ptr<QueuedWork>> left;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = reason;
    left.swap(waiting_);
    arm(std::chrono::nanoseconds(1));  // and no worker clears it again
  }
  for (const auto& work : left) work->fail(reason);
  turn_over_.notify_all();
  std::unique_lock lock(mutex_);
  // The last reference to the group may go in a callback that a worker itself runs.
  const int own = current == this ? 1 : 0;
  worker_gone_.wait(lock, [&] { return workers_ == own; });
}

void QueuedWork::run() {
  const at::ThreadLocalStateGuard as_begun(state_);
  std::exception_ptr exception;
  try {
    body_();
  } catch (...) {
    exception = std::current_exception();
  }
  body_ = nullptr;  // the inputs may go
  conclude(exception);
}

}  // namespace collectives::torch_adapter
