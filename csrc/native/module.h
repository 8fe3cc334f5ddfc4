#pragma once

#include <nanobind/nanobind.h>

namespace collectives {

namespace nb = nanobind;

void bind_communicator(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_point_to_point(nb::module_& m);  // after bind_communicator
void bind_heap(nb::module_& m);
void bind_flight(nb::module_& m);
void bind_table(nb::module_& m);

}  // namespace collectives
