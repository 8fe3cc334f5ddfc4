// The way to the core: the C table of collectives._native, and its failures as C++ exceptions.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/descriptor.h"
#include "native/table.h"

namespace collectives::torch_adapter {

// What became of a call that involves other ranks; Python sees the classes of collectives/errors.py. Where
// C++ hands it to Python without our translator it still is a torch.distributed.DistBackendError.
struct Failure : c10::DistBackendError {
  Failure(int status, const std::string& message, std::string collective, uint64_t epoch,
          std::vector<int> ranks);

  int status;
  std::string collective;
  uint64_t epoch;
  std::vector<int> ranks;  // the culprits
};

// Bad input of the caller's own: Python's ValueError.
struct BadInput : c10::ValueError {
  explicit BadInput(const std::string& message);
};

// Finds the table. Throws py::error_already_set or std::runtime_error. To be called with the GIL, once.
void load_table();
const collectives_table& table();

// Throws what `status` stands for; COLLECTIVES_OK is nothing. To be called by the thread that made the call.
void check(int status, Collective collective);
// The same as an exception to be kept.
std::exception_ptr exception_of(int status, Collective collective);

// Whether a signal handler of Python raised in this thread, which must be the main one; then the exception is
// kept for check(). Called while waiting, without the GIL.
int interrupted(void*);
// Throws what interrupted() kept.
void throw_interruption();

// Of the interruptions that calls of this thread have thrown, the last one that was not taken yet; null if
// none. A thread that runs the calls of others must raise what was meant for itself.
std::exception_ptr take_interruption();

// How many forks lie between this process and the one that loaded the module: what was made in another
// generation belongs to a parent, whose threads are not here.
uint32_t generation();

// Translates Failure for Python. To be called with the GIL, once.
void register_translator();

}  // namespace collectives::torch_adapter
