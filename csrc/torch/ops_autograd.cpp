// Gradients of torch.ops.collectives, for the loss that is the sum of all ranks' losses. A gradient is a
// collective again, called through the dispatcher, so that it is traced and differentiated like any other
// call.
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <string_view>
#include <vector>

namespace collectives {
namespace {

using at::Tensor;
using std::string;
using std::string_view;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;
using Splits = std::optional<std::vector<c10::SymInt>>;

template <class Signature>
c10::TypedOperatorHandle<Signature> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

Tensor all_reduce(const Tensor& input, string_view op, string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, string_view, string_view)>("collectives::all_reduce");
  return handle.call(input, op, group);
}

Tensor all_gather(const Tensor& input, int64_t size, string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, int64_t, string_view)>("collectives::all_gather");
  return handle.call(input, size, group);
}

Tensor reduce_scatter(const Tensor& input, string_view op, int64_t size, string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, string_view, int64_t, string_view)>("collectives::reduce_scatter");
  return handle.call(input, op, size, group);
}

Tensor all_to_all(const Tensor& input, at::OptionalSymIntArrayRef out, at::OptionalSymIntArrayRef in,
                  string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, at::OptionalSymIntArrayRef, at::OptionalSymIntArrayRef,
                            string_view)>("collectives::all_to_all");
  return handle.call(input, out, in, group);
}

Tensor reduce(const Tensor& input, string_view op, int64_t root, string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, string_view, int64_t, string_view)>("collectives::reduce");
  return handle.call(input, op, root, group);
}

Tensor broadcast(const Tensor& input, int64_t root, string_view group) {
  static const auto handle =
      operator_named<Tensor(const Tensor&, int64_t, string_view)>("collectives::broadcast");
  return handle.call(input, root, group);
}

void check_differentiable(const char* collective, const string& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(op == "sum" || op == "avg", collective, "(", op,
                              ") has no gradient; sum and avg have one");
}

struct AllReduce : Function<AllReduce> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, string_view op, string_view group) {
    context->saved_data["op"] = string(op);
    context->saved_data["group"] = string(group);
    at::AutoDispatchBelowADInplaceOrView guard;
    return all_reduce(input, op, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const string op = context->saved_data["op"].toStringRef();
    check_differentiable("all_reduce", op);
    return {all_reduce(gradients[0], op, context->saved_data["group"].toStringRef()), {}, {}};
  }
};

struct AllGather : Function<AllGather> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t size, string_view group) {
    context->saved_data["size"] = size;
    context->saved_data["group"] = string(group);
    context->saved_data["scalar"] = input.dim() == 0;
    at::AutoDispatchBelowADInplaceOrView guard;
    return all_gather(input, size, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t size = context->saved_data["size"].toInt();
    Tensor part = reduce_scatter(gradients[0], "sum", size, context->saved_data["group"].toStringRef());
    return {context->saved_data["scalar"].toBool() ? part.squeeze(0) : part, {}, {}};
  }
};

struct ReduceScatter : Function<ReduceScatter> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, string_view op, int64_t size,
                        string_view group) {
    context->saved_data["op"] = string(op);
    context->saved_data["size"] = size;
    context->saved_data["group"] = string(group);
    at::AutoDispatchBelowADInplaceOrView guard;
    return reduce_scatter(input, op, size, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const string op = context->saved_data["op"].toStringRef();
    const int64_t size = context->saved_data["size"].toInt();
    check_differentiable("reduce_scatter", op);
    Tensor whole = all_gather(gradients[0], size, context->saved_data["group"].toStringRef());
    return {op == "avg" ? whole.div(size) : whole, {}, {}, {}};
  }
};

struct AllToAll : Function<AllToAll> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, at::OptionalSymIntArrayRef out,
                        at::OptionalSymIntArrayRef in, string_view group) {
    save(context, "out", out);
    save(context, "in", in);
    context->saved_data["group"] = string(group);
    at::AutoDispatchBelowADInplaceOrView guard;
    return all_to_all(input, out, in, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Splits out = saved(context, "out");
    const Splits in = saved(context, "in");
    const string group = context->saved_data["group"].toStringRef();
    return {all_to_all(gradients[0], view(in), view(out), group), {}, {}, {}};
  }

 private:
  static void save(AutogradContext* context, const char* name, at::OptionalSymIntArrayRef splits) {
    if (splits) context->saved_data[name] = *splits;
  }
  static Splits saved(AutogradContext* context, const char* name) {
    const auto found = context->saved_data.find(name);
    if (found == context->saved_data.end()) return std::nullopt;
    return found->second.toSymIntVector();
  }
  static at::OptionalSymIntArrayRef view(const Splits& splits) {
    return splits ? at::OptionalSymIntArrayRef(*splits) : std::nullopt;
  }
};

struct Reduce : Function<Reduce> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, string_view op, int64_t root,
                        string_view group) {
    context->saved_data["op"] = string(op);
    context->saved_data["root"] = root;
    context->saved_data["group"] = string(group);
    at::AutoDispatchBelowADInplaceOrView guard;
    return reduce(input, op, root, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const string op = context->saved_data["op"].toStringRef();
    TORCH_CHECK_NOT_IMPLEMENTED(op == "sum", "reduce(", op, ") has no gradient; sum has one");
    const int64_t root = context->saved_data["root"].toInt();
    return {broadcast(gradients[0], root, context->saved_data["group"].toStringRef()), {}, {}, {}};
  }
};

// The root's input reached everybody, the others' inputs nobody.
struct Broadcast : Function<Broadcast> {
  static constexpr bool is_traceable = true;
  static Tensor forward(AutogradContext* context, const Tensor& input, int64_t root, string_view group) {
    context->saved_data["root"] = root;
    context->saved_data["group"] = string(group);
    at::AutoDispatchBelowADInplaceOrView guard;
    return broadcast(input, root, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t root = context->saved_data["root"].toInt();
    return {reduce(gradients[0], "sum", root, context->saved_data["group"].toStringRef()), {}, {}};
  }
};

// Most calls are made in inference, and skip the cost of a graph's node.
bool recorded(const Tensor& input) {
  TORCH_CHECK_NOT_IMPLEMENTED(!input._fw_grad(0).defined(), "collectives have no forward-mode gradient");
  return at::GradMode::is_enabled() && input.requires_grad();
}

template <class Node, class Call, class... Arguments>
Tensor differentiable(Call call, const Tensor& input, Arguments... arguments) {
  if (recorded(input)) return Node::apply(input, arguments...);
  at::AutoDispatchBelowADInplaceOrView guard;
  return call(input, arguments...);
}

Tensor all_reduce_autograd(const Tensor& input, string_view op, string_view group) {
  return differentiable<AllReduce>(all_reduce, input, op, group);
}

Tensor all_gather_autograd(const Tensor& input, int64_t size, string_view group) {
  return differentiable<AllGather>(all_gather, input, size, group);
}

Tensor reduce_scatter_autograd(const Tensor& input, string_view op, int64_t size, string_view group) {
  return differentiable<ReduceScatter>(reduce_scatter, input, op, size, group);
}

Tensor all_to_all_autograd(const Tensor& input, at::OptionalSymIntArrayRef out, at::OptionalSymIntArrayRef in,
                           string_view group) {
  return differentiable<AllToAll>(all_to_all, input, out, in, group);
}

Tensor reduce_autograd(const Tensor& input, string_view op, int64_t root, string_view group) {
  return differentiable<Reduce>(reduce, input, op, root, group);
}

Tensor broadcast_autograd(const Tensor& input, int64_t root, string_view group) {
  return differentiable<Broadcast>(broadcast, input, root, group);
}

// What writes its input is not differentiated, and tells autograd that saved values of the input are stale.
template <class Argument>
void overwrite(const char* name, const c10::TypedOperatorHandle<void(Tensor&, Argument, string_view)>& handle,
               Tensor& input, Argument argument, string_view group) {
  TORCH_CHECK(!recorded(input), name, "_ writes its input, which requires a gradient: call ", name,
              ", or call it under torch.no_grad()");
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    handle.call(input, argument, group);
  }
  input.unsafeGetTensorImpl()->bump_version();
}

void all_reduce_autograd_(Tensor& input, string_view op, string_view group) {
  static const auto handle =
      operator_named<void(Tensor&, string_view, string_view)>("collectives::all_reduce_");
  overwrite<string_view>("all_reduce", handle, input, op, group);
}

void broadcast_autograd_(Tensor& input, int64_t root, string_view group) {
  static const auto handle = operator_named<void(Tensor&, int64_t, string_view)>("collectives::broadcast_");
  overwrite<int64_t>("broadcast", handle, input, root, group);
}

}  // namespace

TORCH_LIBRARY_IMPL(collectives, Autograd, m) {
  m.impl("all_reduce", &all_reduce_autograd);
  m.impl("all_reduce_", &all_reduce_autograd_);
  m.impl("all_gather", &all_gather_autograd);
  m.impl("reduce_scatter", &reduce_scatter_autograd);
  m.impl("all_to_all", &all_to_all_autograd);
  m.impl("reduce", &reduce_autograd);
  m.impl("broadcast", &broadcast_autograd);
  m.impl("broadcast_", &broadcast_autograd_);
}

}  // namespace collectives
