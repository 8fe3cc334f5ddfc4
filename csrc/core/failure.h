// How a call fails: one exception type that carries what the user must be told.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/descriptor.h"

namespace collectives {

enum class Cause : uint8_t {
  none,
  mismatched,   // ranks described different calls; the communicator stays usable
  refused,      // a peer refused its own arguments; the communicator stays usable
  died,         // a peer's process ended
  timed_out,    // a peer did not arrive in time
  aborted,      // abort() on some rank
  interrupted,  // a signal handler raised in this process; to peers this is an abort
  closed,       // a rank closed the communicator
};

struct Failure : std::runtime_error {
  Failure(Cause cause, std::string collective, uint64_t epoch, std::vector<int> ranks,
          const std::string& message)
      : std::runtime_error(message),
        cause(cause),
        collective(std::move(collective)),
        epoch(epoch),
        ranks(std::move(ranks)) {}

  Cause cause;
  std::string collective;
  uint64_t epoch;
  std::vector<int> ranks;  // the culprits
};

// Bad input of the caller's own, found before anything was published for the call.
struct BadArgument : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

// "rank 3", "ranks 0, 2 and 5".
std::string list_ranks(const std::vector<int>& ranks);

// One word in shared memory that tells the peers how a rank stands and, if it failed, who was to blame first;
// so that a rank which fails because its peer failed passes the first culprit on instead of blaming the
// messenger.
struct Standing {
  enum State : uint8_t { open = 1, failed = 2, closed = 3 };
  State state = open;
  Cause cause = Cause::none;
  uint16_t culprit = 0;

  uint32_t word() const { return uint32_t(state) | uint32_t(cause) << 8 | uint32_t(culprit) << 16; }
  static Standing from(uint32_t word) {
    return {State(word & 0xff), Cause(word >> 8 & 0xff), static_cast<uint16_t>(word >> 16)};
  }
};

}  // namespace collectives
