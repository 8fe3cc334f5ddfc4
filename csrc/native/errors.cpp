// From C++ exceptions to the classes of collectives/errors.py.
#include <exception>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/failure.h"
#include "native/array.h"
#include "native/module.h"

namespace collectives {
namespace {

const char* class_name(Cause cause) {
  switch (cause) {
    case Cause::mismatched:
      return "MismatchError";
    case Cause::refused:
      return "RefusedError";
    case Cause::died:
      return "PeerDiedError";
    case Cause::timed_out:
      return "CollectiveTimeoutError";
    case Cause::aborted:
    case Cause::interrupted:
      return "AbortedError";
    case Cause::closed:
      return "ClosedError";
    case Cause::none:
      break;
  }
  return "CollectiveError";
}

// Where COLLECTIVES_DUMP asks for it. Whatever goes wrong with that must not hide the error.
void dump_flight_record() {
  try {
    nb::module_::import_("collectives.flight_record").attr("on_error")();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;  // Ctrl-C goes before the failure that it met
    error.discard_as_unraisable("collectives.flight_record.on_error");
  }
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const BadType& bad) {
    PyErr_SetString(PyExc_TypeError, bad.what());
  } catch (const Failure& failure) {
    // A signal handler's own exception (KeyboardInterrupt) is set already and says more.
    if (PyErr_Occurred() != nullptr) return;
    try {
      nb::object type = nb::module_::import_("collectives.errors").attr(class_name(failure.cause));
      const std::string_view what = failure.what();
      // A peer's words may hold anything.
      nb::object text =
          nb::steal(PyUnicode_DecodeUTF8(what.data(), static_cast<Py_ssize_t>(what.size()), "replace"));
      nb::object error = type(text, failure.collective, failure.epoch, failure.ranks);
      dump_flight_record();
      PyErr_SetObject(type.ptr(), error.ptr());
    } catch (nb::python_error& error) {
      error.restore();
    }
  }
}

}  // namespace

void bind_errors(nb::module_&) { nb::register_exception_translator(translate, nullptr); }

}  // namespace collectives
