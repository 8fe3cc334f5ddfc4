// The flight record for Python: raw, because collectives/flight_record.py decodes what the C table gives too.
#include <nanobind/nanobind.h>

#include "cpu/communicator.h"
#include "native/module.h"

namespace collectives {
namespace {

nb::bytes flight_record(const Communicator& comm, int rank) {
  std::vector<FlightRecord> records;
  {
    nb::gil_scoped_release released;
    records = comm.flight(rank);
  }
  return nb::bytes(records.data(), records.size() * sizeof(FlightRecord));
}

template <class Name>
nb::tuple names(int count, Name name) {
  nb::list all;
  for (int i = 0; i < count; ++i) all.append(name(i));
  return nb::tuple(all);
}

nb::dict vocabulary() {
  nb::dict words;
  words["collective"] = names(kCollectiveCount, [](int i) { return name(static_cast<Collective>(i)); });
  words["op"] = names(kOpCount, [](int i) { return name(static_cast<Op>(i)); });
  words["dtype"] = names(kDTypeCount, [](int i) { return name(static_cast<DType>(i)); });
  words["algorithm"] = names(kAlgorithmCount, [](int i) { return name(static_cast<Algorithm>(i)); });
  return words;
}

}  // namespace

void bind_flight(nb::module_& m) {
  using namespace nb::literals;
  m.def("flight_record", &flight_record, "communicator"_a, "rank"_a,
        "What a rank recorded of its last calls and messages: collectives_record structs of native/table.h.");
  m.def("vocabulary", &vocabulary, "The names of collectives, ops, dtypes and algorithms, by number.");
}

}  // namespace collectives
