// The handle of a call that was begun.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "torch/core.h"

namespace collectives::torch_adapter {

// Common to all: state, future, exceptions. wait() may be called any number of times, by any number of
// threads; each gets the result or the exception. The tensors of the call live at least until it has ended;
// dropping the handle does not drop the call. A call has ended when the callbacks of its future have
// returned, so that whoever waited for the one finds the other done; a callback itself finds its call ended.
class Work : public c10d::Work {
 public:
  Work(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs, uint64_t sequence);

  bool isCompleted() override {
    return done_.load(std::memory_order_acquire) ||
           finisher_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return outputs_; }
  void synchronize() override {}
  // Throws the call's exception, and Failure(timed out) where `timeout` (0: none) ends first; the call goes
  // on then.
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;  // of the list of output tensors
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return sequence_; }
  // A single call cannot be taken back from its peers.
  void abort() override { TORCH_CHECK(false, "abort the process group instead of one call of it"); }

  // Called once each, by whoever made the call, holding no lock: conclude() keeps the outcome, finish() runs
  // the callbacks of futures, which may take any time and begin calls of their own, and lets waiting threads
  // go.
  void conclude(std::exception_ptr exception);
  void finish();
  // finish() where nobody is to be called back; otherwise does nothing and returns false.
  bool finish_quietly();
  void complete(std::exception_ptr exception) {
    conclude(std::move(exception));
    finish();
  }

 protected:
  // Returns when the call has ended or `seconds` (0: as long as it takes) are over. May throw what a signal
  // handler raised.
  virtual void block(double seconds) = 0;
  // Sleeps until the call has ended or the time is over, looking for signals.
  void sleep_until_done(double seconds);

 private:
  void end();

  std::atomic<bool> done_{false};
  std::atomic<std::thread::id> finisher_{};  // the thread that runs the callbacks
  const uint32_t generation_ = generation();
  std::vector<at::Tensor> outputs_;
  const uint64_t sequence_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::time_point ended_{};
  bool announced_ = false;                                 // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;         // under mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_result_;  // under mutex_
};

// Several calls that a coalescing block put together: ends when the last of them has, with the first
// exception.
class CoalescedWork final : public Work {
 public:
  CoalescedWork(int rank, uint64_t sequence, std::vector<c10::intrusive_ptr<Work>> parts);
  // Must be called once after construction.
  void watch();

 protected:
  void block(double seconds) override;

 private:
  std::vector<c10::intrusive_ptr<Work>> parts_;
  std::atomic<size_t> left_;
};

}  // namespace collectives::torch_adapter
