// Arrays as Python hands them over: NumPy and whatever else exports a buffer, and anything with __dlpack__.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "core/dtype.h"
#include "core/strided.h"

namespace collectives {

namespace nb = nanobind;

// Becomes Python's TypeError.
struct BadType : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// A view of a Python object's memory; keeps the object's export alive. Not copyable.
//
// Buffers come first because they cost a tenth of a DLPack exchange. NumPy does not export the dtypes of
// ml_dtypes as buffers; those are viewed as unsigned integers of their size and remembered by name.
class Array {
 public:
  // `role` names the argument in messages. Throws BadType for objects that are no arrays, live on another
  // device, or have an element type that the library does not know.
  Array(nb::handle object, const char* role);
  ~Array();
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  // Throws BadArgument where the array cannot be an output: read-only, or two indices share an element.
  void check_writable() const;

  Strided view;
  DType dtype;
  bool read_only = false;

 private:
  void check_size() const;
  bool import_buffer(nb::handle object);
  void import_named(nb::handle object);
  void import_dlpack(nb::handle object);

  const char* role_;
  Py_buffer buffer_{};
  bool has_buffer_ = false;
  nb::object viewed_;
  nb::ndarray<nb::ro> tensor_;
};

}  // namespace collectives
