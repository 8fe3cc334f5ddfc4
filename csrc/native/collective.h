// From Python arguments to a Call: checks them, stages what is not contiguous, and tells the peers of a
// refusal.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/communicator.h"

namespace collectives {

namespace nb = nanobind;

// Each returns the output object. Python errors: ValueError and TypeError for bad arguments (the peers are
// told), Failure's translations for the rest. `out` may be None, see Communicator's docstrings.
nb::object all_reduce(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle algorithm);
nb::object all_gather(Communicator& comm, nb::handle x, nb::handle out, nb::handle algorithm);
nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle op,
                          nb::handle algorithm);
nb::object broadcast(Communicator& comm, nb::handle x, nb::handle root, nb::handle algorithm);
void barrier(Communicator& comm);

}  // namespace collectives
