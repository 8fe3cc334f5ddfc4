#include "core/strided.h"

#include <algorithm>
#include <cstring>

namespace collectives {

namespace {

constexpr int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// The same elements in the same order, with dimensions of size 1 dropped and neighbours merged where one
// stride spans both. At least one dimension remains.
Strided merged(const Strided& array) {
  Strided out;
  out.data = array.data;
  out.item = array.item;
  for (int d = 0; d < array.dims; ++d) {
    if (array.shape[d] == 1) continue;
    const int last = out.dims - 1;
    if (last >= 0 && out.strides[last] == array.strides[d] * array.shape[d]) {
      out.shape[last] *= array.shape[d];
      out.strides[last] = array.strides[d];
    } else {
      out.shape[out.dims] = array.shape[d];
      out.strides[out.dims++] = array.strides[d];
    }
  }
  if (out.dims == 0) {
    out.dims = 1;
    out.shape[0] = 1;
    out.strides[0] = static_cast<int64_t>(array.item);
  }
  return out;
}

template <size_t kItem>
void copy_row(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t n) {
  for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, kItem);
}

void copy_row(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t n, size_t item) {
  const int64_t step = static_cast<int64_t>(item);
  if (dst_stride == step && src_stride == step) {
    std::memcpy(dst, src, static_cast<size_t>(n) * item);
    return;
  }
  switch (item) {
    case 1:
      return copy_row<1>(dst, dst_stride, src, src_stride, n);
    case 2:
      return copy_row<2>(dst, dst_stride, src, src_stride, n);
    case 4:
      return copy_row<4>(dst, dst_stride, src, src_stride, n);
    case 8:
      return copy_row<8>(dst, dst_stride, src, src_stride, n);
    case 16:
      return copy_row<16>(dst, dst_stride, src, src_stride, n);
    default:
      for (int64_t i = 0; i < n; ++i) std::memcpy(dst + i * dst_stride, src + i * src_stride, item);
  }
}

// Calls row(start of the row in the array, bytes packed before it) for every index of all but the last
// dimension.
template <class Row>
void for_each_row(const Strided& array, size_t row_bytes, Row row) {
  const int outer = array.dims - 1;
  int64_t index[Strided::kMaxDims];
  std::fill_n(index, outer, 0);
  char* at = static_cast<char*>(array.data);
  for (size_t packed = 0;; packed += row_bytes) {
    row(at, packed);
    int d = outer - 1;
    for (; d >= 0; --d) {
      at += array.strides[d];
      if (++index[d] < array.shape[d]) break;
      at -= array.strides[d] * array.shape[d];
      index[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace

size_t Strided::count() const {
  size_t n = 1;
  for (int d = 0; d < dims; ++d) n *= static_cast<size_t>(shape[d]);
  return n;
}

bool Strided::is_contiguous() const {
  if (count() == 0) return true;
  int64_t expected = static_cast<int64_t>(item);
  for (int d = dims - 1; d >= 0; --d) {
    if (shape[d] == 1) continue;
    if (strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

bool Strided::self_overlaps() const {
  if (count() == 0) return false;
  int order[kMaxDims];
  int n = 0;
  for (int d = 0; d < dims; ++d) {
    if (shape[d] > 1) order[n++] = d;
  }
  std::sort(order, order + n, [this](int a, int b) { return magnitude(strides[a]) < magnitude(strides[b]); });
  // Each dimension must step over all that the finer ones span.
  int64_t span = static_cast<int64_t>(item);
  for (int k = 0; k < n; ++k) {
    const int64_t step = magnitude(strides[order[k]]);
    if (step < span) return true;
    span += step * (shape[order[k]] - 1);
  }
  return false;
}

Strided::Extent Strided::extent() const {
  const uintptr_t origin = reinterpret_cast<uintptr_t>(data);
  if (count() == 0) return {origin, origin};
  Extent extent{origin, origin + item};
  for (int d = 0; d < dims; ++d) {
    const int64_t reach = strides[d] * (shape[d] - 1);
    (reach < 0 ? extent.low : extent.high) += static_cast<uintptr_t>(reach);
  }
  return extent;
}

void pack(void* dst, const Strided& src) {
  if (src.count() == 0) return;
  const Strided array = merged(src);
  const int64_t n = array.shape[array.dims - 1];
  const int64_t stride = array.strides[array.dims - 1];
  const int64_t item = static_cast<int64_t>(array.item);
  for_each_row(array, static_cast<size_t>(n * item), [&](char* row, size_t packed) {
    copy_row(static_cast<char*>(dst) + packed, item, row, stride, n, array.item);
  });
}

void unpack(const Strided& dst, const void* src) {
  if (dst.count() == 0) return;
  const Strided array = merged(dst);
  const int64_t n = array.shape[array.dims - 1];
  const int64_t stride = array.strides[array.dims - 1];
  const int64_t item = static_cast<int64_t>(array.item);
  for_each_row(array, static_cast<size_t>(n * item), [&](char* row, size_t packed) {
    copy_row(row, stride, static_cast<const char*>(src) + packed, item, n, array.item);
  });
}

}  // namespace collectives
