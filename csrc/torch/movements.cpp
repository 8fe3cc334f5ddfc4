// The methods that move whole inputs: broadcasts, gathers, scatters.
#include <ATen/core/grad_mode.h>

#include "torch/backend.h"

namespace collectives::torch_adapter {
namespace {

using c10d::OpType;

std::string text(int64_t number) { return std::to_string(number); }

// The list of one tensor for each rank in a list of lists.
const std::vector<at::Tensor>& list_of(const std::vector<std::vector<at::Tensor>>& lists, int size,
                                       const char* role) {
  if (lists.size() != 1 || lists.front().size() != static_cast<size_t>(size))
    throw BadInput(std::string(role) + ": a list of one tensor for each of the " + text(size) +
                   " ranks expected");
  return lists.front();
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
  const at::Tensor image = staged(Collective::broadcast, [&] { return packed(tensor, root == rank_); });
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
  const auto [from, to] = staged(collective, [&] {
    at::Tensor source = in.defined() ? packed(in) : in;
    at::Tensor target = out.defined() ? packed(out, false) : out;
    const auto slot = rank_ * part * static_cast<int64_t>((in.defined() ? in : out).element_size());
    const bool gathers = collective == Collective::all_gather || collective == Collective::gather;
    if (in.defined() && out.defined())
      source = apart(source, target, collective == Collective::scatter ? slot : 0, gathers ? slot : 0);
    return std::pair(source, target);
  });
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
          const at::Tensor whole = staged(Collective::all_gather, [&] { return joined(parts, false); });
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
            const at::Tensor whole = staged(Collective::all_gather, [&] { return joined(parts[i], false); });
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
      const at::Tensor whole =
          parts.empty() ? at::Tensor() : staged(Collective::gather, [&] { return joined(parts, false); });
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
      const at::Tensor whole =
          parts.empty() ? at::Tensor() : staged(Collective::scatter, [&] { return joined(parts, true); });
      move_one(Collective::scatter, whole, output, output.numel(), root, timeout);
    };
  });
}

}  // namespace collectives::torch_adapter
