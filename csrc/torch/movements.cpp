// The methods that move data and reduce nothing, and the barriers.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <numeric>

#include "torch/backend.h"

namespace collectives::torch_adapter {
namespace {

using c10d::OpType;

std::string text(int64_t number) { return std::to_string(number); }

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* role) {
  if (tensors.size() != 1)
    throw BadInput(std::string(role) + ": one tensor expected, not " +
                   text(static_cast<int64_t>(tensors.size())));
  return tensors.front();
}

// The list of one tensor for each rank in a list of lists.
const std::vector<at::Tensor>& list_of(const std::vector<std::vector<at::Tensor>>& lists, int size,
                                       const char* role) {
  if (lists.size() != 1 || lists.front().size() != static_cast<size_t>(size))
    throw BadInput(std::string(role) + ": a list of one tensor for each of the " + text(size) +
                   " ranks expected");
  return lists.front();
}

// Whether all have as many elements as the first.
bool even(const std::vector<at::Tensor>& parts) {
  for (const at::Tensor& part : parts)
    if (part.numel() != parts.front().numel()) return false;
  return true;
}

void check_size(const at::Tensor& tensor, int64_t numel, const char* what) {
  if (tensor.numel() != numel)
    throw BadInput(std::string(what) + " has " + text(tensor.numel()) + " elements, not " + text(numel));
}

}  // namespace

Backend::Handle Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  return begin(Collective::broadcast, OpType::BROADCAST, "collectives:broadcast", opts.asyncOp, tensors, [&] {
    const at::Tensor& tensor = only(tensors, "broadcast");
    const int64_t root = check_root(opts.rootRank);
    root == rank_ ? check_input(tensor, "tensor") : check_output(tensor, "tensor");
    return [this, tensor, root, timeout = opts.timeout] { broadcast_one(tensor, root, timeout); };
  });
}

void Backend::broadcast_one(const at::Tensor& tensor, int64_t root, std::chrono::milliseconds timeout) {
  const at::NoGradGuard no_grad;
  const auto [dtype, size] = movement_of(tensor.scalar_type());
  const at::Tensor image = packed(tensor, root == rank_);
  Described call;
  call.collective = Collective::broadcast;
  call.in = image.const_data_ptr();
  if (root != rank_) call.out = image.mutable_data_ptr();
  call.count = static_cast<uint64_t>(tensor.numel()) * size;
  call.dtype = dtype;
  call.root = root;
  call.timeout = timeout;
  call.shape = tensor.sizes();
  run(call);
  if (root != rank_) deliver(tensor, image);
}

// all_gather, gather and scatter of equal parts, packed or not.
void Backend::move_one(Collective collective, const at::Tensor& in, const at::Tensor& out, int64_t part,
                       int64_t root, std::chrono::milliseconds timeout) {
  const at::NoGradGuard no_grad;
  const auto [dtype, size] = movement_of((in.defined() ? in : out).scalar_type());
  const at::Tensor from = in.defined() ? packed(in) : in;
  const at::Tensor to = out.defined() ? packed(out, false) : out;
  Described call;
  call.collective = collective;
  if (from.defined()) call.in = from.const_data_ptr();
  if (to.defined()) call.out = to.mutable_data_ptr();
  call.count = static_cast<uint64_t>(part) * size;
  call.dtype = dtype;
  call.root = root;
  call.timeout = timeout;
  call.shape = (in.defined() ? in : out).sizes();
  run(call);
  if (out.defined()) deliver(out, to);
}

Backend::Handle Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                         const c10d::AllgatherOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

Backend::Handle Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& opts) {
  return begin(Collective::all_gather, OpType::_ALLGATHER_BASE, "collectives:all_gather", opts.asyncOp,
               outputs, [&] {
                 if (outputs.size() != inputs.size())
                   throw BadInput("all_gather: " + text(static_cast<int64_t>(inputs.size())) +
                                  " inputs for " + text(static_cast<int64_t>(outputs.size())) + " outputs");
                 for (size_t i = 0; i < inputs.size(); ++i) {
                   check_input(inputs[i], "input");
                   check_output(outputs[i], "output");
                   check_same_type(inputs[i], outputs[i], "input and output");
                   check_size(outputs[i], inputs[i].numel() * size_, "all_gather: the output");
                 }
                 return [this, inputs, outputs, timeout = opts.timeout] {
                   for (size_t i = 0; i < inputs.size(); ++i)
                     move_one(Collective::all_gather, inputs[i], outputs[i], inputs[i].numel(), 0, timeout);
                 };
               });
}

// Into lists. Parts of several sizes are broadcast by the rank that has them.
Backend::Handle Backend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                   const c10d::AllgatherOptions& opts) {
  const Tensors results = outputs.size() == 1 ? outputs.front() : Tensors{};
  return begin(
      Collective::all_gather, OpType::ALLGATHER, "collectives:all_gather", opts.asyncOp, results, [&] {
        const at::Tensor& input = only(inputs, "all_gather");
        check_input(input, "input");
        const Tensors& parts = list_of(outputs, size_, "all_gather: outputs");
        for (const at::Tensor& part : parts) {
          check_output(part, "output");
          check_same_type(input, part, "input and outputs");
        }
        check_apart(parts);
        check_size(parts[static_cast<size_t>(rank_)], input.numel(), "all_gather: this rank's output");
        return [this, parts, input, timeout = opts.timeout] {
          const at::NoGradGuard no_grad;
          if (!even(parts)) {
            deliver(parts[static_cast<size_t>(rank_)], input);
            for (int root = 0; root < size_; ++root)
              broadcast_one(root == rank_ ? input : parts[static_cast<size_t>(root)], root, timeout);
            return;
          }
          const at::Tensor whole = joined(parts, false);
          move_one(Collective::all_gather, input, whole, input.numel(), 0, timeout);
          if (!estimate_) spread(whole, parts);
        };
      });
}

// Of several inputs, each into its place in every rank's list.
Backend::Handle Backend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& opts) {
  Tensors all;
  for (const Tensors& of_rank : outputs) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return begin(
      Collective::all_gather, OpType::ALLGATHER_COALESCED, "collectives:all_gather", opts.asyncOp, all, [&] {
        if (outputs.size() != static_cast<size_t>(size_))
          throw BadInput("all_gather_coalesced: a list for each of the " + text(size_) + " ranks expected");
        std::vector<Tensors> parts(inputs.size());
        for (size_t i = 0; i < inputs.size(); ++i) {
          check_input(inputs[i], "input");
          for (const Tensors& of_rank : outputs) {
            if (of_rank.size() != inputs.size())
              throw BadInput(
                  "all_gather_coalesced: as many outputs for each rank as there are inputs expected");
            check_output(of_rank[i], "output");
            check_same_type(inputs[i], of_rank[i], "input and outputs");
            check_size(of_rank[i], inputs[i].numel(), "all_gather_coalesced: an output");
            parts[i].push_back(of_rank[i]);
          }
        }
        check_apart(all);
        return [this, inputs, parts = std::move(parts), timeout = opts.timeout] {
          const at::NoGradGuard no_grad;
          for (size_t i = 0; i < inputs.size(); ++i) {
            const at::Tensor whole = joined(parts[i], false);
            move_one(Collective::all_gather, inputs[i], whole, inputs[i].numel(), 0, timeout);
            if (!estimate_) spread(whole, parts[i]);
          }
        };
      });
}

Backend::Handle Backend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                const c10d::GatherOptions& opts) {
  const bool is_root = opts.rootRank == rank_;
  const Tensors results = is_root && outputs.size() == 1 ? outputs.front() : Tensors{};
  return begin(Collective::gather, OpType::GATHER, "collectives:gather", opts.asyncOp, results, [&] {
    const int64_t root = check_root(opts.rootRank);
    const at::Tensor& input = only(inputs, "gather");
    check_input(input, "input");
    Tensors parts;
    if (is_root) {
      parts = list_of(outputs, size_, "gather: the root's outputs");
      for (const at::Tensor& part : parts) {
        check_output(part, "output");
        check_same_type(input, part, "input and outputs");
        check_size(part, input.numel(), "gather: an output");
      }
      check_apart(parts);
    } else if (!outputs.empty() && !outputs.front().empty()) {
      throw BadInput("gather: only the root, rank " + text(root) + ", gives outputs");
    }
    return [this, parts, input, root, timeout = opts.timeout] {
      const at::NoGradGuard no_grad;
      const at::Tensor whole = parts.empty() ? at::Tensor() : joined(parts, false);
      move_one(Collective::gather, input, whole, input.numel(), root, timeout);
      if (!parts.empty() && !estimate_) spread(whole, parts);
    };
  });
}

Backend::Handle Backend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                 const c10d::ScatterOptions& opts) {
  return begin(Collective::scatter, OpType::SCATTER, "collectives:scatter", opts.asyncOp, outputs, [&] {
    const int64_t root = check_root(opts.rootRank);
    const at::Tensor& output = only(outputs, "scatter");
    check_output(output, "output");
    Tensors parts;
    if (root == rank_) {
      parts = list_of(inputs, size_, "scatter: the root's inputs");
      for (const at::Tensor& part : parts) {
        check_input(part, "input");
        check_same_type(part, output, "inputs and output");
        check_size(part, output.numel(), "scatter: an input");
      }
    } else if (!inputs.empty() && !inputs.front().empty()) {
      throw BadInput("scatter: only the root, rank " + text(root) + ", gives inputs");
    }
    return [this, parts, output, root, timeout = opts.timeout] {
      const at::NoGradGuard no_grad;
      const at::Tensor whole = parts.empty() ? at::Tensor() : joined(parts, true);
      move_one(Collective::scatter, whole, output, output.numel(), root, timeout);
    };
  });
}

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
                       (splits.empty() ? ": dimension 0, " + text(rows) + ", does not divide by the " +
                                             text(size_) + " ranks"
                                       : " splits: one for each of the " + text(size_) + " ranks expected"));
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
        throw BadInput(std::string("all_to_all: the ") + role + " splits add up to " + text(sum) +
                       ", not to its " + text(rows) + " rows");
      return elements;
    };
    auto send = counts(input, input_splits, "input");
    auto recv = counts(output, output_splits, "output");
    if (equal) check_size(output, input.numel(), "all_to_all: the output");
    return [this, input, output, send, recv, equal, timeout = opts.timeout] {
      const at::NoGradGuard no_grad;
      if (equal) return move_one(Collective::all_to_all, input, output, input.numel() / size_, 0, timeout);
      const at::Tensor to = packed(output, false);
      exchange_parts(packed(input), to, send, recv, timeout);
      deliver(output, to);
    };
  });
}

Backend::Handle Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) {
  return begin(Collective::all_to_all_v, OpType::ALLTOALL, "collectives:all_to_all", opts.asyncOp, outputs,
               [&] {
                 const auto ranks = static_cast<size_t>(size_);
                 if (outputs.size() != ranks || inputs.size() != ranks)
                   throw BadInput("all_to_all: one input and one output for each of the " + text(size_) +
                                  " ranks expected");
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
                   const at::Tensor from = flat(inputs, true);
                   const at::Tensor to = flat(outputs, false);
                   exchange_parts(from, to, send, recv, timeout);
                   if (!estimate_) spread(to, outputs);
                 };
               });
}

Backend::Handle Backend::barrier(const c10d::BarrierOptions& opts) {
  return begin(Collective::barrier, OpType::BARRIER, "collectives:barrier", opts.asyncOp, {}, [&] {
    return [this, timeout = opts.timeout] {
      Described call;
      call.timeout = timeout;
      run(call);
    };
  });
}

// The core names every rank that is missing, on every rank that is there, so waiting for all or not is one.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  c10d::BarrierOptions synchronous = opts;
  synchronous.asyncOp = false;
  barrier(synchronous);
}

}  // namespace collectives::torch_adapter
