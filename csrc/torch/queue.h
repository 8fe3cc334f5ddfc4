// The order of one communicator's collectives, and who runs them.
#pragma once

#include <ATen/ThreadLocalState.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "torch/alarm.h"
#include "torch/work.h"

namespace collectives::torch_adapter {

class QueuedWork;

// Calls run one at a time, in the order in which they were begun. A synchronous call that finds the queue
// idle runs on its own thread and never enters it. What is in the queue is run by whoever is there first: a
// thread that waits for it, or for something behind it, or the worker, which is started with the first
// asynchronous call. So no call ever needs the worker to be scheduled if somebody waits, and none needs
// anybody to wait. Most callers wait soon, and on a crowded machine a worker that wakes takes the core from
// the very thread that would: so it wakes only for a call that has lain there for kPatience, or whose future
// somebody took.
//
// A call gives the right to run away before the callbacks of its future run: a callback may begin another
// call and wait for it (DDP's PowerSGD hook does). While the worker is in a callback another worker takes its
// place. Where no worker can be started (out of descriptors or threads), an asynchronous call runs before
// push() returns.
//
// Lives as long as somebody may run: workers and queued calls hold it.
class Queue : public std::enable_shared_from_this<Queue> {
 public:
  // The right to run now, for a caller that was not queued. False where something runs or waits.
  bool try_enter();
  void leave();

  void push(c10::intrusive_ptr<QueuedWork> work);
  // What is queued is not to wait for anybody's waiting.
  void hurry();
  // Runs what is queued until `work` has ended, or sleeps while others do. `seconds` (0: none) bounds the
  // sleeping.
  void drive(QueuedWork& work, double seconds);
  // Fails what has not started, and ends the worker. What runs must have been made to end before.
  void stop(const std::exception_ptr& reason);

 private:
  static constexpr std::chrono::microseconds kPatience{
      50};  // a worker that wakes took about 40 of them, measured

  void work_off();
  void run_front(std::unique_lock<std::mutex>& lock, bool is_worker);
  bool ensure_worker();
  void arm(std::chrono::nanoseconds delay);
  void disarm();

  // In a forked child there is no worker, and the mutex may be held by a thread that is not there: nothing is
  // queued, and the core turns every call away.
  bool forked() const { return generation() != generation_; }

  const uint32_t generation_ = generation();
  std::mutex mutex_;
  // Workers sleep here. With the lock free: set or due if something is queued and nothing runs.
  std::optional<Alarm> alarm_;
  bool armed_ = false;
  std::condition_variable turn_over_;  // those who wait for a call
  std::deque<c10::intrusive_ptr<QueuedWork>> waiting_;
  std::condition_variable worker_gone_;
  std::exception_ptr stopped_;
  int workers_ = 0;    // threads
  int available_ = 0;  // of them not in a callback
  int sleepers_ = 0;   // on turn_over_
  bool running_ = false;
};

// A call in a queue.
class QueuedWork final : public Work {
 public:
  QueuedWork(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs,
             uint64_t sequence, std::shared_ptr<Queue> queue, std::function<void()> body)
      : Work(rank, type, title, std::move(outputs), sequence),
        queue_(std::move(queue)),
        body_(std::move(body)) {}

  // Makes the call, in the state of the thread that began it (inference mode and its like); once, by the
  // queue. Then finish() is due.
  void run();
  void fail(const std::exception_ptr& reason) {
    body_ = nullptr;
    complete(reason);
  }
  // Whoever waits for the future alone does not run the call.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (!isCompleted()) queue_->hurry();
    return Work::getFuture();
  }

 protected:
  void block(double seconds) override { queue_->drive(*this, seconds); }

 private:
  friend class Queue;

  const std::shared_ptr<Queue> queue_;
  std::function<void()> body_;
  const at::ThreadLocalState state_;
  bool taken_ = false;  // out of the queue; under its mutex
};

}  // namespace collectives::torch_adapter
