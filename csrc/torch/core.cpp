#include "torch/core.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace py = pybind11;

namespace collectives::torch_adapter {
namespace {

const collectives_table* loaded = nullptr;
unsigned long main_thread = 0;
thread_local std::exception_ptr interruption;  // kept by interrupted()
thread_local std::exception_ptr thrown;        // that was handed on as the outcome of a call
std::atomic<uint32_t> forks{0};

const char* class_name(int status) {
  switch (status) {
    case COLLECTIVES_MISMATCHED:
      return "MismatchError";
    case COLLECTIVES_REFUSED:
      return "RefusedError";
    case COLLECTIVES_DIED:
      return "PeerDiedError";
    case COLLECTIVES_TIMED_OUT:
      return "CollectiveTimeoutError";
    case COLLECTIVES_ABORTED:
    case COLLECTIVES_INTERRUPTED:
      return "AbortedError";
    case COLLECTIVES_CLOSED:
      return "ClosedError";
    default:
      return "CollectiveError";
  }
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Failure& failure) {
    try {
      py::module_::import("collectives.flight_record").attr("on_error")();
    } catch (py::error_already_set& error) {
      // Ctrl-C goes before the failure that it met.
      if (!error.matches(PyExc_Exception)) return error.restore();
      error.discard_as_unraisable("collectives.flight_record.on_error");
    }
    try {
      const py::object type = py::module_::import("collectives.errors").attr(class_name(failure.status));
      const std::string what = failure.what_without_backtrace();
      // A peer's words may hold anything.
      const auto text = py::reinterpret_steal<py::object>(
          PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
      py::list ranks;
      for (int rank : failure.ranks) ranks.append(rank);
      const py::object error = type(text, failure.collective, failure.epoch, ranks);
      PyErr_SetObject(type.ptr(), error.ptr());
    } catch (py::error_already_set& error) {
      error.restore();
    }
  } catch (const BadInput& bad) {
    PyErr_SetString(PyExc_ValueError, bad.what_without_backtrace());
  }
}

}  // namespace

Failure::Failure(int status, const std::string& message, std::string collective, uint64_t epoch,
                 std::vector<int> ranks)
    : c10::DistBackendError(c10::SourceLocation{"", "", 0}, message),
      status(status),
      collective(std::move(collective)),
      epoch(epoch),
      ranks(std::move(ranks)) {}

BadInput::BadInput(const std::string& message) : c10::ValueError(c10::SourceLocation{"", "", 0}, message) {}

void load_table() {
  const py::object capsule = py::module_::import("collectives._native").attr("table")();
  loaded = static_cast<const collectives_table*>(PyCapsule_GetPointer(capsule.ptr(), COLLECTIVES_TABLE_NAME));
  if (loaded == nullptr) throw py::error_already_set();
  if (loaded->version < COLLECTIVES_TABLE_VERSION || loaded->size < sizeof(collectives_table))
    throw std::runtime_error(
        "collectives._torch is newer than collectives._native: install both from one build");
  if (const int failed = pthread_atfork(nullptr, nullptr, [] { ++forks; }); failed != 0)
    throw std::system_error(failed, std::generic_category(), "pthread_atfork");
  main_thread = py::module_::import("threading").attr("main_thread")().attr("ident").cast<unsigned long>();
}

const collectives_table& table() { return *loaded; }

std::exception_ptr exception_of(int status, Collective collective) {
  if (status == COLLECTIVES_OK) return nullptr;
  if (status == COLLECTIVES_INTERRUPTED && interruption) return thrown = std::exchange(interruption, nullptr);
  const char* message = "";
  uint64_t epoch = 0;
  std::vector<int> ranks(16);
  const size_t found = table().last_error(&message, &epoch, ranks.data(), ranks.size());
  if (found > ranks.size()) {
    ranks.resize(found);
    table().last_error(&message, &epoch, ranks.data(), ranks.size());
  }
  ranks.resize(found);
  if (status == COLLECTIVES_BAD_ARGUMENT) return std::make_exception_ptr(BadInput(message));
  return std::make_exception_ptr(Failure(
      status, message, table().collective_name(static_cast<uint8_t>(collective)), epoch, std::move(ranks)));
}

void check(int status, Collective collective) {
  if (status != COLLECTIVES_OK) std::rethrow_exception(exception_of(status, collective));
}

int interrupted(void*) {
  // Python runs signal handlers in its main thread alone. No other thread may ask for the GIL here: when the
  // interpreter ends it would be ended in the middle of a C++ function.
  if (static_cast<unsigned long>(pthread_self()) != main_thread || Py_IsInitialized() == 0) return 0;
  const py::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() == 0) return 0;
  try {
    throw py::error_already_set();
  } catch (...) {
    interruption = std::current_exception();
  }
  return 1;
}

void throw_interruption() { std::rethrow_exception(std::exchange(interruption, nullptr)); }

std::exception_ptr take_interruption() { return std::exchange(thrown, nullptr); }

uint32_t generation() { return forks.load(std::memory_order_relaxed); }

void register_translator() { py::register_exception_translator(translate); }

}  // namespace collectives::torch_adapter
