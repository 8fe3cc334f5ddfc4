// Communicator.send, recv, isend and irecv.
#include "cpu/point_to_point.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cpu/communicator.h"
#include "native/array.h"
#include "native/module.h"

namespace collectives {
namespace {

long long integer(nb::handle object, const char* role) {
  if (!PyIndex_Check(object.ptr())) throw BadType(std::string(role) + " must be an integer");
  const nb::object index = nb::steal(PyNumber_Index(object.ptr()));
  const long long value = index.is_valid() ? PyLong_AsLongLong(index.ptr()) : -1;
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    throw BadArgument(std::string(role) + " " + nb::cast<std::string>(nb::repr(object)) + " is out of range");
  }
  return value;
}

int parse_rank(nb::handle object, const char* role, int world) {
  const long long rank = integer(object, role);
  if (rank < 0 || rank >= world)
    throw BadArgument(std::string(role) + " " + std::to_string(rank) + " is no rank: 0 to " +
                      std::to_string(world - 1));
  return static_cast<int>(rank);
}

uint32_t parse_tag(nb::handle object) {
  const long long tag = integer(object, "tag");
  if (tag < 0 || tag > std::numeric_limits<uint32_t>::max())
    throw BadArgument("tag " + std::to_string(tag) + " is out of range: 0 to 4294967295");
  return static_cast<uint32_t>(tag);
}

double parse_timeout(const std::optional<double>& seconds, double otherwise) {
  if (!seconds) return otherwise;
  if (!(*seconds > 0)) throw BadArgument("timeout must be a positive number of seconds, or None");
  return *seconds;
}

// The array of one message, and a packed image of one that is not contiguous. A received image goes into the
// array in whichever thread ends the request; that needs no GIL.
class Operand {
 public:
  Operand(nb::handle x, bool sends) : array_(x, "x"), owner_(nb::borrow(x)) {
    if (!sends) array_.check_writable();
    const Strided& view = array_.view;
    if (view.is_contiguous()) return;
    packed_.reset(static_cast<char*>(std::malloc(std::max<size_t>(view.bytes(), 1))));
    if (!packed_) throw std::bad_alloc();
    if (sends) pack(packed_.get(), view);
  }

  Message message(int peer, uint32_t tag, double timeout) const {
    return {
        packed_ ? packed_.get() : array_.view.data, array_.view.count(), array_.dtype, peer, tag, timeout};
  }
  void received() {
    if (packed_) unpack(array_.view, packed_.get());
  }
  static void done(void* self, const Failure* failure) {
    if (failure == nullptr) static_cast<Operand*>(self)->received();
  }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  Array array_;
  nb::object owner_;
  std::unique_ptr<char, Free> packed_;
};

// What Python holds of a request, with its array and its communicator.
class PyRequest {
 public:
  struct Content {
    std::unique_ptr<Operand> operand;
    std::shared_ptr<PointToPoint> messages;
    std::shared_ptr<Request> request;
  };

  explicit PyRequest(Content content) : content_(std::move(content)) { sweep(); }
  PyRequest(PyRequest&&) = default;
  ~PyRequest() {
    // The transfer goes on, and the memory with it. Arrays can be let go of only where the GIL is held: here,
    // and at later requests.
    if (content_.request && !done()) abandoned().push_back(std::move(content_));
  }

  bool done() const { return content_.request->finished(); }
  void wait(const std::optional<double>& timeout) {
    const double seconds = parse_timeout(timeout, 0);
    nb::gil_scoped_release released;
    content_.messages->wait(content_.request, seconds);
  }
  std::optional<int> source() const {
    const int rank = content_.request->source();
    return rank == kAnySource ? std::nullopt : std::optional(rank);
  }

 private:
  static std::vector<Content>& abandoned() {
    static auto* all = new std::vector<Content>;  // Python may be gone before static destructors run
    return *all;
  }
  static void sweep() {
    // Freeing an array may run any code, also such that comes back here.
    std::vector<Content> finished;
    auto& all = abandoned();
    for (size_t i = 0; i < all.size();) {
      if (!all[i].request->finished()) {
        ++i;
        continue;
      }
      finished.push_back(std::move(all[i]));
      all[i] = std::move(all.back());
      all.pop_back();
    }
  }

  Content content_;
};

void send(Communicator& comm, nb::handle x, nb::handle dest, nb::handle tag,
          const std::optional<double>& timeout) {
  const Operand operand(x, true);
  const Message message = operand.message(parse_rank(dest, "dest", comm.world()), parse_tag(tag),
                                          parse_timeout(timeout, comm.timeout()));
  nb::gil_scoped_release released;
  comm.messages(Collective::send).send(message);
}

int source_rank(nb::handle source, int world) {
  return source.is_none() ? kAnySource : parse_rank(source, "source", world);
}

int recv(Communicator& comm, nb::handle x, nb::handle source, nb::handle tag,
         const std::optional<double>& timeout) {
  Operand operand(x, false);
  const Message message = operand.message(source_rank(source, comm.world()), parse_tag(tag),
                                          parse_timeout(timeout, comm.timeout()));
  nb::gil_scoped_release released;
  const int sender = comm.messages(Collective::recv).recv(message);
  operand.received();
  return sender;
}

PyRequest isend(Communicator& comm, nb::handle x, nb::handle dest, nb::handle tag,
                const std::optional<double>& timeout) {
  PointToPoint& messages = comm.messages(Collective::send);
  auto operand = std::make_unique<Operand>(x, true);
  const Message message = operand->message(parse_rank(dest, "dest", comm.world()), parse_tag(tag),
                                           parse_timeout(timeout, comm.timeout()));
  std::shared_ptr<Request> request;
  {
    nb::gil_scoped_release released;
    request = messages.post_send(message);
  }
  return PyRequest({std::move(operand), messages.shared_from_this(), std::move(request)});
}

PyRequest irecv(Communicator& comm, nb::handle x, nb::handle source, nb::handle tag,
                const std::optional<double>& timeout) {
  PointToPoint& messages = comm.messages(Collective::recv);
  auto operand = std::make_unique<Operand>(x, false);
  const Message message = operand->message(source_rank(source, comm.world()), parse_tag(tag),
                                           parse_timeout(timeout, comm.timeout()));
  std::shared_ptr<Request> request;
  {
    nb::gil_scoped_release released;
    request = messages.post_recv(message, Operand::done, operand.get());
  }
  return PyRequest({std::move(operand), messages.shared_from_this(), std::move(request)});
}

}  // namespace

void bind_point_to_point(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyRequest>(m, "Request",
                        "A send or receive that goes on by itself; made by Communicator.isend and irecv.\n\n"
                        "It keeps the array alive, also when the request itself is dropped.")
      .def("wait", &PyRequest::wait, "timeout"_a = nb::none(),
           "Returns once the message is sent or received: the array may then be used again.\n\n"
           "timeout: seconds, or None for as long as the message's own timeout allows.\n"
           "Raises what the message failed with, every time it is asked. Where timeout is over it raises "
           "CollectiveTimeoutError,\n"
           "and the request goes on: wait again.")
      .def_prop_ro("done", &PyRequest::done, "True once wait() would return, or raise, at once.")
      .def_prop_ro("source", &PyRequest::source,
                   "The rank that sent the message, once it is received; None before, and for a send.");
  auto type = nb::borrow<nb::class_<Communicator>>(m.attr("Communicator"));
  type.def(
          "send", &send, "x"_a.none(), "dest"_a.none(), "tag"_a.none() = 0, "timeout"_a = nb::none(),
          "Sends x to rank dest, which receives it with the same tag.\n\n"
          "x: array of any shape and strides. dest: a rank, this one too. tag: 0 to 2**32 - 1.\n"
          "timeout: seconds without any progress after which it fails; None takes the communicator's.\n"
          "Returns once the message is buffered or taken, so a large one needs its receiver. Messages to one "
          "rank with one\n"
          "tag arrive in order. Takes no turns with collectives.\n"
          "Raises ValueError or TypeError for bad arguments, CollectiveError.")
      .def("recv", &recv, "x"_a.none(), "source"_a = nb::none(), "tag"_a.none() = 0, "timeout"_a = nb::none(),
           "Receives into x the next message with this tag from rank source, or from any rank.\n\n"
           "x: writable array of the message's dtype and number of elements, of any shape and strides. "
           "source: a rank, or None\n"
           "for the first message with this tag from whichever rank. timeout: as of send.\n"
           "Returns the sender's rank. Raises MismatchError where dtype or number of elements differ (the "
           "message is gone, the\n"
           "communicator usable); ValueError or TypeError for bad arguments, CollectiveError.")
      .def("isend", &isend, "x"_a.none(), "dest"_a.none(), "tag"_a.none() = 0, "timeout"_a = nb::none(),
           "send() that does not wait: x must not change until the returned Request is done.\n\n"
           "It goes on while the program does other things, collectives included. Raises as send().")
      .def("irecv", &irecv, "x"_a.none(), "source"_a = nb::none(), "tag"_a.none() = 0,
           "timeout"_a = nb::none(),
           "recv() that does not wait: x holds the message once the returned Request is done.\n\n"
           "Raises ValueError or TypeError for bad arguments, CollectiveError; its wait() raises the rest.");
}

}  // namespace collectives
