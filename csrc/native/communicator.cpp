#include "cpu/communicator.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "native/array.h"
#include "native/collective.h"
#include "native/module.h"

namespace collectives {
namespace {

unsigned long main_thread = 0;

// Python's signal handlers run in the main thread, between bytecodes or when asked; a long wait asks. No
// other thread may ask for the GIL here: when the interpreter ends it would be ended in the middle of a C++
// function.
bool signal_handler_raised() {
  if (PyThread_get_thread_ident() != main_thread) return false;
  nb::gil_scoped_acquire acquired;
  return PyErr_CheckSignals() != 0;
}

Descriptor describe_bytes(const Communicator& comm, const std::string& collective, uint64_t nbytes,
                          const std::string& dtype) {
  Descriptor d;
  if (!parse(collective, d.collective) || d.collective >= Collective::delegated)
    throw BadArgument("unknown collective '" + collective +
                      "': all_reduce, reduce, all_gather, gather, reduce_scatter, scatter, all_to_all, "
                      "all_to_all_v, broadcast or barrier");
  if (!parse(dtype, d.dtype)) throw BadArgument("unknown dtype '" + dtype + "'");
  // The bytes of a call are those of its larger side.
  d.count = nbytes / size_of(d.dtype) / (sharded(d.collective) ? static_cast<uint64_t>(comm.world()) : 1);
  if (d.collective == Collective::all_to_all_v) d.count = 0;
  return d;
}

nb::dict explain(const Communicator& comm, const std::string& collective, uint64_t nbytes,
                 const std::string& dtype) {
  const Descriptor d = describe_bytes(comm, collective, nbytes, dtype);
  Plan plan;
  {
    nb::gil_scoped_release released;
    plan = comm.explain(d);
  }
  nb::dict result;
  result["algorithm"] = name(plan.algorithm);
  result["chunk_bytes"] = plan.chunk * size_of(d.dtype);
  result["chunks"] = plan.chunks;
  result["reason"] = plan.reason;
  return result;
}

nb::object receipt(const Communicator& comm) {
  std::optional<Receipt> last;
  {
    nb::gil_scoped_release released;
    last = comm.last_receipt();
  }
  if (!last) return nb::none();
  const Descriptor& d = last->descriptor;
  nb::dict result;
  result["collective"] = name(d.collective);
  result["epoch"] = last->epoch;
  result["algorithm"] = name(d.algorithm);
  result["op"] = reduces(d.collective) ? nb::object(nb::str(name(d.op))) : nb::object(nb::none());
  result["dtype"] =
      d.collective == Collective::barrier ? nb::object(nb::none()) : nb::object(nb::str(name(d.dtype)));
  result["count"] = d.count;
  result["nbytes"] = last->bytes;
  result["chunks"] = last->chunks;
  result["staged_bytes"] = last->staged_bytes;
  return result;
}

nb::bytes announcement(const Communicator& comm) {
  return nb::bytes(&comm.announcement(), sizeof(Announcement));
}

void connect(Communicator& comm, const std::vector<nb::bytes>& blobs) {
  std::vector<Announcement> all;
  for (const nb::bytes& blob : blobs) {
    if (blob.size() != sizeof(Announcement))
      throw BadArgument("a rank announced itself in another version's words");
    std::memcpy(&all.emplace_back(), blob.data(), sizeof(Announcement));
  }
  nb::gil_scoped_release released;
  comm.connect(all);
}

}  // namespace

void bind_communicator(nb::module_& m) {
  using namespace nb::literals;
  main_thread =
      nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  nb::class_<Communicator>(m, "Communicator", "See collectives.Communicator.")
      .def(
          "__init__",
          [](Communicator* at, int rank, int world, double timeout, size_t cache_bytes) {
            new (at) Communicator(rank, world, timeout, signal_handler_raised, cache_bytes);
          },
          "rank"_a, "world_size"_a, "timeout"_a, "cache_bytes"_a = 0)
      .def_prop_ro("announcement", &announcement, "What the other ranks must know to connect; see connect().")
      .def("connect", &connect, "announcements"_a,
           "Connects with the ranks that announced themselves, in rank order.")
      .def_prop_ro("rank", &Communicator::rank, "This process's rank, 0 to world_size - 1.")
      .def_prop_ro("world_size", &Communicator::world, "The number of ranks.")
      .def_prop_ro("timeout", &Communicator::timeout,
                   "Seconds that a call waits for a late rank where it has no timeout of its own.")
      .def("set_timeout", &Communicator::set_timeout, "seconds"_a,
           "Sets the timeout of the calls that begin afterwards, on this rank. Raises ValueError.")
      .def_prop_ro("epoch", &Communicator::epoch, "How many calls have begun on this rank.")
      .def_prop_ro("healthy", &Communicator::healthy,
                   "False after a failure that the communicator does not survive, and once closed.")
      .def_prop_ro("closed", &Communicator::closed, "True once close() was called.")
      .def(
          "all_reduce", &all_reduce, "x"_a.none(), "out"_a = nb::none(), "op"_a.none() = "sum", nb::kw_only(),
          "factor"_a = nb::none(), "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
          "Reduces x over all ranks, element by element; every rank gets the result.\n\n"
          "x: array of any shape. out: array of the same shape and dtype, or None to reduce x in place.\n"
          "op: sum, avg, min, max, product; band, bor, bxor on integers and bool; premul_sum on floating "
          "types, "
          "which\n"
          "multiplies the x of each rank by the factor that this rank passes before it adds. Complex x: sum, "
          "avg "
          "and\n"
          "premul_sum. The result is that of adding in rank order with one rounding at the end, whatever the "
          "size, the\n"
          "algorithm and the world.\n"
          "factor: a number, for premul_sum alone. algorithm: None, or inline, one_shot, two_shot, symmetric "
          "to force "
          "one.\n"
          "Returns out, or x. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("reduce", &reduce, "x"_a.none(), "root"_a.none() = 0, "op"_a.none() = "sum", "out"_a = nb::none(),
           nb::kw_only(), "factor"_a = nb::none(), "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Reduces x over all ranks as all_reduce does; rank root alone gets the result.\n\n"
           "x: array of any shape; only the root's is written, and only where it passes no out. out: on the "
           "root, "
           "array of\n"
           "the same shape and dtype, or None to reduce x in place; on the other ranks it is not looked at.\n"
           "op, factor and algorithm as in all_reduce.\n"
           "Returns out, or x, on the root and None elsewhere. Raises ValueError or TypeError for bad "
           "arguments, "
           "CollectiveError.")
      .def("all_gather", &all_gather, "x"_a.none(), "out"_a = nb::none(), nb::kw_only(),
           "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Concatenates every rank's x along dimension 0; every rank gets the result.\n\n"
           "x: array of shape (n, ...), equal on all ranks. out: array of world_size times as many elements, "
           "filled in\n"
           "row-major order, or None for a new one of shape (world_size * n, ...). In place where x is this "
           "rank's part\n"
           "of out. algorithm: None, inline, one_shot, direct or symmetric.\n"
           "Returns out. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("gather", &gather, "x"_a.none(), "root"_a.none() = 0, "out"_a = nb::none(), nb::kw_only(),
           "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Concatenates every rank's x along dimension 0 as all_gather does; rank root alone gets the "
           "result.\n\n"
           "x: array of shape (n, ...), equal on all ranks. out: on the root, array of world_size times as "
           "many "
           "elements, or\n"
           "None for a new one of shape (world_size * n, ...); on the other ranks it is not looked at. In "
           "place "
           "where the\n"
           "root's x is its part of out. algorithm: None, inline, one_shot or direct.\n"
           "Returns out on the root and None elsewhere. Raises ValueError or TypeError for bad arguments, "
           "CollectiveError.")
      .def("reduce_scatter", &reduce_scatter, "x"_a.none(), "out"_a = nb::none(), "op"_a.none() = "sum",
           nb::kw_only(), "factor"_a = nb::none(), "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Reduces x over all ranks; rank r gets the r-th of world_size equal parts of the result.\n\n"
           "x: array of shape (world_size * n, ...). out: array of an equal part of the elements, or None "
           "for a new one of\n"
           "shape (n, ...). In place where out is this rank's part of x. op and factor as in all_reduce.\n"
           "algorithm: None, inline, two_shot or symmetric.\n"
           "Returns out. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("scatter", &scatter, "x"_a.none(), "out"_a = nb::none(), "root"_a.none() = 0, nb::kw_only(),
           "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Cuts rank root's x into world_size equal parts along dimension 0; rank r gets the r-th.\n\n"
           "x: on the root, array of shape (world_size * n, ...), which is only read; on the other ranks it "
           "is not "
           "looked at\n"
           "and may be None. out: array of an equal part of the elements; the root may pass None for a new "
           "one of "
           "shape\n"
           "(n, ...), the other ranks must pass one, since they cannot know n. In place where the root's out "
           "is "
           "its part\n"
           "of x. algorithm: None, inline, one_shot or direct.\n"
           "Returns out. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("all_to_all", &all_to_all, "x"_a.none(), "out"_a = nb::none(), nb::kw_only(),
           "send_counts"_a = nb::none(), "recv_counts"_a = nb::none(), "algorithm"_a = nb::none(),
           "timeout"_a = nb::none(),
           "Sends the r-th part of x to rank r; out holds the parts from all ranks in rank order.\n\n"
           "Without counts the parts are equal: x is an array of shape (world_size * n, ...), out one of as "
           "many "
           "elements, or\n"
           "None for a new one of the shape of x; in place where out is x. With counts (both are needed) "
           "part r "
           "has\n"
           "send_counts[r] rows of dimension 0, of which x has sum(send_counts), and the part from rank r "
           "has\n"
           "recv_counts[r]; out has sum(recv_counts) rows and lies apart from x, or is None for a new array. "
           "Where a rank\n"
           "sends another number of elements than its receiver expects, MismatchError names both on all "
           "ranks, "
           "and the\n"
           "communicator stays usable. algorithm: None, one_shot, or without counts inline or direct.\n"
           "Returns out. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("broadcast", &broadcast, "x"_a.none(), "root"_a.none() = 0, nb::kw_only(),
           "algorithm"_a = nb::none(), "timeout"_a = nb::none(),
           "Copies rank root's x into every other rank's x, which has the same size and dtype.\n\n"
           "algorithm: None, inline, one_shot, direct or symmetric.\n"
           "Returns x. Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("barrier", &barrier, nb::kw_only(), "timeout"_a = nb::none(),
           "Returns once every rank has called it. Raises CollectiveError.")
      .def("abort", &Communicator::abort,
           "Breaks the communicator: every waiting or later call on any rank raises AbortedError. From any "
           "thread.")
      .def("close", &Communicator::close, nb::call_guard<nb::gil_scoped_release>(),
           "Leaves. Does not wait for the peers; one that still waits for this rank gets ClosedError. "
           "Idempotent.")
      .def("_explain", &explain, "collective"_a, "nbytes"_a, "dtype"_a)
      .def("_last_receipt", &receipt);
  m.def(
      "handle", [](Communicator& comm) { return reinterpret_cast<uintptr_t>(&comm); }, "communicator"_a,
      "The communicator as the C table knows it: an address, valid while the object lives.");
}

}  // namespace collectives
