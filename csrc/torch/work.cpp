#include "torch/work.h"

#include <ATen/core/ivalue.h>

#include <utility>

namespace collectives::torch_adapter {
namespace {

using Future = c10::ivalue::Future;
using std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(20);  // between two looks for signals

void settle(Future& future, c10::IValue value, const std::exception_ptr& exception) {
  if (exception)
    future.setError(exception);
  else
    future.markCompleted(std::move(value));
}

void settle_result(Future& future, const std::exception_ptr& exception) {
  auto result = c10d::WorkResult::SUCCESS;
  if (exception) {
    result = c10d::WorkResult::COMM_ERROR;
    try {
      std::rethrow_exception(exception);
    } catch (const Failure& failure) {
      if (failure.status == COLLECTIVES_TIMED_OUT) result = c10d::WorkResult::TIMEOUT;
    } catch (...) {
    }
  }
  future.markCompleted(c10::IValue(static_cast<int64_t>(result)));
}

}  // namespace

Work::Work(int rank, c10d::OpType type, const char* title, std::vector<at::Tensor> outputs, uint64_t sequence)
    : c10d::Work(rank, type, title, outputs), outputs_(std::move(outputs)), sequence_(sequence) {}

bool Work::isSuccess() const {
  const std::lock_guard lock(mutex_);
  return completed_ && !exception_;
}

std::exception_ptr Work::exception() const {
  const std::lock_guard lock(mutex_);
  return exception_;
}

void Work::conclude(std::exception_ptr exception) {
  const std::lock_guard lock(mutex_);
  exception_ = std::move(exception);
  ended_ = steady_clock::now();
}

// With the lock.
void Work::end() {
  completed_ = true;
  done_.store(true, std::memory_order_release);
  cv_.notify_all();
}

bool Work::finish_quietly() {
  const std::lock_guard lock(mutex_);
  if (future_ || future_result_ || recordFunctionEndCallback_) return false;
  announced_ = true;
  end();
  return true;
}

void Work::finish() {
  c10::intrusive_ptr<Future> future, future_result;
  std::function<void()> record_end;
  {
    const std::lock_guard lock(mutex_);
    announced_ = true;  // from here on getFuture() settles what it makes
    future = future_;
    future_result = future_result_;
    record_end = std::move(recordFunctionEndCallback_);
  }
  finisher_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (record_end) record_end();
  if (future) settle(*future, c10::IValue(outputs_), exception_);
  if (future_result) settle_result(*future_result, exception_);
  finisher_.store({}, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  end();
}

bool Work::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    if (generation_ != generation())
      throw Failure(COLLECTIVES_CLOSED,
                    "this call was begun in the parent process; a forked child must make groups of its own",
                    "wait", sequence_, {});
    const double seconds = timeout > kNoTimeout ? std::chrono::duration<double>(timeout).count() : 0;
    block(seconds);
    if (!isCompleted())
      throw Failure(COLLECTIVES_TIMED_OUT,
                    "wait() gave up after " + std::to_string(timeout.count()) +
                        " ms; the call itself goes on and can be waited for again",
                    "wait", sequence_, {});
  }
  // Read without the lock: written before done_ was, or by this thread.
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void Work::sleep_until_done(double seconds) {
  const auto deadline = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                                  std::chrono::duration<double>(seconds));
  std::unique_lock lock(mutex_);
  while (!completed_) {
    auto until = steady_clock::now() + kLook;
    if (seconds > 0) {
      if (steady_clock::now() >= deadline) return;
      until = std::min(until, deadline);
    }
    if (cv_.wait_until(lock, until) == std::cv_status::no_timeout) continue;
    lock.unlock();
    if (interrupted(nullptr) != 0) throw_interruption();
    lock.lock();
  }
}

c10::intrusive_ptr<Future> Work::getFuture() {
  std::unique_lock lock(mutex_);
  if (!future_) {
    future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    const auto future = future_;
    const bool announced = announced_;
    lock.unlock();
    if (announced) settle(*future, c10::IValue(outputs_), exception_);
    return future;
  }
  return future_;
}

c10::intrusive_ptr<Future> Work::getFutureResult() {
  std::unique_lock lock(mutex_);
  if (!future_result_) {
    future_result_ = c10::make_intrusive<Future>(c10::IntType::get());
    const auto future = future_result_;
    const bool announced = announced_;
    lock.unlock();
    if (announced) settle_result(*future, exception_);
    return future;
  }
  return future_result_;
}

float Work::getDuration() const {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(ended_ != steady_clock::time_point{}, "the call has not ended yet");
  return std::chrono::duration<float, std::milli>(ended_ - begun_).count();
}

CoalescedWork::CoalescedWork(int rank, uint64_t sequence, std::vector<c10::intrusive_ptr<Work>> parts)
    : Work(rank, c10d::OpType::COALESCED, nullptr, {}, sequence),
      parts_(std::move(parts)),
      left_(parts_.size()) {}

void CoalescedWork::watch() {
  if (parts_.empty()) return complete(nullptr);
  for (const auto& part : parts_)
    part->getFuture()->addCallback(
        [self = c10::intrusive_ptr<CoalescedWork>::unsafe_reclaim_from_nonowning(this)](Future&) {
          if (self->left_.fetch_sub(1) != 1) return;
          std::exception_ptr first;
          for (const auto& each : self->parts_)
            if (!first) first = each->exception();
          self->complete(first);
        },
        /*uses_future=*/false);
}

void CoalescedWork::block(double seconds) {
  using std::chrono::milliseconds;
  const auto deadline = steady_clock::now() + std::chrono::duration_cast<steady_clock::duration>(
                                                  std::chrono::duration<double>(seconds));
  // Whoever waits for a part may do its work.
  for (const auto& part : parts_) {
    if (part->isCompleted()) continue;
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    if (seconds > 0 && left.count() <= 0) return;
    try {
      part->wait(seconds > 0 ? left : kNoTimeout);
    } catch (const Failure&) {
      // It is told by complete(), or the time is over.
    }
  }
  const double left = std::chrono::duration<double>(deadline - steady_clock::now()).count();
  if (seconds == 0 || left > 0) sleep_until_done(seconds > 0 ? left : 0);
}

}  // namespace collectives::torch_adapter
