// What `collectives._native` offers to other extension modules of this package, such as the torch adapter: a
// table of C functions, found through the PyCapsule that `collectives._native.table()` returns. The core and
// its registries exist once in a process; nobody links them a second time. Plain C types only: the two
// modules may be built by different compilers. Append to the table and raise the version; never reorder.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define COLLECTIVES_TABLE_NAME "collectives._native.table"
#define COLLECTIVES_TABLE_VERSION 2u

typedef struct collectives_communicator collectives_communicator;
typedef struct collectives_request collectives_request;

// Result of a call. Everything but OK has a message, and a cause's ranks, in last_error().
enum {
  COLLECTIVES_OK = 0,
  COLLECTIVES_BAD_ARGUMENT = 1,
  COLLECTIVES_MISMATCHED = 2,
  COLLECTIVES_REFUSED = 3,
  COLLECTIVES_DIED = 4,
  COLLECTIVES_TIMED_OUT = 5,
  COLLECTIVES_ABORTED = 6,
  COLLECTIVES_INTERRUPTED = 7,
  COLLECTIVES_CLOSED = 8,
  COLLECTIVES_ERROR = 9
};

// The enumerators of core/descriptor.h, core/op.h and core/dtype.h as numbers; count as in core/descriptor.h.
// The arrays are packed: see cpu/call.h for what `in` and `out` hold.
typedef struct {
  const void* in;
  void* out;
  uint64_t count;
  uint32_t root;
  uint8_t collective;
  uint8_t op;
  uint8_t dtype;
  uint8_t algorithm;
  double timeout;               // seconds; 0: the communicator's
  double factor;                // of this rank's input; premul_sum only
  const uint64_t* send_counts;  // all_to_all_v: elements to and from each rank, parts one after another;
  const uint64_t* recv_counts;  // NULL for every other collective
  const int64_t* shape;         // of the caller's array, for the flight record alone; may be NULL
  uint32_t dims;
} collectives_call;

// A message between two ranks: packed elements. Messages of one sender and tag arrive in order.
typedef struct {
  void* data;
  uint64_t count;
  double timeout;  // seconds; 0: the communicator's
  int32_t peer;    // receiving from -1 takes the first message that comes; then the sender is put here
  uint32_t tag;
  uint8_t dtype;
} collectives_message;

// One entry of a flight record: a call, or a message between two ranks. Times are nanoseconds since 1970; 0:
// not so far.
typedef struct {
  uint64_t serial;      // entries of its kind on this rank so far, this one included
  uint64_t epoch;       // number of the call; of a message among those from this sender to this receiver
  uint64_t count;       // as in collectives_call
  uint64_t queued_at;   // the call began
  uint64_t started_at;  // all ranks had described the same call; stays 0 in calls of a few bytes
  uint64_t ended_at;    // completed or failed
  int64_t shape[6];     // of the caller's array
  uint32_t root;        // of a message: the other rank
  uint32_t tag;         // of a message
  uint8_t collective;
  uint8_t op;
  uint8_t dtype;
  uint8_t algorithm;  // that ran, once it is known
  uint8_t state;      // 1 queued, 2 started, 3 completed, 4 failed
  uint8_t dims;       // of the shape; 255: nobody told, or more than 6
  uint8_t reserved[18];
} collectives_record;

typedef struct {
  uint32_t version;  // COLLECTIVES_TABLE_VERSION
  uint32_t size;     // of this struct

  // NULL on failure. `interrupted` (may be NULL) is asked while waiting; non-zero ends the call.
  collectives_communicator* (*create)(int rank, int world, double timeout_seconds, int (*interrupted)(void*),
                                      void* context);
  size_t (*announcement)(collectives_communicator*, void* buffer,
                         size_t room);  // bytes needed; written if they fit
  int (*connect)(collectives_communicator*, const void* announcements,
                 size_t bytes);                                    // of all ranks, in rank order
  int (*run)(collectives_communicator*, const collectives_call*);  // blocks; needs no GIL
  int (*refuse)(collectives_communicator*, uint8_t collective, const char* reason);
  void (*abort)(collectives_communicator*);
  void (*close)(collectives_communicator*);
  void (*destroy)(collectives_communicator*);  // of create()'s result alone
  int (*healthy)(const collectives_communicator*);
  // Of this thread's last call that failed: message, call number, and up to `room` culprits; returns how many
  // there are.
  size_t (*last_error)(const char** message, uint64_t* epoch, int* ranks, size_t room);

  // Version 2.
  void (*set_timeout)(collectives_communicator*, double seconds);
  uint64_t (*epoch)(const collectives_communicator*);  // calls begun

  // Point to point: independent of the collectives, and of whoever waits in them. send() returns once the
  // message is buffered or taken, recv() once it is there.
  int (*send)(collectives_communicator*, const collectives_message*);
  int (*recv)(collectives_communicator*, collectives_message*);
  // The same begun and not waited for; `data` stays in use until `done` (may be NULL) was called, with the
  // status, by any thread that holds no lock. last_error() is set in that thread. NULL on failure to begin.
  collectives_request* (*post_send)(collectives_communicator*, const collectives_message*,
                                    void (*done)(void* context, int status), void* context);
  collectives_request* (*post_recv)(collectives_communicator*, const collectives_message*,
                                    void (*done)(void* context, int status), void* context);
  int (*wait)(collectives_request*, double seconds);  // TIMED_OUT leaves it pending; 0 s: as long as it takes
  int (*finished)(const collectives_request*);        // 1 once done
  int32_t (*source)(const collectives_request*);      // sender of a received message
  void (*release)(collectives_request*);              // the handle; the transfer goes on

  const char* (*collective_name)(uint8_t collective);

  // Seconds that a call is expected to take (csrc/cpu/cost.h), by the plan that it would get.
  double (*estimate)(const collectives_communicator*, const collectives_call*);

  // Memory of this process that the peers of all its communicators can read in place; NULL when there is
  // none. Aligned to pages. give_back() keeps pages for the next allocation.
  void* (*allocate)(size_t bytes);
  void (*give_back)(void*);

  // The last 64 calls of a rank, then its last 64 messages, oldest first, as that rank recorded them, alive
  // or dead: as many whole records as there is room for. Returns the bytes of all; 0 once closed everywhere.
  size_t (*flight)(const collectives_communicator*, int rank, void* buffer, size_t room);
} collectives_table;

#ifdef __cplusplus
}
#endif
