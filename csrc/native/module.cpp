// collectives._native: the only owner of core state.
#include "native/module.h"

#include "cpu/reduce.h"

NB_MODULE(_native, m) {
  m.doc() = "Native core of collectives: shared-memory communicators and their algorithms.";
  m.attr("__version__") = COLLECTIVES_VERSION;
  m.def("instruction_set", &collectives::instruction_set,
        "The instruction set of the reduction kernels in use.");
  collectives::bind_errors(m);
  collectives::bind_communicator(m);
  collectives::bind_table(m);
}
