// The collectives as Python calls them: collective.cpp, and parts.cpp for those with a part for each rank.
#pragma once

#include <nanobind/nanobind.h>

#include "cpu/communicator.h"

namespace collectives {

namespace nb = nanobind;

// Each returns the output object (None on a rank that gets none). Python errors: ValueError and TypeError for
// bad arguments (the peers are told), Failure's translations for the rest. What may be None, and what then
// happens, is in Communicator's docstrings.
nb::object all_reduce(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle factor,
                      nb::handle algorithm, nb::handle timeout);
nb::object reduce(Communicator& comm, nb::handle x, nb::handle root, nb::handle op, nb::handle out,
                  nb::handle factor, nb::handle algorithm, nb::handle timeout);
nb::object reduce_scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle op, nb::handle factor,
                          nb::handle algorithm, nb::handle timeout);
nb::object all_gather(Communicator& comm, nb::handle x, nb::handle out, nb::handle algorithm,
                      nb::handle timeout);
nb::object broadcast(Communicator& comm, nb::handle x, nb::handle root, nb::handle algorithm,
                     nb::handle timeout);
nb::object gather(Communicator& comm, nb::handle x, nb::handle root, nb::handle out, nb::handle algorithm,
                  nb::handle timeout);
nb::object scatter(Communicator& comm, nb::handle x, nb::handle out, nb::handle root, nb::handle algorithm,
                   nb::handle timeout);
nb::object all_to_all(Communicator& comm, nb::handle x, nb::handle out, nb::handle send_counts,
                      nb::handle recv_counts, nb::handle algorithm, nb::handle timeout);
void barrier(Communicator& comm, nb::handle timeout);

}  // namespace collectives
