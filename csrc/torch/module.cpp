// collectives._torch: the c10d backend. Loaded by collectives/torch_backend.py, after torch.
#include <torch/csrc/utils/pybind.h>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "torch/backend.h"

namespace py = pybind11;

namespace collectives::torch_adapter {
namespace {

GroupOptions::Fallback parse_fallback(const std::string& text) {
  if (text == "log") return GroupOptions::Fallback::log;
  if (text == "silent") return GroupOptions::Fallback::silent;
  if (text == "error") return GroupOptions::Fallback::error;
  throw BadInput("fallback must be 'log', 'silent' or 'error', not '" + text + "'");
}

const char* name_of(GroupOptions::Fallback fallback) {
  return fallback == GroupOptions::Fallback::log      ? "log"
         : fallback == GroupOptions::Fallback::silent ? "silent"
                                                      : "error";
}

// Groups are destroyed with and without the GIL, and some after the interpreter.
std::shared_ptr<py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](py::object* last) {
            if (Py_IsInitialized() == 0) return;
            const py::gil_scoped_acquire acquired;
            delete last;
          }};
}

// A backend as its flight record sees it: it does not keep the backend alive.
class Observer {
 public:
  explicit Observer(const c10::intrusive_ptr<Backend>& backend) : backend_(backend) {}

  bool healthy() const {
    const auto backend = backend_.lock();
    return backend && backend->healthy();
  }
  bool closed() const {
    const auto backend = backend_.lock();
    return !backend || backend->down();
  }
  py::bytes flight_record(int rank) const {
    const auto backend = backend_.lock();
    return backend ? py::bytes(backend->flight_record(rank)) : py::bytes();
  }

 private:
  c10::weak_intrusive_ptr<Backend> backend_;
};

void bind_options(py::module_& m) {
  py::class_<GroupOptions, c10::intrusive_ptr<GroupOptions>, c10d::Backend::Options>(
      m, "Options",
      "Options of a process group: pass it as init_process_group(pg_options=...).\n\n"
      "fallback: what to do where another library must make a call, which is so for sparse tensors alone: "
      "'log' (once for each reason), 'silent' or 'error' (raise ValueError).")
      .def(py::init([](const std::string& fallback) {
             auto options = c10::make_intrusive<GroupOptions>();
             options->fallback = parse_fallback(fallback);
             return options;
           }),
           py::arg("fallback") = "log")
      .def_property(
          "fallback", [](const GroupOptions& options) { return name_of(options.fallback); },
          [](GroupOptions& options, const std::string& text) { options.fallback = parse_fallback(text); })
      .def("__copy__", [](const GroupOptions& options) { return c10::make_intrusive<GroupOptions>(options); })
      .def("__deepcopy__", [](const GroupOptions& options, const py::dict&) {
        return c10::make_intrusive<GroupOptions>(options);
      });
}

void bind_backend(py::module_& m) {
  py::class_<Observer>(m, "Observer", "A backend as the flight record sees it.")
      .def_property_readonly("healthy", &Observer::healthy)
      .def_property_readonly("closed", &Observer::closed)
      .def("flight_record", &Observer::flight_record, py::arg("rank"));
  using Without = py::call_guard<py::gil_scoped_release>;
  py::class_<Backend, c10::intrusive_ptr<Backend>, c10d::Backend>(
      m, "Backend", "The c10d backend of one process group; made by torch.distributed.")
      .def(py::init<int, int, double, c10::intrusive_ptr<GroupOptions>>(), py::arg("rank"), py::arg("size"),
           py::arg("timeout"), py::arg("options"))
      .def_property_readonly("announcement",
                             [](const Backend& backend) { return py::bytes(backend.announcement()); })
      .def(
          "connect",
          [](Backend& backend, const py::bytes& announcements) {
            const std::string all = announcements;
            const py::gil_scoped_release released;
            backend.connect(all);
          },
          py::arg("announcements"))
      .def(
          "set_fallback",
          [](Backend& backend, py::object make) {
            backend.set_fallback([make = held(std::move(make))] {
              const py::gil_scoped_acquire acquired;
              return (*make)().cast<c10::intrusive_ptr<c10d::Backend>>();
            });
          },
          py::arg("make"))
      .def(
          "monitored_barrier",
          [](Backend& backend, std::chrono::milliseconds timeout, bool wait_all_ranks) {
            c10d::BarrierOptions options;
            options.timeout = timeout;
            backend.monitoredBarrier(options, wait_all_ranks);
          },
          py::arg("timeout") = c10d::kUnsetTimeout, py::arg("wait_all_ranks") = false, Without())
      .def("observer", [](const c10::intrusive_ptr<Backend>& backend) { return Observer(backend); })
      .def("_start_time_estimate", &Backend::start_time_estimate)
      .def("_end_time_estimate", &Backend::end_time_estimate);
}

}  // namespace
}  // namespace collectives::torch_adapter

PYBIND11_MODULE(_torch, m) {
  namespace adapter = collectives::torch_adapter;
  m.doc() = "The torch.distributed backend of collectives.";
  py::module_::import("torch.distributed");
  adapter::load_table();
  adapter::register_translator();
  adapter::bind_options(m);
  adapter::bind_backend(m);
  m.def("shutdown_all", &adapter::shutdown_all, py::call_guard<py::gil_scoped_release>());
}
