// Symmetric memory for Python: arrays that give their memory back when their last view dies.
#include "core/heap.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/dtype.h"
#include "core/process.h"
#include "native/module.h"

namespace collectives {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes allocate(size_t bytes) {
  void* memory = Process::current()->heap().allocate(bytes);
  nb::capsule owner(memory, Process::give_back);
  return Bytes(memory, {bytes}, owner);
}

nb::dict usage() {
  nb::dict result;
  const Heap::Usage usage = Process::current()->heap().usage();
  result["live_bytes"] = usage.live_bytes;
  result["kept_bytes"] = usage.kept_bytes;
  result["kept_blocks"] = usage.kept_blocks;
  return result;
}

}  // namespace

void bind_heap(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "allocate", &allocate, "nbytes"_a,
      "A NumPy array of nbytes bytes of symmetric memory, uninitialised. The memory goes back when the array "
      "and all views\nof it are gone. Raises MemoryError where there is none.");
  m.def(
      "dtypes",
      [] {
        nb::list names;
        for (const DTypeInfo& info : kDTypes) names.append(info.name);
        return nb::tuple(names);
      },
      "The names of all element types.");
  m.def("heap_usage", &usage, "Bytes of symmetric memory in use, and bytes and blocks kept for reuse.");
}

}  // namespace collectives
