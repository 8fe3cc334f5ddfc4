#include "native/collective.h"

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
    throw BadArgument("unknown op '" + std::string(text) + "': sum, avg, min, max, product, band, bor or bxor");
  return op;
}

Algorithm parse_algorithm(nb::handle object) {
  if (object.is_none()) return Algorithm::automatic;
  Algorithm algorithm;
  const std::string_view text = text_of(object, "algorithm");
  if (!parse(text, algorithm) || algorithm == Algorithm::automatic)
    throw BadArgument("unknown algorithm '" + std::string(text) + "': inline, one_shot, two_shot or None");
  return algorithm;
}

std::string shape_of(const Strided& view) {
  std::string text = "(";
  for (int i = 0; i < view.dims; ++i) text += (i > 0 ? ", " : "") + std::to_string(view.shape[i]);
  return text + (view.dims == 1 ? ",)" : ")");
}

bool same_shape(const Strided& a, const Strided& b) {
  return a.dims == b.dims && std::equal(a.shape, a.shape + a.dims, b.shape);
}

// Only packed arrays can get into each other's way: of any other a packed image is made before the call.
void check_overlap(const Strided& in, const Strided& out, const void* in_place) {
  if (!in.is_contiguous() || !out.is_contiguous() || in_place == (in.bytes() < out.bytes() ? in.data : out.data)) return;
  const Strided::Extent a = in.extent(), b = out.extent();
  if (a.low < b.high && b.low < a.high)
    throw BadArgument("out overlaps x: pass the very same memory or memory apart");
}

// Runs `call` on packed images of `in` and `out` (which may be one array).
void run(Communicator& comm, Call call, const Array& in, const Array& out) {
  Scratch packed_in, packed_out;
  nb::gil_scoped_release released;
  const bool out_packed = out.view.is_contiguous();
  if (out_packed) {
    call.out = static_cast<char*>(out.view.data);
  } else {
    packed_out = scratch(out.view.bytes());
    call.out = packed_out.get();
  }
  if (in.view.is_contiguous()) {
    call.in = static_cast<const char*>(in.view.data);
  } else if (&in == &out) {
    pack(call.out, in.view);
    call.in = call.out;
  } else {
    packed_in = scratch(in.view.bytes());
    pack(packed_in.get(), in.view);
    call.in = packed_in.get();
  }
  comm.run(call);
  if (!out_packed) unpack(out.view, call.out);
}

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
    } catch (const Failure&) {
      // The communicator is broken already, and the peers know; the caller's own mistake is the better news.
    }
  };
  try {
    return prepare();
  } catch (const std::invalid_argument& bad) {
    refuse(bad.what());
    throw;
  } catch (const std::bad_alloc&) {
    refuse("out of memory");
    throw;
  } catch (nb::python_error& error) {
    refuse("an exception in its arguments");
    throw;
  }
}

}  // namespace

nb::object all_reduce(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle algorithm) {
  const bool in_place = out.is_none() || out.is(x);
  Call call;
  std::optional<Array> in, result;
  prepared(comm, Collective::all_reduce, [&] {
    call.descriptor.collective = Collective::all_reduce;
    call.descriptor.op = parse_op(op);
    call.descriptor.algorithm = parse_algorithm(algorithm);
    in.emplace(x, "x");
    call.descriptor.dtype = in->dtype;
    call.descriptor.count = in->view.count();
    if (in_place) return in->check_writable();
    result.emplace(out, "out");
    result->check_writable();
    if (result->dtype != in->dtype)
      throw BadArgument(std::string("out is ") + name(result->dtype) + ", but x is " + name(in->dtype));
    if (!same_shape(in->view, result->view))
      throw BadArgument("out is " + shape_of(result->view) + ", x " + shape_of(in->view));
    check_overlap(in->view, result->view, in->view.data == result->view.data ? in->view.data : nullptr);
  });
  run(comm, call, *in, in_place ? *in : *result);
  return nb::borrow(in_place ? x : out);
}

nb::object all_gather(Communicator& comm, nb::handle x, nb::handle out, nb::handle algorithm) {
  const int64_t world = comm.world();
  Call call;
  std::optional<Array> in, result;
  nb::object output;
  prepared(comm, Collective::all_gather, [&] {
    call.descriptor.collective = Collective::all_gather;
    call.descriptor.algorithm = parse_algorithm(algorithm);
    in.emplace(x, "x");
    call.descriptor.dtype = in->dtype;
    call.descriptor.count = in->view.count();
    output = out.is_none() ? empty_beside(x, (in->view.dims == 0 ? 1 : in->view.shape[0]) * world, in->view) : nb::borrow(out);
    result.emplace(output, "out");
    result->check_writable();
    if (result->dtype != in->dtype)
      throw BadArgument(std::string("out is ") + name(result->dtype) + ", but x is " + name(in->dtype));
    if (result->view.count() != in->view.count() * static_cast<size_t>(world))
      throw BadArgument("out has " + std::to_string(result->view.count()) + " elements, not " + std::to_string(world) + " * " + std::to_string(in->view.count()));
    check_overlap(in->view, result->view, static_cast<char*>(result->view.data) + static_cast<size_t>(comm.rank()) * in->view.bytes());
  });
  run(comm, call, *in, *result);
  return output;
}

nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle algorithm) {
  const int64_t world = comm.world();
  Call call;
  std::optional<Array> in, result;
  nb::object output;
  prepared(comm, Collective::reduce_scatter, [&] {
    call.descriptor.collective = Collective::reduce_scatter;
    call.descriptor.op = parse_op(op);
    call.descriptor.algorithm = parse_algorithm(algorithm);
    in.emplace(x, "x");
    if (out.is_none() && (in->view.dims == 0 || in->view.shape[0] % world != 0))
      throw BadArgument("x is " + shape_of(in->view) + ": dim 0 must divide by " + std::to_string(world));
    output = out.is_none() ? empty_beside(x, in->view.shape[0] / world, in->view) : nb::borrow(out);
    result.emplace(output, "out");
    result->check_writable();
    call.descriptor.dtype = in->dtype;
    call.descriptor.count = result->view.count();
    if (result->dtype != in->dtype)
      throw BadArgument(std::string("out is ") + name(result->dtype) + ", but x is " + name(in->dtype));
    if (in->view.count() != result->view.count() * static_cast<size_t>(world))
      throw BadArgument("x has " + std::to_string(in->view.count()) + " elements, not " + std::to_string(world) + " * " + std::to_string(result->view.count()));
    check_overlap(in->view, result->view, static_cast<char*>(in->view.data) + static_cast<size_t>(comm.rank()) * result->view.bytes());
  });
  run(comm, call, *in, *result);
  return output;
}

nb::object broadcast(Communicator& comm, nb::handle x, nb::handle root, nb::handle algorithm) {
  Call call;
  std::optional<Array> in;
  prepared(comm, Collective::broadcast, [&] {
    call.descriptor.collective = Collective::broadcast;
    call.descriptor.algorithm = parse_algorithm(algorithm);
    in.emplace(x, "x");
    call.descriptor.dtype = in->dtype;
    call.descriptor.count = in->view.count();
    const long long rank = PyLong_Check(root.ptr()) ? PyLong_AsLongLong(root.ptr()) : -1;
    PyErr_Clear();
    if (rank < 0 || rank >= comm.world()) {
      const std::string given = nb::cast<std::string>(nb::repr(root));
      throw BadArgument("root " + given + " is no rank: ranks are 0 to " + std::to_string(comm.world() - 1));
    }
    call.descriptor.root = static_cast<uint32_t>(rank);
    if (rank != comm.rank()) in->check_writable();
  });
  if (static_cast<int>(call.descriptor.root) == comm.rank()) {
    // The root's array is only read, and may be read-only.
    Array source(x, "x");
    Scratch packed;
    nb::gil_scoped_release released;
    call.in = static_cast<const char*>(source.view.data);
    if (!source.view.is_contiguous()) {
      packed = scratch(source.view.bytes());
      pack(packed.get(), source.view);
      call.in = packed.get();
    }
    comm.run(call);
  } else {
    run(comm, call, *in, *in);
  }
  return nb::borrow(x);
}

void barrier(Communicator& comm) {
  nb::gil_scoped_release released;
  Call call;
  call.descriptor.collective = Collective::barrier;
  comm.run(call);
}

}  // namespace collectives
