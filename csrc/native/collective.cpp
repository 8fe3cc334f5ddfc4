#include "native/collective.h"

#include <nanobind/stl/string.h>

#include <cstdlib>
#include <memory>
#include <string_view>

#include "native/array.h"

namespace collectives {
namespace {

struct Free {
  void operator()(char* p) const { std::free(p); }
};
using Scratch = std::unique_ptr<char, Free>;

Scratch scratch(size_t bytes) {
  Scratch memory(static_cast<char*>(std::malloc(std::max<size_t>(bytes, 1))));
  if (!memory) throw std::bad_alloc();
  return memory;
}

std::string_view text_of(nb::handle object, const char* role) {
  Py_ssize_t length = 0;
  const char* text = PyUnicode_Check(object.ptr()) ? PyUnicode_AsUTF8AndSize(object.ptr(), &length) : nullptr;
  if (text == nullptr) {
    PyErr_Clear();
    throw BadType(std::string(role) + " must be a string");
  }
  return {text, static_cast<size_t>(length)};
}

Op parse_op(nb::handle object) {
  Op op;
  const std::string_view text = text_of(object, "op");
  if (!parse(text, op))
    throw BadArgument("unknown op '" + std::string(text) +
                      "': sum, avg, min, max, product, band, bor or bxor");
  return op;
}

Algorithm parse_algorithm(nb::handle object) {
  if (object.is_none()) return Algorithm::automatic;
  Algorithm algorithm;
  const std::string_view text = text_of(object, "algorithm");
  if (!parse(text, algorithm) || algorithm == Algorithm::automatic)
    throw BadArgument("unknown algorithm '" + std::string(text) +
                      "': inline, one_shot, two_shot, direct, symmetric or None");
  return algorithm;
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

bool same_shape(const Strided& a, const Strided& b) {
  return a.dims == b.dims && std::equal(a.shape, a.shape + a.dims, b.shape);
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

// Where the rank's part of `whole` begins.
const void* part_of(const Array& whole, const Strided& part, int rank) {
  return static_cast<const char*>(whole.view.data) + static_cast<size_t>(rank) * part.bytes();
}

// Only packed arrays can get into each other's way: of any other a packed image is made before the call.
void check_overlap(const Strided& in, const Strided& out, bool in_place) {
  if (in_place || !in.is_contiguous() || !out.is_contiguous()) return;
  const Strided::Extent a = in.extent(), b = out.extent();
  if (a.low < b.high && b.low < a.high)
    throw BadArgument("out overlaps x: pass the very same memory or memory apart");
}

// The arrays of one call, and packed images of those that are not contiguous.
class Operands {
 public:
  std::optional<Array> in;
  std::optional<Array> out;  // none: the call works in place, or writes nothing

  // Points `call` at packed memory. Of the argument checks this is the last: it may run out of memory.
  void stage(Call& call, bool writes = true) {
    const Strided& result = (out ? *out : *in).view;
    if (writes) call.out = static_cast<char*>(packed(result, packed_out_));
    call.in = !out && writes ? call.out : static_cast<const char*>(packed(in->view, packed_in_));
    if (call.in == in->view.data) return;
    nb::gil_scoped_release released;
    pack(const_cast<char*>(call.in), in->view);
  }

  void run(Communicator& comm, const Call& call) {
    nb::gil_scoped_release released;
    comm.run(call);
    if (packed_out_) unpack((out ? *out : *in).view, packed_out_.get());
  }

 private:
  static void* packed(const Strided& view, Scratch& image) {
    if (view.is_contiguous()) return view.data;
    image = scratch(view.bytes());
    return image.get();
  }

  Scratch packed_in_;
  Scratch packed_out_;
};

// An array of `shape` beside `x`: of its dtype, made by its own library.
nb::object empty_beside(nb::handle x, int64_t first, const Strided& like) {
  nb::list shape;
  shape.append(first);
  for (int i = 1; i < like.dims; ++i) shape.append(like.shape[i]);
  return nb::module_::import_("collectives.arrays").attr("empty_like")(x, nb::tuple(shape));
}

// The body of every collective: whatever is wrong with the arguments is told to the peers, who raise at once.
// comm.run() does so itself for what only the plan can know.
template <class Prepare>
auto prepared(Communicator& comm, Collective collective, Prepare prepare) {
  auto refuse = [&](const std::string& why) {
    nb::gil_scoped_release released;
    try {
      comm.refuse(collective, why);
    } catch (const Failure& failure) {
      if (failure.cause == Cause::interrupted) throw;  // a signal handler's exception must come out
      // The communicator is broken already, and the peers know; the caller's own mistake is the better news.
    } catch (const std::runtime_error&) {
      // In a signal handler within a call: the peers are in that call.
    }
  };
  try {
    return prepare();
  } catch (const std::invalid_argument& bad) {
    refuse(bad.what());
    throw;
  } catch (...) {
    refuse("an exception in its arguments");
    throw;
  }
}

}  // namespace

nb::object all_reduce(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle algorithm) {
  const bool in_place = out.is_none() || out.is(x);
  Call call;
  Operands operands;
  prepared(comm, Collective::all_reduce, [&] {
    call.descriptor.collective = Collective::all_reduce;
    call.descriptor.op = parse_op(op);
    call.descriptor.algorithm = parse_algorithm(algorithm);
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    if (in_place) {
      in.check_writable();
    } else {
      const Array& result = operands.out.emplace(out, "out");
      check_output(in, result);
      if (!same_shape(in.view, result.view))
        throw BadArgument("out is " + shape_of(result.view) + ", x " + shape_of(in.view));
      check_overlap(in.view, result.view, in.view.data == result.view.data);
    }
    operands.stage(call);
  });
  operands.run(comm, call);
  return nb::borrow(in_place ? x : out);
}

nb::object all_gather(Communicator& comm, nb::handle x, nb::handle out, nb::handle algorithm) {
  const auto world = static_cast<size_t>(comm.world());
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, Collective::all_gather, [&] {
    call.descriptor.collective = Collective::all_gather;
    call.descriptor.algorithm = parse_algorithm(algorithm);
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    output = out.is_none()
                 ? empty_beside(x, (in.view.dims == 0 ? 1 : in.view.shape[0]) * comm.world(), in.view)
                 : nb::borrow(out);
    const Array& result = operands.out.emplace(output, "out");
    check_output(in, result);
    check_parts(result.view.count(), "out", in.view.count(), world);
    check_overlap(in.view, result.view, in.view.data == part_of(result, in.view, comm.rank()));
    operands.stage(call);
  });
  operands.run(comm, call);
  return output;
}

nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle op,
                          nb::handle algorithm) {
  const auto world = static_cast<size_t>(comm.world());
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, Collective::reduce_scatter, [&] {
    call.descriptor.collective = Collective::reduce_scatter;
    call.descriptor.op = parse_op(op);
    call.descriptor.algorithm = parse_algorithm(algorithm);
    const Array& in = operands.in.emplace(x, "x");
    if (out.is_none() && (in.view.dims == 0 || in.view.shape[0] % comm.world() != 0))
      throw BadArgument("x is " + shape_of(in.view) + ": dim 0 must divide by " + std::to_string(world));
    output = out.is_none() ? empty_beside(x, in.view.shape[0] / comm.world(), in.view) : nb::borrow(out);
    const Array& result = operands.out.emplace(output, "out");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = result.view.count();
    check_output(in, result);
    check_parts(in.view.count(), "x", result.view.count(), world);
    check_overlap(in.view, result.view, result.view.data == part_of(in, result.view, comm.rank()));
    operands.stage(call);
  });
  operands.run(comm, call);
  return output;
}

nb::object broadcast(Communicator& comm, nb::handle x, nb::handle root, nb::handle algorithm) {
  Call call;
  Operands operands;
  prepared(comm, Collective::broadcast, [&] {
    call.descriptor.collective = Collective::broadcast;
    call.descriptor.algorithm = parse_algorithm(algorithm);
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    call.descriptor.root = parse_root(root, comm.world());
    // The root's array is only read, and may be read-only.
    const bool writes = call.descriptor.root != static_cast<uint32_t>(comm.rank());
    if (writes) in.check_writable();
    operands.stage(call, writes);
  });
  operands.run(comm, call);
  return nb::borrow(x);
}

void barrier(Communicator& comm) {
  nb::gil_scoped_release released;
  Call call;
  call.descriptor.collective = Collective::barrier;
  comm.run(call);
}

}  // namespace collectives
