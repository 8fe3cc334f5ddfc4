// Point to point. Independent of the collectives and their queue: a transfer in flight keeps nothing else
// waiting, and progresses whoever waits for what (the core's affair).
#include <ATen/core/grad_mode.h>

#include <limits>

#include "torch/backend.h"

namespace collectives::torch_adapter {
namespace {

class Transfer final : public Work {
 public:
  Transfer(int rank, c10d::OpType type, const char* title, at::Tensor tensor, uint64_t sequence)
      : Work(rank, type, title, {tensor}, sequence), tensor_(std::move(tensor)) {}
  ~Transfer() override {
    if (request_ != nullptr) table().release(request_);
  }

  // Once, after construction.
  void post(collectives_communicator* core, int peer, int tag, bool sends) {
    sends_ = sends;
    const auto [dtype, size] = movement_of(tensor_.scalar_type());
    image_ = packed(tensor_, sends);
    collectives_message message{};
    message.data = sends ? const_cast<void*>(image_.const_data_ptr()) : image_.mutable_data_ptr();
    message.count = static_cast<uint64_t>(tensor_.numel()) * size;
    message.peer = peer;
    message.tag = static_cast<uint32_t>(tag);
    message.dtype = static_cast<uint8_t>(dtype);
    // The callback owns a reference: the transfer goes on when all handles are gone.
    auto* self = c10::intrusive_ptr<Transfer>::unsafe_reclaim_from_nonowning(this).release();
    request_ = (sends ? table().post_send : table().post_recv)(core, &message, ended, self);
    if (request_ == nullptr) {
      c10::intrusive_ptr<Transfer>::reclaim(self).reset();
      // Failing to begin is told by last_error() alone.
      const bool usable = table().healthy(core) != 0;
      check(usable ? COLLECTIVES_BAD_ARGUMENT : COLLECTIVES_CLOSED, collective());
    }
  }

  int sourceRank() const override { return table().source(request_); }

 protected:
  void block(double seconds) override {
    const int status = table().wait(request_, seconds);
    if (status == COLLECTIVES_INTERRUPTED) throw_interruption();
    // Another thread may be about to say so.
    if (table().finished(request_) != 0) sleep_until_done(0);
  }

 private:
  Collective collective() const { return sends_ ? Collective::send : Collective::recv; }

  static void ended(void* context, int status) {
    const auto self = c10::intrusive_ptr<Transfer>::reclaim(static_cast<Transfer*>(context));
    std::exception_ptr exception = exception_of(status, self->collective());
    if (!exception && !self->sends_) {
      const at::ThreadLocalStateGuard as_begun(self->state_);
      const at::NoGradGuard no_grad;
      try {
        unpack(self->tensor_, self->image_);
      } catch (...) {
        exception = std::current_exception();
      }
    }
    self->complete(exception);
  }

  const at::ThreadLocalState state_;
  bool sends_ = false;
  const at::Tensor tensor_;
  at::Tensor image_;
  collectives_request* request_ = nullptr;
};

}  // namespace

Backend::Handle Backend::transfer(Tensors& tensors, int peer, int tag, bool sends) {
  if (tensors.size() != 1) throw BadInput("a message is one tensor");
  if (peer >= size_)
    throw BadInput("rank " + std::to_string(peer) + " is not in this group of " + std::to_string(size_));
  if (tag < 0) throw BadInput("a tag cannot be negative");
  sends ? check_input(tensors.front(), "tensor") : check_output(tensors.front(), "tensor");
  const c10d::OpType type = sends      ? c10d::OpType::SEND
                            : peer < 0 ? c10d::OpType::RECVANYSOURCE
                                       : c10d::OpType::RECV;
  auto work = c10::make_intrusive<Transfer>(rank_, type, sends ? "collectives:send" : "collectives:recv",
                                            tensors.front(), ++transfers_);
  work->post(core_, peer, tag, sends);
  if (auto* block = coalesced()) block->push_back(work);
  return work;
}

Backend::Handle Backend::send(Tensors& tensors, int destination, int tag) {
  if (destination < 0) throw BadInput("send: no destination");
  return transfer(tensors, destination, tag, true);
}

Backend::Handle Backend::recv(Tensors& tensors, int source, int tag) {
  if (source < 0) throw BadInput("recv: no source");
  return transfer(tensors, source, tag, false);
}

Backend::Handle Backend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, -1, tag, false);
}

}  // namespace collectives::torch_adapter
