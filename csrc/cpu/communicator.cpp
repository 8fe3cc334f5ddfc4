#include "cpu/communicator.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "cpu/direct.h"
#include "cpu/float_mode.h"
#include "cpu/inline_payload.h"
#include "cpu/one_shot.h"
#include "cpu/two_shot.h"

namespace collectives {
namespace {

constexpr size_t kUnknownCache = 32 << 20;  // a common size of an L3

}  // namespace

// The right to use the communicator: one thread at a time. Waiting for it ends when a signal handler raises.
// A handler that runs within a call of its own thread cannot get it and is told so, since waiting would never
// end; nor can a forked child, in which the thread that has it may not exist.
class Communicator::Turn {
 public:
  Turn(const Communicator& comm, Collective collective) : comm_(comm) {
    if (comm.membership_->forked()) comm.check_usable(collective);
    if (comm.in_call_ == std::this_thread::get_id())
      throw std::runtime_error(
          "this thread is in a call of this communicator already: a signal handler may only abort() or "
          "close() it");
    if (!comm.mutex_.try_lock())
      while (!comm.mutex_.try_lock_for(std::chrono::milliseconds(20)))
        if (comm.membership_->interrupted())
          throw Failure(Cause::interrupted, name(collective), 0, {},
                        "interrupted while another thread was in a call");
    comm.in_call_ = std::this_thread::get_id();
  }
  ~Turn() {
    if (comm_.leave_) comm_.leave();
    comm_.in_call_ = std::thread::id{};
    comm_.mutex_.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  const Communicator& comm_;
};

Communicator::Communicator(int rank, int world, double timeout, std::function<bool()> interrupted,
                           size_t cache_bytes)
    : rank_(rank),
      world_(world),
      timeout_(timeout),
      stream_limit_((cache_bytes != 0 ? cache_bytes : kUnknownCache) / 2 /
                    static_cast<size_t>(std::max(world, 1))) {
  if (world < 1 || world > kMaxWorld || rank < 0 || rank >= world)
    throw BadArgument("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                      ": the rank must be in [0, world) and the world in [1, " + std::to_string(kMaxWorld) +
                      "]");
  if (!(timeout > 0)) throw BadArgument("the timeout must be a positive number of seconds");
  membership_ = std::make_shared<Membership>(rank, world, kSlotBytes, std::move(interrupted));
  sources_.resize(static_cast<size_t>(world));
}

Communicator::~Communicator() { close(); }

void Communicator::connect(const std::vector<Announcement>& peers) {
  const Turn turn(*this, Collective::barrier);
  membership_->connect(peers, timeout_);
}

bool Communicator::healthy() const {
  return !membership_->forked() && membership_->connected() && membership_->group().healthy();
}

bool Communicator::closed() const {
  return membership_->forked() || !membership_->connected() || membership_->group().closed();
}

void Communicator::check_usable(Collective collective) const {
  if (membership_->forked())
    throw Failure(Cause::closed, name(collective), 0, {rank_},
                  std::string(name(collective)) +
                      ": this communicator was made in the parent process; a forked child must make its own");
  if (!membership_->connected())
    throw Failure(Cause::closed, name(collective), 0, {rank_},
                  std::string(name(collective)) + ": this communicator is not connected");
}

void Communicator::run(const Call& call) {
  const Descriptor& d = call.descriptor;
  const Turn turn(*this, d.collective);
  check_usable(d.collective);
  const DefaultFloatMode mode;
  auto& group = membership_->group();
  FlightEntry entry(group.healthy() ? &membership_->calls() : nullptr, d, group.epoch() + 1, call.shape,
                    call.dims);
  group.begin(d);
  Plan plan;
  try {
    plan = this->plan(d);
  } catch (const BadArgument& bad) {
    group.refuse(bad.what());
    throw;
  }
  entry.choose(plan.algorithm);
  Call streamed = call;
  // In place the output's lines are in the cache already, as the input's.
  streamed.streamed = call.in != call.out && call.out_bytes(world_) >= stream_limit_;
  if (plan.algorithm == Algorithm::direct && !run_direct(group, streamed)) {
    // Some rank's memory could not be read, as all ranks were told: stage it.
    Descriptor staged = d;
    staged.algorithm = Algorithm::one_shot;
    plan = this->plan(staged);
    entry.choose(plan.algorithm);
  }
  if (plan.algorithm != Algorithm::direct) run_plan(streamed, plan);
  const size_t bytes = d.bytes();
  size_t staged = 0;
  if (plan.algorithm == Algorithm::one_shot || plan.algorithm == Algorithm::two_shot) {
    const bool stages = d.collective != Collective::broadcast || static_cast<int>(d.root) == rank_;
    staged = d.collective == Collective::reduce_scatter ? bytes * static_cast<size_t>(world_ - 1)
             : stages && world_ > 1                     ? bytes
                                                        : 0;
  }
  receipt_ = Receipt{group.epoch(), d, plan.chunks, staged};
  receipt_->descriptor.algorithm = plan.algorithm;
  entry.complete();
}

void Communicator::run_plan(const Call& call, const Plan& plan) {
  auto& group = membership_->group();
  if (plan.algorithm == Algorithm::inline_payload) return run_inline(group, call, sources_);
  const Staged<RealMemory> job{group, call, plan.chunk, sources_};
  switch (call.descriptor.collective) {
    case Collective::all_reduce:
      if (plan.algorithm == Algorithm::one_shot)
        return run_pipeline(OneShotAllReduce<RealMemory>{job}, plan.chunks);
      return run_pipeline(TwoShotAllReduce<RealMemory>{job}, plan.chunks);
    case Collective::all_gather:
      return run_pipeline(OneShotAllGather<RealMemory>{job}, plan.chunks);
    case Collective::reduce_scatter:
      return run_pipeline(TwoShotReduceScatter<RealMemory>{job}, plan.chunks);
    case Collective::broadcast:
      return run_pipeline(OneShotBroadcast<RealMemory>{job}, plan.chunks);
    case Collective::barrier:
      return;  // always inline
  }
}

void Communicator::refuse(Collective collective, const std::string& reason) {
  const Turn turn(*this, collective);
  check_usable(collective);
  Descriptor d;
  d.collective = collective;
  auto& group = membership_->group();
  const FlightEntry entry(group.healthy() ? &membership_->calls() : nullptr, d, group.epoch() + 1, nullptr,
                          0);
  group.begin(d);
  group.refuse(reason);
}

Plan Communicator::plan(const Descriptor& d) const {
  if (reduces(d.collective) && !supports(d.dtype, d.op))
    throw BadArgument(std::string(name(d.op)) + " is not defined for " + name(d.dtype));
  if (d.root >= static_cast<uint32_t>(world_))
    throw BadArgument("root " + std::to_string(d.root) + " is not a rank: the world has " +
                      std::to_string(world_));
  return make_plan(d, {world_, kSlotBytes, membership_->direct(),
                       membership_->connected() && membership_->group().any_far()});
}

Plan Communicator::explain(const Descriptor& d) const {
  const Turn turn(*this, d.collective);
  return plan(d);
}

std::optional<Receipt> Communicator::last_receipt() const {
  const Turn turn(*this, Collective::barrier);
  return receipt_;
}

void Communicator::abort() {
  if (membership_->forked() || !membership_->connected()) return;
  membership_->group().abort();
}

void Communicator::close() {
  if (membership_->forked() || !membership_->connected() || membership_->group().closed()) return;
  if (in_call_ == std::this_thread::get_id()) {  // a signal handler within a call: the call ends first
    leave_ = true;
    membership_->group().abort();
    return;
  }
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) {  // a call is in flight in another thread: it ends first
    membership_->group().abort();
    lock.lock();
  }
  if (!membership_->group().closed()) leave();
}

// With the turn.
void Communicator::leave() const {
  membership_->group().close();
  Membership::retire(membership_);
}

}  // namespace collectives
