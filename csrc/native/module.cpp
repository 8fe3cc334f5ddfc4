// collectives._native: the only owner of core state.
#include "native/module.h"

#include "cpu/reduce.h"

NB_MODULE(_native, m) {
  // A thread that still waits in a call when the interpreter ends holds references; that is no leak of ours.
  nanobind::set_leak_warnings(false);
  m.doc() = "Native core of collectives: shared-memory communicators and their algorithms.";
  m.attr("__version__") = COLLECTIVES_VERSION;
  m.def("instruction_set", &collectives::instruction_set,
        "The instruction set of the reduction kernels in use.");
  collectives::bind_errors(m);
  collectives::bind_communicator(m);
  collectives::bind_point_to_point(m);
  collectives::bind_heap(m);
  collectives::bind_flight(m);
  collectives::bind_table(m);
}
