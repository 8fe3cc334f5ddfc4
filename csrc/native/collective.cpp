#include "native/collective.h"

#include "native/array.h"
#include "native/operands.h"

namespace collectives {

nb::object all_reduce(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle factor,
                      nb::handle algorithm, nb::handle timeout) {
  const bool in_place = out.is_none() || out.is(x);
  Call call;
  Operands operands;
  prepared(comm, Collective::all_reduce, [&] {
    call.descriptor.collective = Collective::all_reduce;
    parse_reduction(call, op, factor);
    parse_options(call, algorithm, timeout);
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    if (in_place)
      in.check_writable();
    else
      operands.take_like_input(out);
    operands.stage(call);
  });
  operands.run(comm, call);
  return nb::borrow(in_place ? x : out);
}

nb::object reduce(Communicator& comm, nb::handle x, nb::handle root, nb::handle op, nb::handle out,
                  nb::handle factor, nb::handle algorithm, nb::handle timeout) {
  const bool in_place = out.is_none() || out.is(x);
  bool is_root = false;
  Call call;
  Operands operands;
  prepared(comm, Collective::reduce, [&] {
    call.descriptor.collective = Collective::reduce;
    parse_reduction(call, op, factor);
    parse_options(call, algorithm, timeout);
    call.descriptor.root = parse_root(root, comm.world());
    is_root = call.descriptor.root == static_cast<uint32_t>(comm.rank());
    const Array& in = operands.in.emplace(x, "x");
    call.descriptor.dtype = in.dtype;
    call.descriptor.count = in.view.count();
    if (is_root && in_place)
      in.check_writable();
    else if (is_root)
      operands.take_like_input(out);
    operands.stage(call, is_root);
  });
  operands.run(comm, call);
  return is_root ? nb::borrow(in_place ? x : out) : nb::none();
}

nb::object all_gather(Communicator& comm, nb::handle x, nb::handle out, nb::handle algorithm,
                      nb::handle timeout) {
  const auto world = static_cast<size_t>(comm.world());
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, Collective::all_gather, [&] {
    call.descriptor.collective = Collective::all_gather;
    parse_options(call, algorithm, timeout);
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

nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle factor,
                          nb::handle algorithm, nb::handle timeout) {
  const auto world = static_cast<size_t>(comm.world());
  Call call;
  Operands operands;
  nb::object output;
  prepared(comm, Collective::reduce_scatter, [&] {
    call.descriptor.collective = Collective::reduce_scatter;
    parse_reduction(call, op, factor);
    parse_options(call, algorithm, timeout);
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

nb::object broadcast(Communicator& comm, nb::handle x, nb::handle root, nb::handle algorithm,
                     nb::handle timeout) {
  Call call;
  Operands operands;
  prepared(comm, Collective::broadcast, [&] {
    call.descriptor.collective = Collective::broadcast;
    parse_options(call, algorithm, timeout);
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

void barrier(Communicator& comm, nb::handle timeout) {
  Call call;
  call.descriptor.collective = Collective::barrier;
  prepared(comm, Collective::barrier, [&] { parse_options(call, nb::none(), timeout); });
  nb::gil_scoped_release released;
  comm.run(call);
}

}  // namespace collectives
