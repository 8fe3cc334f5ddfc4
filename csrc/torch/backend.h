// The c10d backend "collectives": one object for each process group that a rank is in.
#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torch/core.h"
#include "torch/options.h"
#include "torch/queue.h"
#include "torch/tensors.h"

namespace collectives::torch_adapter {

// A synchronous call (asyncOp false) that finds nothing before it runs on the caller's thread and returns a
// null Work, which torch takes for done. Any other call goes through the queue (queue.h). Point-to-point
// transfers have an order of their own (transfers.cpp) and never wait for collectives.
//
// Bad arguments raise BadInput before anything is sent; the peers are told and raise at once, and the group
// stays usable. What involves other ranks raises Failure. No method holds the GIL while it waits.
class Backend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Handle = c10::intrusive_ptr<c10d::Work>;
  // Makes the c10d backend that serves what this one does not; called by all ranks together, with the GIL.
  using MakeFallback = std::function<c10::intrusive_ptr<c10d::Backend>()>;

  Backend(int rank, int size, double timeout, c10::intrusive_ptr<GroupOptions> options);
  ~Backend() override;

  // The two steps of meeting: carry the announcement to all ranks, and all of theirs here.
  std::string announcement() const;
  void connect(const std::string& announcements);
  bool healthy() const { return table().healthy(core_) != 0; }
  bool down() const { return down_; }
  std::string flight_record(int rank) const;  // as native/table.h lays it out
  void set_fallback(MakeFallback make) { make_fallback_ = std::move(make); }

  const std::string getBackendName() const override { return "collectives"; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override { return options_; }

  Handle allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  Handle allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  Handle allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  Handle reduce(Tensors&, const c10d::ReduceOptions&) override;
  Handle reduce_scatter(Tensors&, std::vector<Tensors>&, const c10d::ReduceScatterOptions&) override;
  Handle _reduce_scatter_base(at::Tensor&, at::Tensor&, const c10d::ReduceScatterOptions&) override;
  Handle reduce_scatter_tensor_coalesced(Tensors&, Tensors&, const c10d::ReduceScatterOptions&) override;

  Handle broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  Handle allgather(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  Handle _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  Handle allgather_coalesced(std::vector<Tensors>&, Tensors&, const c10d::AllgatherOptions&) override;
  Handle allgather_into_tensor_coalesced(Tensors&, Tensors&, const c10d::AllgatherOptions&) override;
  Handle gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  Handle scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  Handle alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                       const c10d::AllToAllOptions&) override;
  Handle alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;
  Handle barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;

  Handle send(Tensors&, int destination, int tag) override;
  Handle recv(Tensors&, int source, int tag) override;
  Handle recvAnysource(Tensors&, int tag) override;

  // Calls that one thread makes between the two run as ever; the handle that ends the block stands for all of
  // them. It is not called supported, which would send torch's batch_isend_irecv here: torch keeps one list
  // of pending calls for all threads of a group, also after an exception, and calls that land in it by
  // mistake are never made.
  bool supportsCoalescing() const override { return false; }
  void startCoalescing() override;
  Handle endCoalescing() override;

  bool supportsTimeEstimation() const override { return true; }
  void start_time_estimate() { estimate_ = 0; }
  double end_time_estimate();  // milliseconds of the calls since, none of which ran

  bool supportsTensorAlloc(c10::DeviceIndex) override { return true; }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_.load(); }
  void setTimeout(std::chrono::milliseconds timeout) override;
  c10d::ErrorType getError() override;
  void abort() override;
  void shutdown() override;
  // The last strong reference went. Weak ones (the flight record's) keep the object until this has let go of
  // them.
  void release_resources() override;

 private:
  struct Described {  // one call of the core
    Collective collective = Collective::barrier;
    const void* in = nullptr;
    void* out = nullptr;
    uint64_t count = 0;
    DType dtype = DType::u8;
    Reduction reduction{Op::sum, 1};
    int64_t root = 0;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    const uint64_t* send_counts = nullptr;
    const uint64_t* recv_counts = nullptr;
    at::IntArrayRef shape;
  };
  // Makes the call, or adds up what it would cost.
  void run(const Described& call);
  // Writes a packed result back.
  void deliver(const at::Tensor& tensor, const at::Tensor& image) const {
    if (!estimate_) unpack(tensor, image);
  }

  // `prepare` checks the arguments and gives the body of the call; if it throws, the peers are told. The body
  // holds the tensors that it needs.
  template <class Prepare>
  Handle begin(Collective collective, c10d::OpType type, const char* title, bool async,
               const Tensors& outputs, Prepare prepare);
  Handle enqueue(c10d::OpType type, const char* title, bool async, const Tensors& outputs,
                 std::function<void()> body);
  void refuse(Collective collective, const std::string& reason);
  // Makes the packed arrays of a call that has its turn; where that fails, for want of memory, the peers are
  // told.
  template <class Stage>
  auto staged(Collective collective, Stage stage);
  // What the thread's coalescing block has of this group; null outside of one.
  std::vector<c10::intrusive_ptr<Work>>* coalesced() const;
  bool forked() const { return generation() != generation_; }
  int64_t check_root(int64_t root) const;
  Handle transfer(Tensors& tensors, int peer, int tag, bool sends);
  void delegate(Tensors& tensors, const c10d::AllreduceOptions& opts);

  void reduce_one(const at::Tensor& in, const at::Tensor& out, const Described& like);
  void broadcast_one(const at::Tensor& tensor, int64_t root, std::chrono::milliseconds timeout);
  void move_one(Collective collective, const at::Tensor& in, const at::Tensor& out, int64_t part,
                int64_t root, std::chrono::milliseconds timeout);
  void exchange_parts(const at::Tensor& in, const at::Tensor& out, std::vector<uint64_t> send,
                      std::vector<uint64_t> recv, std::chrono::milliseconds timeout);

  const c10::intrusive_ptr<GroupOptions> options_;
  const uint32_t generation_ = generation();
  collectives_communicator* core_;
  std::shared_ptr<Queue> queue_;
  MakeFallback make_fallback_;
  c10::intrusive_ptr<c10d::Backend> fallback_;
  std::atomic<uint64_t> sequence_{0};   // collectives begun
  std::atomic<uint64_t> transfers_{0};  // point to point
  std::optional<double> estimate_;      // seconds; set while calls are only estimated
  std::atomic<int> last_failure_{COLLECTIVES_OK};
  std::atomic<bool> down_{false};
};

// Shuts every group of this process down: before the interpreter ends.
void shutdown_all();

template <class Prepare>
Backend::Handle Backend::begin(Collective collective, c10d::OpType type, const char* title, bool async,
                               const Tensors& outputs, Prepare prepare) {
  sequence_.fetch_add(1, std::memory_order_relaxed);
  auto body = [&] {
    try {
      return prepare();
    } catch (const c10::Error& bad) {
      refuse(collective, bad.what_without_backtrace());
      throw;
    }
  }();
  if (!async && coalesced() == nullptr && queue_->try_enter()) {
    struct Leave {
      Queue& queue;
      ~Leave() { queue.leave(); }
    } leave{*queue_};
    RECORD_FUNCTION(title, c10::ArrayRef<const c10::IValue>{});
    body();
    return nullptr;
  }
  return enqueue(type, title, async, outputs, std::move(body));
}

template <class Stage>
auto Backend::staged(Collective collective, Stage stage) {
  try {
    return stage();
  } catch (const std::exception& failed) {
    if (!estimate_) table().refuse(core_, static_cast<uint8_t>(collective), failed.what());
    throw;
  }
}

}  // namespace collectives::torch_adapter
