#include "torch/tensors.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "torch/core.h"

namespace collectives::torch_adapter {

void check_input(const at::Tensor& tensor, const char* role) {
  if (!tensor.defined()) throw BadInput(std::string(role) + " is no tensor");
  if (tensor.layout() != at::kStrided)
    throw BadInput(std::string(role) + " is " + c10::str(tensor.layout()) +
                   ": only all_reduce takes sparse tensors, other calls need dense ones");
  if (!tensor.device().is_cpu())
    throw BadInput(std::string(role) + " is on " + tensor.device().str() +
                   ": this version moves CPU memory only");
  if (tensor.const_data_ptr() == nullptr && tensor.numel() > 0)
    throw BadInput(std::string(role) + " has " + std::to_string(tensor.numel()) +
                   " elements and no memory: its storage was resized");
}

void check_output(const at::Tensor& tensor, const char* role) {
  check_input(tensor, role);
  if (!tensor.is_contiguous() && at::has_internal_overlap(tensor) == at::MemOverlap::Yes)
    throw BadInput(std::string(role) +
                   " overlaps itself: two of its indices share memory (an expanded view); pass a clone()");
}

void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* roles) {
  if (a.scalar_type() != b.scalar_type())
    throw BadInput(std::string(roles) + " differ in dtype: " + c10::toString(a.scalar_type()) + " and " +
                   c10::toString(b.scalar_type()));
}

void check_size(const at::Tensor& tensor, int64_t numel, const char* what) {
  if (tensor.numel() != numel)
    throw BadInput(std::string(what) + " has " + std::to_string(tensor.numel()) + " elements, not " +
                   std::to_string(numel));
}

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* role) {
  if (tensors.size() != 1)
    throw BadInput(std::string(role) + ": one tensor expected, not " + std::to_string(tensors.size()));
  return tensors.front();
}

void check_apart(const std::vector<at::Tensor>& outputs) {
  std::vector<std::pair<const char*, const char*>> extents;
  for (const at::Tensor& t : outputs) {
    if (t.numel() == 0) continue;
    const auto* begin = static_cast<const char*>(t.const_data_ptr());
    if (t.is_contiguous()) extents.emplace_back(begin, begin + t.nbytes());
  }
  std::sort(extents.begin(), extents.end());
  for (size_t i = 1; i < extents.size(); ++i)
    if (extents[i].first < extents[i - 1].second)
      throw BadInput("two of the output tensors overlap in memory: each must hold a result of its own");
}

Movement movement_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return {DType::f32, 1};
    case at::kDouble:
      return {DType::f64, 1};
    case at::kHalf:
      return {DType::f16, 1};
    case at::kBFloat16:
      return {DType::bf16, 1};
    case at::kFloat8_e4m3fn:
      return {DType::f8e4m3, 1};
    case at::kFloat8_e5m2:
      return {DType::f8e5m2, 1};
    case at::kChar:
      return {DType::i8, 1};
    case at::kShort:
      return {DType::i16, 1};
    case at::kInt:
      return {DType::i32, 1};
    case at::kLong:
      return {DType::i64, 1};
    case at::kByte:
      return {DType::u8, 1};
    case at::kUInt16:
      return {DType::u16, 1};
    case at::kUInt32:
      return {DType::u32, 1};
    case at::kUInt64:
      return {DType::u64, 1};
    case at::kBool:
      return {DType::b8, 1};
    case at::kComplexFloat:
      return {DType::c64, 1};
    case at::kComplexDouble:
      return {DType::c128, 1};
    default:
      return {DType::u8, c10::elementSize(type)};
  }
}

DType reduction_type(at::ScalarType type) {
  const Movement movement = movement_of(type);
  if (movement.dtype == DType::u8 && type != at::kByte)
    throw BadInput(std::string("tensors of ") + c10::toString(type) +
                   " cannot be reduced, only moved; reductions take float64, float32, float16, bfloat16, "
                   "float8_e4m3fn, float8_e5m2, integers, bool and complex");
  return movement.dtype;
}

Reduction reduction_of(const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
      return {Op::sum, 1};
    case c10d::ReduceOp::AVG:
      return {Op::avg, 1};
    case c10d::ReduceOp::PRODUCT:
      return {Op::product, 1};
    case c10d::ReduceOp::MIN:
      return {Op::min, 1};
    case c10d::ReduceOp::MAX:
      return {Op::max, 1};
    case c10d::ReduceOp::BAND:
      return {Op::band, 1};
    case c10d::ReduceOp::BOR:
      return {Op::bor, 1};
    case c10d::ReduceOp::BXOR:
      return {Op::bxor, 1};
    case c10d::ReduceOp::PREMUL_SUM: {
      // The name that torch 2.11 has; newer ones keep it beside PreMulSumSupplement.
      const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
      if (supplement == nullptr) throw BadInput("PREMUL_SUM without a factor");
      const at::Tensor& factor = supplement->tensor_factor;
      return {Op::premul_sum, factor.defined() ? factor.item().toDouble() : supplement->double_factor};
    }
    default:
      throw BadInput("unknown ReduceOp: use SUM, AVG, MIN, MAX, PRODUCT, BAND, BOR, BXOR or PREMUL_SUM");
  }
}

at::Tensor packed(const at::Tensor& tensor, bool fill) {
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  at::Tensor image = at::empty(tensor.sizes(), tensor.options());
  if (fill) image.copy_(tensor);
  return image;
}

at::Tensor apart(const at::Tensor& from, const at::Tensor& to, int64_t in, int64_t out) {
  const auto* a = static_cast<const char*>(from.const_data_ptr());
  const auto* b = static_cast<const char*>(to.const_data_ptr());
  const bool overlap = a < b + to.nbytes() && b < a + from.nbytes();
  return overlap && a + in != b + out ? from.clone() : from;
}

void unpack(const at::Tensor& tensor, const at::Tensor& image) {
  if (!tensor.is_same(image)) tensor.copy_(image.reshape(tensor.sizes()));
}

bool even(const std::vector<at::Tensor>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [&](const at::Tensor& part) { return part.numel() == parts.front().numel(); });
}

at::Tensor joined(const std::vector<at::Tensor>& parts, bool fill) {
  const at::Tensor& first = parts.front();
  const int64_t numel = first.numel();
  bool adjacent = true;
  const auto* next = static_cast<const char*>(first.const_data_ptr());
  for (const at::Tensor& part : parts) {
    adjacent = adjacent && part.is_contiguous() && !part.is_conj() && !part.is_neg() &&
               part.const_data_ptr() == next && part.storage().is_alias_of(first.storage());
    next += part.nbytes();
  }
  if (adjacent) return first.as_strided({numel * static_cast<int64_t>(parts.size())}, {1});
  at::Tensor whole = at::empty({static_cast<int64_t>(parts.size()), numel}, first.options());
  if (fill)
    for (size_t i = 0; i < parts.size(); ++i)
      whole.select(0, static_cast<int64_t>(i)).view(parts[i].sizes()).copy_(parts[i]);
  return whole.view({-1});
}

void spread(const at::Tensor& whole, const std::vector<at::Tensor>& parts) {
  int64_t offset = 0;
  for (const at::Tensor& part : parts) {
    const at::Tensor image = whole.narrow(0, offset, part.numel());
    if (part.numel() > 0 && image.const_data_ptr() != part.const_data_ptr())
      part.copy_(image.view(part.sizes()));
    offset += part.numel();
  }
}

}  // namespace collectives::torch_adapter
