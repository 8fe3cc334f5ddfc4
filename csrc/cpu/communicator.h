// The communicator: collectives among the ranks of one host over shared memory.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/call.h"
#include "cpu/membership.h"
#include "cpu/pipeline.h"
#include "cpu/plan.h"
#include "cpu/point_to_point.h"

namespace collectives {

// What the last call really did.
struct Receipt {
  uint64_t epoch = 0;
  Descriptor descriptor;  // `algorithm` is the one that ran
  size_t bytes = 0;       // of the call's larger side
  size_t chunks = 0;
  size_t staged_bytes = 0;  // written into this rank's staging and result slots
};

// Bytes of one staging slot. Measured at 1 to 4 MB with W = 2 on cores with 512 KB of L2 and 32 MB of L3:
// slots of 512 KB and 1 MB are 15 to 25 % faster than 256 KB (fewer exchanges); beyond the cache there is no
// difference.
inline constexpr size_t kSlotBytes = 512 << 10;

// Made in three steps, because the middle one is the rendezvous' affair: construct, carry `announcement()` to
// all ranks and theirs here, `connect`. One call at a time: calls from several threads take turns. Every call
// ends with the result or with a Failure; BadArgument means that this rank refused its own arguments, and its
// peers were told.
class Communicator {
 public:
  // `interrupted` is asked now and then while waiting and returns true if the call must end (a signal handler
  // raised).
  Communicator(int rank, int world, double timeout, std::function<bool()> interrupted,
               size_t cache_bytes = 0);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Announcement& announcement() const { return membership_->announcement(); }
  // Maps the peers' memory, reads each token back, and passes a first barrier. Throws BadArgument where the
  // announcements contradict each other, std::runtime_error where a rank cannot be reached, Failure.
  void connect(const std::vector<Announcement>& peers);

  int rank() const { return rank_; }
  int world() const { return world_; }
  double timeout() const { return timeout_; }  // seconds, of every call that has none of its own
  // From any thread; of the calls that begin afterwards. Throws BadArgument.
  void set_timeout(double seconds);
  uint64_t epoch() const;  // calls begun; from any thread
  bool healthy() const;
  bool closed() const;

  // `call.in` and `call.out` as cpu/call.h says. Blocks until the result is there.
  void run(const Call& call);
  // Takes part in a call that this rank will not make, because its arguments are bad.
  void refuse(Collective collective, const std::string& reason);

  // Sends and receives, which take no turns with the calls. `side` names the caller in the Failure where
  // there are none.
  PointToPoint& messages(Collective side) const;

  // The plan for a call as things stand. Throws BadArgument.
  Plan explain(const Descriptor& descriptor) const;
  // Seconds that a call is expected to take, by that plan (cpu/cost.h). Throws BadArgument.
  double estimate(const Call& call) const;
  std::optional<Receipt> last_receipt() const;
  // The last calls and messages of a rank, as it recorded them: from any thread, at any time, also after the
  // rank's death; nothing after this communicator was closed on all ranks.
  std::vector<FlightRecord> flight(int rank) const { return membership_->flight(rank); }

  void abort();  // from any thread
  void close();  // does not wait for the peers

 private:
  class Turn;

  Plan plan(const Descriptor& descriptor) const;
  void leave() const;
  void check_usable(Collective collective) const;
  void check(const Call& call) const;
  void run_plan(const Call& call, Plan& plan);
  // Makes the call in place where all ranks' arrays are symmetric, and says how; otherwise moves nothing.
  // Throws BadArgument on all ranks alike where the caller insists.
  std::optional<Plan> run_symmetric(const Call& call);

  const int rank_;
  const int world_;
  std::atomic<double> timeout_;
  const size_t stream_limit_;       // bytes of output from which it is written past the cache
  mutable std::timed_mutex mutex_;  // held during a call, see Turn
  mutable std::atomic<std::thread::id> in_call_{};
  mutable std::atomic<bool> leave_{false};  // close() was called by a signal handler within a call
  std::shared_ptr<Membership> membership_;  // never null
  Scratch scratch_;
  std::shared_ptr<PointToPoint> messages_;  // once connected
  std::vector<PeerArrays> peers_;           // scratch: where the ranks' arrays are
  std::optional<Receipt> receipt_;
};

}  // namespace collectives
