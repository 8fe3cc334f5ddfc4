#include "native/operands.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <string_view>

namespace collectives {
namespace {

constexpr const char* kOps = "sum, avg, min, max, product, band, bor, bxor or premul_sum";
constexpr const char* kAlgorithms = "inline, one_shot, two_shot, direct, symmetric";

std::string_view text_of(nb::handle object, const char* role, const char* words) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(object.ptr()) ? PyUnicode_AsUTF8AndSize(object.ptr(), &length) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    throw BadType(std::string(role) + " must be a string, one of " + words + "; not " +
                  nb::cast<std::string>(nb::repr(object)));
  }
  return {text, static_cast<size_t>(length)};
}

Op parse_op(nb::handle object) {
  Op op;
  const std::string_view text = text_of(object, "op", kOps);
  if (!parse(text, op)) throw BadArgument("unknown op '" + std::string(text) + "': " + kOps);
  return op;
}

Algorithm parse_algorithm(nb::handle object) {
  if (object.is_none()) return Algorithm::automatic;
  Algorithm algorithm;
  const std::string_view text = text_of(object, "algorithm", kAlgorithms);
  if (!parse(text, algorithm) || algorithm == Algorithm::automatic)
    throw BadArgument("unknown algorithm '" + std::string(text) + "': " + kAlgorithms + " or None");
  return algorithm;
}

double parse_number(nb::handle object, const char* role) {
  const double number = PyFloat_AsDouble(object.ptr());
  if (number == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw BadType(std::string(role) + " must be a number, not " + nb::cast<std::string>(nb::repr(object)));
  }
  return number;
}

bool same_shape(const Strided& a, const Strided& b) {
  return a.dims == b.dims && std::equal(a.shape, a.shape + a.dims, b.shape);
}

}  // namespace

void parse_options(Call& call, nb::handle algorithm, nb::handle timeout) {
  call.descriptor.algorithm = parse_algorithm(algorithm);
  if (timeout.is_none()) return;
  call.timeout = parse_number(timeout, "timeout");
  if (!(call.timeout > 0) || !std::isfinite(call.timeout))
    throw BadArgument("timeout must be a positive number of seconds, not " +
                      nb::cast<std::string>(nb::repr(timeout)));
}

void parse_reduction(Call& call, nb::handle op, nb::handle factor) {
  call.descriptor.op = parse_op(op);
  const bool scales = call.descriptor.op == Op::premul_sum;
  if (scales && factor.is_none())
    throw BadArgument("premul_sum needs factor: the number that this rank's x is multiplied by");
  if (!scales && !factor.is_none())
    throw BadArgument(std::string("factor goes with premul_sum, not with ") + name(call.descriptor.op));
  if (scales) call.factor = parse_number(factor, "factor");
}

uint32_t parse_root(nb::handle object, int world) {
  const long long rank = PyIndex_Check(object.ptr()) ? PyNumber_AsSsize_t(object.ptr(), nullptr) : -1;
  PyErr_Clear();
  if (rank < 0 || rank >= world)
    throw BadArgument("root " + nb::cast<std::string>(nb::repr(object)) + " is no rank: 0 to " +
                      std::to_string(world - 1));
  return static_cast<uint32_t>(rank);
}

std::string shape_of(const Strided& view) {
  std::string text = "(";
  for (int i = 0; i < view.dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  return text + (view.dims == 1 ? ",)" : ")");
}

void check_output(const Array& in, const Array& out) {
  out.check_writable();
  if (out.dtype != in.dtype)
    throw BadArgument(std::string("out is ") + name(out.dtype) + ", but x is " + name(in.dtype));
}

void check_parts(size_t whole, const char* role, size_t part, size_t world) {
  size_t expected;
  if (__builtin_mul_overflow(part, world, &expected) || whole != expected)
    throw BadArgument(std::string(role) + " has " + std::to_string(whole) + " elements, not " +
                      std::to_string(world) + " * " + std::to_string(part));
}

const void* part_of(const Array& whole, const Strided& part, int rank) {
  return static_cast<const char*>(whole.view.data) + static_cast<size_t>(rank) * part.bytes();
}

void check_overlap(const Strided& in, const Strided& out, bool in_place) {
  if (in_place || !in.is_contiguous() || !out.is_contiguous()) return;
  const Strided::Extent a = in.extent(), b = out.extent();
  if (a.low < b.high && b.low < a.high)
    throw BadArgument("out overlaps x: pass the very same memory or memory apart");
}

nb::object empty_beside(nb::handle x, int64_t first, const Strided& like) {
  nb::list shape;
  shape.append(first);
  for (int i = 1; i < like.dims; ++i) shape.append(like.shape[i]);
  return nb::module_::import_("collectives.arrays").attr("empty_like")(x, nb::tuple(shape));
}

void Operands::take_like_input(nb::handle output) {
  const Array& result = out.emplace(output, "out");
  check_output(*in, result);
  if (!same_shape(in->view, result.view))
    throw BadArgument("out is " + shape_of(result.view) + ", x " + shape_of(in->view));
  check_overlap(in->view, result.view, in->view.data == result.view.data);
}

void Operands::stage(Call& call, bool writes) {
  const Strided& shown = (in ? *in : *out).view;
  call.shape = shown.shape;
  call.dims = static_cast<uint32_t>(shown.dims);
  if (writes) call.out = static_cast<char*>(packed(result(), packed_out_));
  if (!in) return;
  call.in = !out && writes ? call.out : static_cast<const char*>(packed(in->view, packed_in_));
  if (call.in == in->view.data) return;
  nb::gil_scoped_release released;
  pack(const_cast<char*>(call.in), in->view);
}

void Operands::run(Communicator& comm, const Call& call) {
  nb::gil_scoped_release released;
  comm.run(call);
  if (packed_out_) unpack(result(), packed_out_.get());
}

void* Operands::packed(const Strided& view, Image& image) {
  if (view.is_contiguous()) return view.data;
  image.reset(static_cast<char*>(std::malloc(std::max<size_t>(view.bytes(), 1))));
  if (!image) throw std::bad_alloc();
  return image.get();
}

}  // namespace collectives
