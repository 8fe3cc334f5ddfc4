#include "torch/queue.h"

#include <unistd.h>

#include <utility>

namespace collectives::torch_adapter {
namespace {

constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks for signals

}  // namespace

bool Queue::try_enter() {
  const std::lock_guard lock(mutex_);
  if (running_ || !waiting_.empty()) return false;
  running_ = true;
  return true;
}

void Queue::leave() {
  bool queued, watched;
  {
    const std::lock_guard lock(mutex_);
    running_ = false;
    queued = !waiting_.empty();
    watched = sleepers_ > 0;
  }
  if (queued) work_there_.notify_one();
  if (watched) turn_over_.notify_all();
}

void Queue::push(c10::intrusive_ptr<QueuedWork> work) {
  std::unique_lock lock(mutex_);
  if (stopped_) {
    lock.unlock();
    return work->fail(stopped_);
  }
  waiting_.push_back(std::move(work));
  if (!worker_.joinable())
    worker_ = std::thread([self = shared_from_this()] { self->work_off(); });
  else if (!running_)
    work_there_.notify_one();
}

// With the lock, which is given away meanwhile.
void Queue::run_front(std::unique_lock<std::mutex>& lock) {
  const c10::intrusive_ptr<QueuedWork> work = std::move(waiting_.front());
  waiting_.pop_front();
  running_ = true;
  lock.unlock();
  work->run();
  lock.lock();
  running_ = false;
  if (sleepers_ > 0) turn_over_.notify_all();
}

void Queue::drive(QueuedWork& work, double seconds) {
  using std::chrono::steady_clock;
  const auto begun = steady_clock::now();
  std::unique_lock lock(mutex_);
  while (!work.isCompleted()) {
    // A call cannot be left in the middle, so whoever has a limit does not begin one.
    if (!running_ && !waiting_.empty() && seconds == 0) {
      run_front(lock);
      continue;
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
  if (!waiting_.empty() && !running_) work_there_.notify_one();
}

void Queue::work_off() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_there_.wait(lock, [this] { return stopped_ || (!running_ && !waiting_.empty()); });
    if (stopped_) return;
    run_front(lock);
  }
}

void Queue::stop(const std::exception_ptr& reason) {
  if (getpid() != owner_) return;
  std::deque<c10::intrusive_ptr<QueuedWork>> left;
  std::thread worker;
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    stopped_ = reason;
    left.swap(waiting_);
    worker.swap(worker_);
  }
  work_there_.notify_all();
  for (const auto& work : left) work->fail(reason);
  turn_over_.notify_all();
  // The last reference to the group may go in a callback that the worker itself runs.
  if (!worker.joinable()) return;
  if (worker.get_id() == std::this_thread::get_id())
    worker.detach();
  else
    worker.join();
}

void QueuedWork::run() {
  std::exception_ptr exception;
  try {
    body_();
  } catch (...) {
    exception = std::current_exception();
  }
  body_ = nullptr;  // the inputs may go
  complete(exception);
}

}  // namespace collectives::torch_adapter
