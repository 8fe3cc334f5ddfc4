// The methods by which every rank sends a part to every other one.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include "torch/backend.h"

namespace collectives::torch_adapter {
namespace {

using c10d::OpType;

}  // namespace

// `send` and `recv` elements to and from each rank.
void Backend::exchange_parts(const at::Tensor& in, const at::Tensor& out, std::vector<uint64_t> send,
                             std::vector<uint64_t> recv, std::chrono::milliseconds timeout) {
  const auto [dtype, size] = movement_of(in.scalar_type());
  for (uint64_t& count : send) count *= size;
  for (uint64_t& count : recv) count *= size;
  Described call;
  call.collective = Collective::all_to_all_v;
  call.in = in.const_data_ptr();
  call.out = out.mutable_data_ptr();
  call.dtype = dtype;
  call.send_counts = send.data();
  call.recv_counts = recv.data();
  call.timeout = timeout;
  call.shape = in.sizes();
  run(call);
}

Backend::Handle Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                       std::vector<int64_t>& output_splits,
                                       std::vector<int64_t>& input_splits,
                                       const c10d::AllToAllOptions& opts) {
  const bool equal = output_splits.empty() && input_splits.empty();
  const Collective collective = equal ? Collective::all_to_all : Collective::all_to_all_v;
  return begin(collective, OpType::ALLTOALL_BASE, "collectives:all_to_all", opts.asyncOp, {output}, [&] {
    check_input(input, "input");
    check_output(output, "output");
    check_same_type(input, output, "input and output");
    // Rows of dimension 0 to elements.
    auto counts = [&](const at::Tensor& tensor, const std::vector<int64_t>& splits, const char* role) {
      const int64_t rows = tensor.dim() > 0 ? tensor.size(0) : tensor.numel();
      const auto ranks = static_cast<size_t>(size_);
      if (splits.empty() ? rows % size_ != 0 : splits.size() != ranks)
        throw BadInput(std::string("all_to_all: ") + role +
                       (splits.empty()
                            ? ": dimension 0, " + std::to_string(rows) + ", does not divide by the " +
                                  std::to_string(size_) + " ranks"
                            : " splits: one for each of the " + std::to_string(size_) + " ranks expected"));
      std::vector<uint64_t> elements;
      const int64_t row = rows > 0 ? tensor.numel() / rows : 0;
      int64_t sum = 0;
      for (size_t peer = 0; peer < ranks; ++peer) {
        const int64_t split = splits.empty() ? rows / size_ : splits[peer];
        if (split < 0) throw BadInput(std::string("all_to_all: a negative split of the ") + role);
        elements.push_back(static_cast<uint64_t>(split * row));
        sum += split;
      }
      if (sum != rows)
        throw BadInput(std::string("all_to_all: the ") + role + " splits add up to " + std::to_string(sum) +
                       ", not to its " + std::to_string(rows) + " rows");
      return elements;
    };
    auto send = counts(input, input_splits, "input");
    auto recv = counts(output, output_splits, "output");
    if (equal) check_size(output, input.numel(), "all_to_all: the output");
    return [this, input, output, send, recv, equal, timeout = opts.timeout] {
      const at::NoGradGuard no_grad;
      if (equal) return move_one(Collective::all_to_all, input, output, input.numel() / size_, 0, timeout);
      const auto [from, to] = staged(Collective::all_to_all_v, [&] {
        const at::Tensor target = packed(output, false);
        return std::pair(apart(packed(input), target, 0, 0), target);
      });
      exchange_parts(from, to, send, recv, timeout);
      deliver(output, to);
    };
  });
}

Backend::Handle Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return begin(Collective::all_to_all_v, OpType::ALLTOALL, "collectives:all_to_all", opts.asyncOp, outputs,
               [&] {
                 const auto ranks = static_cast<size_t>(size_);
                 if (outputs.size() != ranks || inputs.size() != ranks)
                   throw BadInput("all_to_all: one input and one output for each of the " +
                                  std::to_string(size_) + " ranks expected");
                 std::vector<uint64_t> send, recv;
                 for (size_t peer = 0; peer < ranks; ++peer) {
                   check_input(inputs[peer], "input");
                   check_output(outputs[peer], "output");
                   check_same_type(inputs[peer], inputs.front(), "two inputs");
                   check_same_type(inputs.front(), outputs[peer], "inputs and outputs");
                   send.push_back(static_cast<uint64_t>(inputs[peer].numel()));
                   recv.push_back(static_cast<uint64_t>(outputs[peer].numel()));
                 }
                 check_apart(outputs);
                 return [this, inputs, outputs, send, recv, timeout = opts.timeout] {
                   const at::NoGradGuard no_grad;
                   auto flat = [](const Tensors& parts, bool fill) {
                     if (even(parts)) return joined(parts, fill);
                     Tensors rows;
                     for (const at::Tensor& part : parts) rows.push_back(part.reshape({-1}));
                     return at::cat(rows);
                   };
                   const auto [from, to] = staged(Collective::all_to_all_v, [&] {
                     const at::Tensor target = flat(outputs, false);
                     return std::pair(apart(flat(inputs, true), target, 0, 0), target);
                   });
                   exchange_parts(from, to, send, recv, timeout);
                   if (!estimate_) spread(to, outputs);
                 };
               });
}

}  // namespace collectives::torch_adapter
