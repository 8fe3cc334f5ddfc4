// From tensors to what the core takes: packed arrays of known element types.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/op.h"

namespace collectives::torch_adapter {

// Throw BadInput, naming the tensor by `role`: a dense tensor in CPU memory. An output in which two indices
// share memory cannot be written.
void check_input(const at::Tensor& tensor, const char* role);
void check_output(const at::Tensor& tensor, const char* role);
void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* roles);
void check_size(const at::Tensor& tensor, int64_t numel, const char* what);
// The tensor of a list of one, which torch's interface has in many places.
const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* role);
// No two of them share memory: each is to hold a result of its own.
void check_apart(const std::vector<at::Tensor>& outputs);

// Elements as the core counts them when it only moves them. An element type that it does not know goes as
// bytes.
struct Movement {
  DType dtype;
  uint64_t size;  // core elements for each element of the tensor
};
Movement movement_of(at::ScalarType type);

// Throws BadInput where no reduction knows the type.
DType reduction_type(at::ScalarType type);

struct Reduction {
  Op op;
  double factor;  // premul_sum
};
Reduction reduction_of(const c10d::ReduceOp& op);

// The tensor itself where its elements lie one after another, else a packed copy (`fill`: with its values).
at::Tensor packed(const at::Tensor& tensor, bool fill = true);
// `from` itself where it and `to` (both packed) have no byte in common, or where byte `in` of the one is byte
// `out` of the other, which is how the collective works in place; else a copy.
at::Tensor apart(const at::Tensor& from, const at::Tensor& to, int64_t in, int64_t out);
// Writes a packed copy back; nothing where it is the tensor itself.
void unpack(const at::Tensor& tensor, const at::Tensor& image);

// Whether all have as many elements as the first.
bool even(const std::vector<at::Tensor>& parts);

// One packed array for equal parts, that the parts are copied from or to; where they already lie one after
// another in memory it is that memory.
at::Tensor joined(const std::vector<at::Tensor>& parts, bool fill);
void spread(const at::Tensor& whole, const std::vector<at::Tensor>& parts);

}  // namespace collectives::torch_adapter
