// torch.ops.collectives: the collectives as operators that torch.compile traces without a graph break, over
// the process group of a name, of whatever backend.
//
// Contract: a call runs on the caller's thread and its result is there when it returns. All ranks of the
// group make the same calls in the same order. Functional ones return a new contiguous tensor and have a
// gradient, which is again a collective, so that all ranks must take it; those with an underscore write their
// input and have none. Where shapes depend on the
// group's size it is an argument, because compiled code is cached by the arguments.
#include <ATen/core/Tensor.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Newer torch has other names for some methods of ProcessGroup; 2.11 has only these.
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

namespace collectives {
namespace {

using at::Tensor;
using c10d::ReduceOp;
using std::string;
using std::string_view;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Group group_named(string_view name) { return c10d::resolve_process_group(string(name)); }

Group group_named(string_view name, int64_t size) {
  Group group = group_named(name);
  TORCH_CHECK_VALUE(group->getSize() == size, "group_size is ", size, ", but the group has ",
                    group->getSize(), " ranks");
  return group;
}

ReduceOp::RedOpType reduction(string_view name) {
  static constexpr std::pair<string_view, ReduceOp::RedOpType> kReductions[] = {
      {"sum", ReduceOp::SUM}, {"avg", ReduceOp::AVG},  {"product", ReduceOp::PRODUCT},
      {"min", ReduceOp::MIN}, {"max", ReduceOp::MAX},  {"band", ReduceOp::BAND},
      {"bor", ReduceOp::BOR}, {"bxor", ReduceOp::BXOR}};
  for (const auto& [known, type] : kReductions) {
    if (name == known) return type;
  }
  TORCH_CHECK_VALUE(false, "op=\"", name, "\": want sum, avg, product, min, max, band, bor or bxor");
}

template <class Options>
Options synchronous() {
  Options options;
  options.asyncOp = false;
  return options;
}

// A synchronous call may have no Work: then it is done.
void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

Tensor at_least_1d(const Tensor& x) { return x.dim() == 0 ? x.reshape({1}) : x; }

// An uninitialised contiguous tensor like `input`, but of `rows` rows.
Tensor with_rows(const Tensor& input, c10::SymInt rows) {
  std::vector<c10::SymInt> shape = input.sym_sizes().vec();
  if (shape.empty()) shape.emplace_back(1);
  shape[0] = std::move(rows);
  return input.new_empty_symint(shape);
}

c10::SymInt rows_of(const Tensor& input) { return input.dim() == 0 ? c10::SymInt(1) : input.sym_size(0); }

Tensor gathered_like(const Tensor& input, int64_t world) { return with_rows(input, rows_of(input) * world); }

Tensor scattered_like(const Tensor& input, int64_t world) {
  const c10::SymInt rows = rows_of(input);
  TORCH_SYM_CHECK((rows % world).sym_eq(0), "reduce_scatter: dimension 0 has ", rows,
                  " elements, which is no multiple of the ", world, " ranks");
  return with_rows(input, rows / world);
}

c10::SymInt sum(at::SymIntArrayRef splits) {
  c10::SymInt total = 0;
  for (const c10::SymInt& split : splits) total += split;
  return total;
}

Tensor exchanged_like(const Tensor& input, at::OptionalSymIntArrayRef out_splits,
                      at::OptionalSymIntArrayRef in_splits) {
  const c10::SymInt rows = rows_of(input);
  if (in_splits) {
    TORCH_SYM_CHECK(sum(*in_splits).sym_eq(rows), "all_to_all: input_splits do not add up to the ", rows,
                    " rows of the input");
  }
  return with_rows(input, out_splits ? sum(*out_splits) : rows);
}

void reduce_packed(Tensor& packed, string_view op, string_view group) {
  auto options = synchronous<c10d::AllreduceOptions>();
  options.reduceOp = reduction(op);
  std::vector<Tensor> tensors{packed};
  finish(group_named(group)->allreduce(tensors, options));
}

void broadcast_packed(Tensor& packed, int64_t root, string_view group) {
  auto options = synchronous<c10d::BroadcastOptions>();
  options.rootRank = root;
  std::vector<Tensor> tensors{packed};
  finish(group_named(group)->broadcast(tensors, options));
}

// Lets `run` write `x`, through a packed copy where it is not packed.
template <class Run>
void in_place(Tensor& x, Run run) {
  Tensor packed = x.contiguous();
  run(packed);
  if (!packed.is_same(x)) x.copy_(packed);
}

// The kernels of real tensors.

Tensor all_reduce(const Tensor& input, string_view op, string_view group) {
  Tensor result = input.clone(at::MemoryFormat::Contiguous);
  reduce_packed(result, op, group);
  return result;
}

void all_reduce_(Tensor& input, string_view op, string_view group) {
  in_place(input, [&](Tensor& packed) { reduce_packed(packed, op, group); });
}

Tensor all_gather(const Tensor& input, int64_t group_size, string_view group_name) {
  const Group group = group_named(group_name, group_size);
  Tensor part = at_least_1d(input).contiguous();
  Tensor result = gathered_like(input, group_size);
  finish(group->_allgather_base(result, part, synchronous<c10d::AllgatherOptions>()));
  return result;
}

Tensor reduce_scatter(const Tensor& input, string_view op, int64_t group_size, string_view group_name) {
  const Group group = group_named(group_name, group_size);
  auto options = synchronous<c10d::ReduceScatterOptions>();
  options.reduceOp = reduction(op);
  Tensor whole = input.contiguous();
  Tensor result =
      with_rows(input, rows_of(input) / group_size);  // refused by the backend where it does not divide
  finish(group->_reduce_scatter_base(result, whole, options));
  return result;
}

Tensor all_to_all(const Tensor& input, at::OptionalSymIntArrayRef out_splits,
                  at::OptionalSymIntArrayRef in_splits, string_view group_name) {
  const Group group = group_named(group_name);
  // Wrong splits are for the backend to refuse, so that the other ranks are told.
  const c10::SymInt rows = out_splits ? sum(*out_splits) : rows_of(input);
  Tensor result = with_rows(input, rows < 0 ? c10::SymInt(0) : rows);
  const auto integers = [](at::OptionalSymIntArrayRef splits) {
    return splits ? C10_AS_INTARRAYREF_SLOW(*splits).vec() : std::vector<int64_t>();  // empty: equal parts
  };
  std::vector<int64_t> out = integers(out_splits);
  std::vector<int64_t> in = integers(in_splits);
  Tensor whole = at_least_1d(input).contiguous();
  finish(group->alltoall_base(result, whole, out, in, synchronous<c10d::AllToAllOptions>()));
  return result;
}

// Zeros where the result is not: the gradient of broadcast, opaque to compilers, which would else give the
// ranks different graphs.
Tensor reduce(const Tensor& input, string_view op, int64_t root, string_view group_name) {
  const Group group = group_named(group_name);
  auto options = synchronous<c10d::ReduceOptions>();
  options.reduceOp = reduction(op);
  options.rootRank = root;
  Tensor result = input.clone(at::MemoryFormat::Contiguous);
  std::vector<Tensor> tensors{result};
  finish(group->reduce(tensors, options));
  return group->getRank() == root ? result : result.zero_();
}

Tensor broadcast(const Tensor& input, int64_t root, string_view group) {
  Tensor result = input.clone(at::MemoryFormat::Contiguous);
  broadcast_packed(result, root, group);
  return result;
}

void broadcast_(Tensor& input, int64_t root, string_view group) {
  in_place(input, [&](Tensor& packed) { broadcast_packed(packed, root, group); });
}

// The same for fake tensors: shapes only.

Tensor all_reduce_meta(const Tensor& input, string_view op, string_view) {
  reduction(op);
  return input.new_empty_symint(input.sym_sizes());
}

void all_reduce_meta_(Tensor&, string_view op, string_view) { reduction(op); }

Tensor all_gather_meta(const Tensor& input, int64_t group_size, string_view) {
  return gathered_like(input, group_size);
}

Tensor reduce_scatter_meta(const Tensor& input, string_view op, int64_t group_size, string_view) {
  reduction(op);
  return scattered_like(input, group_size);
}

Tensor all_to_all_meta(const Tensor& input, at::OptionalSymIntArrayRef out_splits,
                       at::OptionalSymIntArrayRef in_splits, string_view) {
  return exchanged_like(input, out_splits, in_splits);
}

Tensor reduce_meta(const Tensor& input, string_view op, int64_t, string_view) {
  reduction(op);
  return input.new_empty_symint(input.sym_sizes());
}

Tensor broadcast_meta(const Tensor& input, int64_t, string_view) {
  return input.new_empty_symint(input.sym_sizes());
}

void broadcast_meta_(Tensor&, int64_t, string_view) {}

}  // namespace

TORCH_LIBRARY(collectives, m) {
  m.def("all_reduce(Tensor input, str op, str group_name) -> Tensor");
  m.def("all_reduce_(Tensor(a!) input, str op, str group_name) -> ()");
  m.def("all_gather(Tensor input, int group_size, str group_name) -> Tensor");
  m.def("reduce_scatter(Tensor input, str op, int group_size, str group_name) -> Tensor");
  m.def(
      "all_to_all(Tensor input, SymInt[]? output_splits, SymInt[]? input_splits, str group_name) -> "
      "Tensor");
  m.def("reduce(Tensor input, str op, int root, str group_name) -> Tensor");
  m.def("broadcast(Tensor input, int root, str group_name) -> Tensor");
  m.def("broadcast_(Tensor(a!) input, int root, str group_name) -> ()");
}

static void register_kernels(torch::Library& m) {
  m.impl("all_reduce", &all_reduce);
  m.impl("all_reduce_", &all_reduce_);
  m.impl("all_gather", &all_gather);
  m.impl("reduce_scatter", &reduce_scatter);
  m.impl("all_to_all", &all_to_all);
  m.impl("reduce", &reduce);
  m.impl("broadcast", &broadcast);
  m.impl("broadcast_", &broadcast_);
}

TORCH_LIBRARY_IMPL(collectives, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(collectives, CUDA, m) { register_kernels(m); }

TORCH_LIBRARY_IMPL(collectives, Meta, m) {
  m.impl("all_reduce", &all_reduce_meta);
  m.impl("all_reduce_", &all_reduce_meta_);
  m.impl("all_gather", &all_gather_meta);
  m.impl("reduce_scatter", &reduce_scatter_meta);
  m.impl("all_to_all", &all_to_all_meta);
  m.impl("reduce", &reduce_meta);
  m.impl("broadcast", &broadcast_meta);
  m.impl("broadcast_", &broadcast_meta_);
}

}  // namespace collectives
