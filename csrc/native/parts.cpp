// The collectives that move a part of its own for each rank: gather, scatter and all_to_all.
#include <vector>

#include "native/array.h"
#include "native/collective.h"
#include "native/operands.h"

namespace collectives {
namespace {

// Rows for each rank, as a sequence of integers.
std::vector<uint64_t> parse_counts(nb::handle object, const char* role, int world) {
  const nb::object items = nb::steal(PySequence_List(object.ptr()));
  if (!items.is_valid()) {
    PyErr_Clear();
    throw BadType(std::string(role) + " must be a sequence of integers, one for each rank");
  }
  const auto list = nb::borrow<nb::list>(items);
  if (list.size() != static_cast<size_t>(world))
    throw BadArgument(std::string(role) + " has " + std::to_string(list.size()) +
                      " entries, not one for each of " + std::to_string(world) + " ranks");
  std::vector<uint64_t> counts;
  for (nb::handle item : list) {
    const Py_ssize_t count =
        PyIndex_Check(item.ptr()) ? PyNumber_AsSsize_t(item.ptr(), PyExc_OverflowError) : -1;
    PyErr_Clear();
    if (count < 0)
      throw BadArgument(std::string(role) +
                        " has an entry that is no number of rows: " + nb::cast<std::string>(nb::repr(item)));
    counts.push_back(static_cast<uint64_t>(count));
  }
  return counts;
}

// The sum; throws BadArgument where it is not the number of rows that `array` has.
void check_rows(const std::vector<uint64_t>& counts, const char* role, uint64_t rows, const char* array) {
  uint64_t total = 0;
  bool fits = true;
  for (const uint64_t count : counts) fits = !__builtin_add_overflow(total, count, &total) && fits;
  if (!fits || total != rows)
    throw BadArgument(std::string(role) + " add up to " + (fits ? std::to_string(total) : "too many") +
                      " rows, but " + array + " has " + std::to_string(rows));
}

// all_to_all whose parts have counts of their own: fills `counts` with elements. Returns the output.
nb::object prepare_counted(Communicator& comm, Call& call, Operands& operands, nb::handle x, nb::handle out,
                           nb::handle send_counts, nb::handle recv_counts,
                           std::vector<uint64_t> (&counts)[2]) {
  if (send_counts.is_none() || recv_counts.is_none())
    throw BadArgument("send_counts and recv_counts go together: pass both, or neither for equal parts");
  const Array& in = *operands.in;
  if (in.view.dims == 0) throw BadArgument("x has no dimension: counts are rows of dimension 0");
  counts[0] = parse_counts(send_counts, "send_counts", comm.world());
  counts[1] = parse_counts(recv_counts, "recv_counts", comm.world());
  check_rows(counts[0], "send_counts", static_cast<uint64_t>(in.view.shape[0]), "x");
  uint64_t row = 1;
  for (int i = 1; i < in.view.dims; ++i) row *= static_cast<uint64_t>(in.view.shape[i]);
  uint64_t rows = 0;
  for (const uint64_t count : counts[1])
    if (__builtin_add_overflow(rows, count, &rows)) throw BadArgument("recv_counts add up to too many rows");
  size_t elements;
  if (__builtin_mul_overflow(rows, row, &elements) || elements > PTRDIFF_MAX / in.view.item)
    throw BadArgument("recv_counts add up to more elements than any memory holds");
  nb::object output = out.is_none() ? empty_beside(x, static_cast<int64_t>(rows), in.view) : nb::borrow(out);
  const Array& result = operands.out.emplace(output, "out");
  check_output(in, result);
  if (result.view.count() != elements)
    throw BadArgument("out has " + std::to_string(result.view.count()) +
                      " elements, but recv_counts add up to " + std::to_string(elements));
  check_overlap(in.view, result.view, false);
  for (std::vector<uint64_t>& side : counts)
    for (uint64_t& count : side) count *= row;
  call.send_counts = counts[0].data();
  call.recv_counts = counts[1].data();
  return output;
}

// all_to_all of equal parts. Returns the output.
nb::object prepare_equal(Communicator& comm, Call& call, Operands& operands, nb::handle x, nb::handle out) {
  const Array& in = *operands.in;
  const auto world = static_cast<size_t>(comm.world());
  if (in.view.count() % world != 0 ||
      (out.is_none() && (in.view.dims == 0 || in.view.shape[0] % comm.world() != 0)))
    throw BadArgument("x is " + shape_of(in.view) + ": dim 0 must divide by " + std::to_string(world) +
                      ", or pass send_counts and recv_counts");
  call.descriptor.count = in.view.count() / world;
  if (out.is(x)) {
    in.check_writable();
    return nb::borrow(x);
  }
  nb::object output = out.is_none() ? empty_beside(x, in.view.shape[0], in.view) : nb::borrow(out);
  const Array& result = operands.out.emplace(output, "out");
  check_output(in, result);
  if (result.view.count() != in.view.count())
    throw BadArgument("out is " + shape_of(result.view) + ", x " + shape_of(in.view));
  check_overlap(in.view, result.view, in.view.data == result.view.data);
  return output;
}

}  // namespace

nb::object gather(Communicator& comm, nb::handle x, nb::handle root, nb::handle out, nb::handle algorithm,
                  nb::handle timeout) {
  Call call;
  Operands operands;
  nb::object output = nb::none();
  prepared(comm, Collective::gather, [&] {
    call.descriptor.collective = Collective::gather;
    parse_options(call, algorithm, timeout);
    call.descriptor.root = parse_root(root, comm.world());
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    const bool is_root = call.descriptor.root == static_cast<uint32_t>(comm.rank());
    if (is_root) {
      output = out.is_none()
                   ? empty_beside(x, (in.view.dims == 0 ? 1 : in.view.shape[0]) * comm.world(), in.view)
                   : nb::borrow(out);
      const Array& result = operands.out.emplace(output, "out");
      check_output(in, result);
      check_parts(result.view.count(), "out", in.view.count(), static_cast<size_t>(comm.world()));
      check_overlap(in.view, result.view, in.view.data == part_of(result, in.view, comm.rank()));
    }
    operands.stage(call, is_root);
  });
  operands.run(comm, call);
  return output;
}

nb::object scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle root, nb::handle algorithm,
                   nb::handle timeout) {
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, Collective::scatter, [&] {
    call.descriptor.collective = Collective::scatter;
    parse_options(call, algorithm, timeout);
    call.descriptor.root = parse_root(root, comm.world());
    if (call.descriptor.root == static_cast<uint32_t>(comm.rank())) {
      const Array& in = operands.in.emplace(x, "x");
      if (out.is_none() && (in.view.dims == 0 || in.view.shape[0] % comm.world() != 0))
        throw BadArgument("x is " + shape_of(in.view) + ": dim 0 must divide by " +
                          std::to_string(comm.world()));
      output = out.is_none() ? empty_beside(x, in.view.shape[0] / comm.world(), in.view) : nb::borrow(out);
      const Array& result = operands.out.emplace(output, "out");
      check_output(in, result);
      check_parts(in.view.count(), "x", result.view.count(), static_cast<size_t>(comm.world()));
      check_overlap(in.view, result.view, result.view.data == part_of(in, result.view, comm.rank()));
    } else if (out.is_none()) {
      throw BadArgument(
          "a rank that is not the root must pass out: only the root's x tells the size of a part");
    } else {
      output = nb::borrow(out);
      operands.out.emplace(output, "out").check_writable();
    }
    call.descriptor.dtype = operands.out->dtype;
    call.descriptor.count = operands.out->view.count();
    operands.stage(call);
  });
  operands.run(comm, call);
  return output;
}

nb::object all_to_all(Communicator& comm, nb::handle x, nb::handle out, nb::handle send_counts,
                      nb::handle recv_counts, nb::handle algorithm, nb::handle timeout) {
  const bool counted = !send_counts.is_none() || !recv_counts.is_none();
  const Collective collective = counted ? Collective::all_to_all_v : Collective::all_to_all;
  std::vector<uint64_t> counts[2];
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, collective, [&] {
    call.descriptor.collective = collective;
    parse_options(call, algorithm, timeout);
    call.descriptor.dtype = operands.in.emplace(x, "x").dtype;
    output = counted ? prepare_counted(comm, call, operands, x, out, send_counts, recv_counts, counts)
                     : prepare_equal(comm, call, operands, x, out);
    operands.stage(call);
  });
  operands.run(comm, call);
  return output;
}

}  // namespace collectives
