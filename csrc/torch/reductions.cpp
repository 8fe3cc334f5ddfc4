// The methods that reduce.
#include <ATen/core/grad_mode.h>

#include <utility>

#include "torch/backend.h"

namespace collectives::torch_adapter {
namespace {

using c10d::OpType;

}  // namespace

// Reduces what `like` says from `in` to `out`, which may be one.
void Backend::reduce_one(const at::Tensor& in, const at::Tensor& out, const Described& like) {
  const at::NoGradGuard no_grad;
  const bool in_place = in.is_same(out);
  const auto [from, to] = staged(like.collective, [&] {
    at::Tensor source = packed(in);
    at::Tensor target = in_place ? source : packed(out, false);
    const bool scatters = like.collective == Collective::reduce_scatter;
    if (!in_place)
      source = apart(source, target, scatters ? rank_ * static_cast<int64_t>(target.nbytes()) : 0, 0);
    return std::pair(source, target);
  });
  Described call = like;
  call.in = from.const_data_ptr();
  call.out = to.mutable_data_ptr();
  call.count =
      static_cast<uint64_t>(like.collective == Collective::reduce_scatter ? out.numel() : in.numel());
  call.shape = in.sizes();
  run(call);
  if (like.collective != Collective::reduce || like.root == rank_) deliver(out, to);
}

Backend::Handle Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  if (tensors.size() == 1 && tensors.front().is_sparse()) return allreduce_sparse(tensors, opts);
  return begin(Collective::all_reduce, OpType::ALLREDUCE, "collectives:all_reduce", opts.asyncOp, tensors,
               [&] {
                 const at::Tensor& tensor = only(tensors, "all_reduce");
                 check_output(tensor, "tensor");
                 Described call;
                 call.collective = Collective::all_reduce;
                 call.dtype = reduction_type(tensor.scalar_type());
                 call.reduction = reduction_of(opts.reduceOp);
                 call.timeout = opts.timeout;
                 return [this, tensor, call] { reduce_one(tensor, tensor, call); };
               });
}

Backend::Handle Backend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  return begin(Collective::all_reduce, OpType::ALLREDUCE_COALESCED, "collectives:all_reduce_coalesced",
               opts.asyncOp, tensors, [&] {
                 std::vector<std::pair<at::Tensor, Described>> calls;
                 for (const at::Tensor& tensor : tensors) {
                   check_output(tensor, "tensor");
                   Described call;
                   call.collective = Collective::all_reduce;
                   call.dtype = reduction_type(tensor.scalar_type());
                   call.reduction = reduction_of(opts.reduceOp);
                   call.timeout = opts.timeout;
                   calls.emplace_back(tensor, call);
                 }
                 return [this, calls = std::move(calls)] {
                   for (const auto& [tensor, call] : calls) reduce_one(tensor, tensor, call);
                 };
               });
}

// Agrees with all ranks that another library makes the call, so that a rank which calls something else is
// found here and not by that library's timeout.
void Backend::delegate(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  Described call;
  call.collective = Collective::delegated;
  call.timeout = opts.timeout;
  run(call);
  if (!fallback_) fallback_ = make_fallback_();
  fallback_->allreduce(tensors, opts)->wait();
}

Backend::Handle Backend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  return begin(
      Collective::delegated, OpType::_ALLREDUCE_SPARSE, "collectives:all_reduce_sparse", opts.asyncOp,
      tensors, [&] {
        if (options_->fallback == GroupOptions::Fallback::error)
          throw BadInput("sparse tensors are reduced by Gloo, and Options(fallback=\"error\") forbids it");
        if (!make_fallback_ || !only(tensors, "all_reduce").device().is_cpu())
          throw BadInput("sparse tensors can be reduced in CPU memory only");
        return [this, tensors, opts]() mutable { delegate(tensors, opts); };
      });
}

Backend::Handle Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  return begin(Collective::reduce, OpType::REDUCE, "collectives:reduce", opts.asyncOp, tensors, [&] {
    const at::Tensor& tensor = only(tensors, "reduce");
    Described call;
    call.collective = Collective::reduce;
    call.root = check_root(opts.rootRank);
    if (call.root == rank_)
      check_output(tensor, "tensor");
    else
      check_input(tensor, "tensor");
    call.dtype = reduction_type(tensor.scalar_type());
    call.reduction = reduction_of(opts.reduceOp);
    call.timeout = opts.timeout;
    return [this, tensor, call] { reduce_one(tensor, tensor, call); };
  });
}

Backend::Handle Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                              const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output}, inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

Backend::Handle Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                         const c10d::ReduceScatterOptions& opts) {
  return begin(Collective::reduce_scatter, OpType::_REDUCE_SCATTER_BASE, "collectives:reduce_scatter",
               opts.asyncOp, outputs, [&] {
                 if (outputs.size() != inputs.size())
                   throw BadInput("reduce_scatter: " + std::to_string(inputs.size()) + " inputs for " +
                                  std::to_string(outputs.size()) + " outputs");
                 std::vector<Described> calls(inputs.size());
                 for (size_t i = 0; i < inputs.size(); ++i) {
                   check_input(inputs[i], "input");
                   check_output(outputs[i], "output");
                   check_same_type(inputs[i], outputs[i], "input and output");
                   if (inputs[i].numel() != outputs[i].numel() * size_)
                     throw BadInput("reduce_scatter: the input has " + std::to_string(inputs[i].numel()) +
                                    " elements, not " + std::to_string(size_) + " * " +
                                    std::to_string(outputs[i].numel()) + " for the output on each rank");
                   calls[i].collective = Collective::reduce_scatter;
                   calls[i].dtype = reduction_type(inputs[i].scalar_type());
                   calls[i].reduction = reduction_of(opts.reduceOp);
                   calls[i].timeout = opts.timeout;
                 }
                 return [this, inputs, outputs, calls = std::move(calls)] {
                   for (size_t i = 0; i < calls.size(); ++i) reduce_one(inputs[i], outputs[i], calls[i]);
                 };
               });
}

// Of lists. Parts of one size are joined; of several sizes each is reduced to its rank.
Backend::Handle Backend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                        const c10d::ReduceScatterOptions& opts) {
  return begin(Collective::reduce_scatter, OpType::REDUCE_SCATTER, "collectives:reduce_scatter", opts.asyncOp,
               outputs, [&] {
                 const at::Tensor& output = only(outputs, "reduce_scatter");
                 check_output(output, "output");
                 if (inputs.size() != 1 || inputs.front().size() != static_cast<size_t>(size_))
                   throw BadInput("reduce_scatter: a list of one input for each of the " +
                                  std::to_string(size_) + " ranks expected");
                 const Tensors& parts = inputs.front();
                 for (const at::Tensor& part : parts) {
                   check_input(part, "input");
                   check_same_type(part, output, "inputs and output");
                 }
                 if (parts[static_cast<size_t>(rank_)].numel() != output.numel())
                   throw BadInput("reduce_scatter: input " + std::to_string(rank_) + " has " +
                                  std::to_string(parts[static_cast<size_t>(rank_)].numel()) +
                                  " elements, the output " + std::to_string(output.numel()));
                 Described call;
                 const bool equal = even(parts);
                 call.collective = equal ? Collective::reduce_scatter : Collective::reduce;
                 call.dtype = reduction_type(output.scalar_type());
                 call.reduction = reduction_of(opts.reduceOp);
                 call.timeout = opts.timeout;
                 return [this, parts, output, call, equal] {
                   if (equal)
                     return reduce_one(staged(call.collective, [&] { return joined(parts, true); }), output,
                                       call);
                   for (int root = 0; root < size_; ++root) {
                     Described one = call;
                     one.root = root;
                     const at::Tensor& part = parts[static_cast<size_t>(root)];
                     reduce_one(part, root == rank_ ? output : part, one);
                   }
                 };
               });
}

}  // namespace collectives::torch_adapter
