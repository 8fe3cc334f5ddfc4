#include "native/table.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cpu/communicator.h"
#include "native/module.h"

namespace collectives {
namespace {

struct LastError {
  std::string message;
  uint64_t epoch = 0;
  std::vector<int> ranks;
};
thread_local LastError last_error;

static_assert(sizeof(collectives_record) == sizeof(FlightRecord) &&
              offsetof(collectives_record, shape) == offsetof(FlightRecord, shape) &&
              offsetof(collectives_record, dims) == offsetof(FlightRecord, dims));

Communicator* unwrap(collectives_communicator* handle) { return reinterpret_cast<Communicator*>(handle); }
const Communicator* unwrap(const collectives_communicator* handle) {
  return reinterpret_cast<const Communicator*>(handle);
}

int status(Cause cause) {
  switch (cause) {
    case Cause::none:
      return COLLECTIVES_OK;
    case Cause::mismatched:
      return COLLECTIVES_MISMATCHED;
    case Cause::refused:
      return COLLECTIVES_REFUSED;
    case Cause::died:
      return COLLECTIVES_DIED;
    case Cause::timed_out:
      return COLLECTIVES_TIMED_OUT;
    case Cause::aborted:
      return COLLECTIVES_ABORTED;
    case Cause::interrupted:
      return COLLECTIVES_INTERRUPTED;
    case Cause::closed:
      return COLLECTIVES_CLOSED;
  }
  return COLLECTIVES_ERROR;
}

int remember(const Failure& failure) {
  last_error = {failure.what(), failure.epoch, failure.ranks};
  return status(failure.cause);
}

// No exception may leave through a C function.
template <class Body>
int guarded(Body body) {
  try {
    body();
    return COLLECTIVES_OK;
  } catch (const Failure& failure) {
    return remember(failure);
  } catch (const BadArgument& bad) {
    last_error = {bad.what(), 0, {}};
    return COLLECTIVES_BAD_ARGUMENT;
  } catch (const std::exception& error) {
    last_error = {error.what(), 0, {}};
    return COLLECTIVES_ERROR;
  }
}

template <class Enum>
Enum in_range(uint8_t value, int count, const char* what) {
  if (value >= count) throw BadArgument(std::string(what) + " " + std::to_string(value) + " is out of range");
  return static_cast<Enum>(value);
}

Call call_from(const collectives_call& c) {
  Call call;
  call.descriptor.count = c.count;
  call.descriptor.root = c.root;
  call.descriptor.collective = in_range<Collective>(c.collective, kCollectiveCount, "collective");
  call.descriptor.op = in_range<Op>(c.op, kOpCount, "op");
  call.descriptor.dtype = in_range<DType>(c.dtype, kDTypeCount, "dtype");
  call.descriptor.algorithm = in_range<Algorithm>(c.algorithm, kAlgorithmCount, "algorithm");
  call.in = static_cast<const char*>(c.in);
  call.out = static_cast<char*>(c.out);
  call.timeout = c.timeout;
  call.factor = c.factor;
  call.send_counts = c.send_counts;
  call.recv_counts = c.recv_counts;
  call.shape = c.shape;
  call.dims = c.dims;
  return call;
}

// A call that cannot even be described still takes its turn, so that the peers raise at once.
void run(Communicator& comm, const collectives_call& c) {
  Call call;
  try {
    call = call_from(c);
  } catch (const BadArgument& bad) {
    comm.refuse(Collective::barrier, bad.what());
    throw;
  }
  comm.run(call);
}

Message message_from(const Communicator& comm, const collectives_message& m) {
  return {m.data, m.count, in_range<DType>(m.dtype, kDTypeCount, "dtype"),
          m.peer, m.tag,   m.timeout > 0 ? m.timeout : comm.timeout()};
}

// A request as the caller holds it: it may outlive the communicator.
struct Posted {
  std::shared_ptr<PointToPoint> messages;
  std::shared_ptr<Request> request;
};
Posted* unwrap(collectives_request* handle) { return reinterpret_cast<Posted*>(handle); }
const Posted* unwrap(const collectives_request* handle) { return reinterpret_cast<const Posted*>(handle); }

struct Callback {
  void (*done)(void*, int);
  void* context;

  static void call(void* self, const Failure* failure) {
    const std::unique_ptr<Callback> callback(static_cast<Callback*>(self));
    callback->done(callback->context, failure == nullptr ? COLLECTIVES_OK : remember(*failure));
  }
};

using Post = std::shared_ptr<Request> (PointToPoint::*)(const Message&, Done, void*);

template <Post post, Collective side>
collectives_request* post_message(collectives_communicator* handle, const collectives_message* m,
                                  void (*done)(void*, int), void* context) {
  collectives_request* posted = nullptr;
  guarded([&] {
    Communicator& comm = *unwrap(handle);
    PointToPoint& messages = comm.messages(side);
    auto callback = std::make_unique<Callback>(done, context);
    auto made = std::make_unique<Posted>(messages.shared_from_this());
    made->request = done == nullptr
                        ? (messages.*post)(message_from(comm, *m), nullptr, nullptr)
                        : (messages.*post)(message_from(comm, *m), Callback::call, callback.get());
    if (done != nullptr) callback.release();  // it frees itself, and may have done so
    posted = reinterpret_cast<collectives_request*>(made.release());
  });
  return posted;
}

const collectives_table table = {
    .version = COLLECTIVES_TABLE_VERSION,
    .size = sizeof(collectives_table),
    .create =
        [](int rank, int world, double timeout, int (*interrupted)(void*), void* context) {
          collectives_communicator* made = nullptr;
          guarded([&] {
            auto ask = [=] { return interrupted != nullptr && interrupted(context) != 0; };
            made = reinterpret_cast<collectives_communicator*>(new Communicator(rank, world, timeout, ask));
          });
          return made;
        },
    .announcement =
        [](collectives_communicator* handle, void* buffer, size_t room) {
          if (room >= sizeof(Announcement))
            std::memcpy(buffer, &unwrap(handle)->announcement(), sizeof(Announcement));
          return sizeof(Announcement);
        },
    .connect =
        [](collectives_communicator* handle, const void* announcements, size_t bytes) {
          return guarded([&] {
            if (bytes % sizeof(Announcement) != 0) throw BadArgument("the announcements are cut off");
            std::vector<Announcement> all(bytes / sizeof(Announcement));
            std::memcpy(all.data(), announcements, bytes);
            unwrap(handle)->connect(all);
          });
        },
    .run = [](collectives_communicator* handle,
              const collectives_call* c) { return guarded([&] { run(*unwrap(handle), *c); }); },
    .refuse =
        [](collectives_communicator* handle, uint8_t collective, const char* reason) {
          return guarded([&] {
            unwrap(handle)->refuse(in_range<Collective>(collective, kCollectiveCount, "collective"), reason);
          });
        },
    .abort = [](collectives_communicator* handle) { unwrap(handle)->abort(); },
    .close = [](collectives_communicator* handle) { unwrap(handle)->close(); },
    .destroy = [](collectives_communicator* handle) { delete unwrap(handle); },
    .healthy = [](const collectives_communicator* handle) { return unwrap(handle)->healthy() ? 1 : 0; },
    .last_error =
        [](const char** message, uint64_t* epoch, int* ranks, size_t room) {
          *message = last_error.message.c_str();
          *epoch = last_error.epoch;
          std::copy_n(last_error.ranks.begin(), std::min(room, last_error.ranks.size()), ranks);
          return last_error.ranks.size();
        },
    .set_timeout = [](collectives_communicator* handle,
                      double seconds) { guarded([&] { unwrap(handle)->set_timeout(seconds); }); },
    .epoch = [](const collectives_communicator* handle) { return unwrap(handle)->epoch(); },
    .send =
        [](collectives_communicator* handle, const collectives_message* m) {
          return guarded([&] {
            Communicator& comm = *unwrap(handle);
            comm.messages(Collective::send).send(message_from(comm, *m));
          });
        },
    .recv =
        [](collectives_communicator* handle, collectives_message* m) {
          return guarded([&] {
            Communicator& comm = *unwrap(handle);
            m->peer = comm.messages(Collective::recv).recv(message_from(comm, *m));
          });
        },
    .post_send = post_message<&PointToPoint::post_send, Collective::send>,
    .post_recv = post_message<&PointToPoint::post_recv, Collective::recv>,
    .wait =
        [](collectives_request* handle, double seconds) {
          return guarded([&] { unwrap(handle)->messages->wait(unwrap(handle)->request, seconds); });
        },
    .finished = [](const collectives_request* handle) { return unwrap(handle)->request->finished() ? 1 : 0; },
    .source = [](const collectives_request* handle) -> int32_t { return unwrap(handle)->request->source(); },
    .release = [](collectives_request* handle) { delete unwrap(handle); },
    .collective_name = [](uint8_t collective) { return name(static_cast<Collective>(collective)); },
    .estimate =
        [](const collectives_communicator* handle, const collectives_call* c) {
          double seconds = 0;
          guarded([&] { seconds = unwrap(handle)->estimate(call_from(*c)); });
          return seconds;
        },
    .allocate =
        [](size_t bytes) {
          void* memory = nullptr;
          guarded([&] { memory = Process::current()->heap().allocate(bytes); });
          return memory;
        },
    .give_back = &Process::give_back,
    .flight =
        [](const collectives_communicator* handle, int rank, void* buffer, size_t room) {
          size_t bytes = 0;
          guarded([&] {
            const std::vector<FlightRecord> records = unwrap(handle)->flight(rank);
            bytes = records.size() * sizeof(FlightRecord);
            const size_t fitting = std::min(records.size(), room / sizeof(FlightRecord));
            if (fitting > 0) std::memcpy(buffer, records.data(), fitting * sizeof(FlightRecord));
          });
          return bytes;
        },
};

}  // namespace

void bind_table(nb::module_& m) {
  m.def(
      "table", [] { return nb::capsule(&table, COLLECTIVES_TABLE_NAME); },
      "The PyCapsule through which other extension modules of this package reach the core "
      "(csrc/native/table.h).");
}

}  // namespace collectives
