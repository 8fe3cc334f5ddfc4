#include "cpu/communicator.h"

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "cpu/cost.h"
#include "cpu/direct.h"
#include "cpu/exchange_parts.h"
#include "cpu/float_mode.h"
#include "cpu/inline_payload.h"
#include "cpu/one_shot.h"
#include "cpu/symmetric.h"
#include "cpu/two_shot.h"

namespace collectives {
namespace {

constexpr size_t kUnknownCache = 32 << 20;  // a common size of an L3

void check_timeout(double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds))
    throw BadArgument("the timeout must be a positive number of seconds");
}

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
                    static_cast<size_t>(std::max(world, 1))),
      scratch_(std::max(world, 1)) {
  if (world < 1 || world > kMaxWorld || rank < 0 || rank >= world)
    throw BadArgument("rank " + std::to_string(rank) + " of " + std::to_string(world) +
                      ": the rank must be in [0, world) and the world in [1, " + std::to_string(kMaxWorld) +
                      "]");
  check_timeout(timeout);
  membership_ = std::make_shared<Membership>(rank, world, kSlotBytes, std::move(interrupted));
  peers_.resize(static_cast<size_t>(world));
}

Communicator::~Communicator() { close(); }

void Communicator::connect(const std::vector<Announcement>& peers) {
  const Turn turn(*this, Collective::barrier);
  membership_->connect(peers, timeout_);
  messages_ = PointToPoint::make(membership_);
}

bool Communicator::healthy() const {
  return !membership_->forked() && membership_->connected() && membership_->group().healthy();
}

bool Communicator::closed() const {
  return membership_->forked() || !membership_->connected() || membership_->group().closed();
}

void Communicator::set_timeout(double seconds) {
  check_timeout(seconds);
  timeout_ = seconds;
}

uint64_t Communicator::epoch() const { return membership_->connected() ? membership_->group().epoch() : 0; }

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
  group.offer_symmetric(membership_->symmetric());
  FlightEntry entry(group.healthy() ? &membership_->calls() : nullptr, d, group.epoch() + 1, call.shape,
                    call.dims);
  group.begin(d, call.timeout > 0 ? call.timeout : timeout());
  Plan plan;
  try {
    check(call);
    plan = this->plan(d);
  } catch (const BadArgument& bad) {
    group.refuse(bad.what());
    throw;
  }
  entry.choose(plan.algorithm);
  scratch_.staged = 0;
  Call streamed = call;
  // In place the output's lines are in the cache already, as the input's.
  streamed.streamed = call.in != call.out && call.out_bytes(world_) >= stream_limit_;
  if (plan.algorithm == Algorithm::symmetric || (group.all_symmetric() && tries_symmetric(d, world_)))
    if (const std::optional<Plan> made = run_symmetric(streamed)) plan = *made;
  if (plan.algorithm == Algorithm::direct && !run_direct(group, streamed)) {
    // Some rank's memory could not be read, as all ranks were told: stage it.
    Descriptor staged = d;
    staged.algorithm = Algorithm::one_shot;
    plan = this->plan(staged);
    entry.choose(plan.algorithm);
  }
  if (plan.algorithm != Algorithm::direct && plan.algorithm != Algorithm::symmetric) run_plan(streamed, plan);
  receipt_ = Receipt{group.epoch(), d, call.bytes(world_), plan.chunks, scratch_.staged};
  receipt_->descriptor.algorithm = plan.algorithm;
  receipt_->descriptor.count = call.sent(world_);
  entry.choose(plan.algorithm);
  entry.complete();
}

std::optional<Plan> Communicator::run_symmetric(const Call& call) {
  Descriptor d = call.descriptor;
  const bool insists = d.algorithm == Algorithm::symmetric;
  d.algorithm = Algorithm::symmetric;
  const auto parts = static_cast<size_t>(world_);
  auto place = [&](const char* array, size_t bytes) {
    if (bytes == 0) return uint64_t{0};
    return membership_->heap().find(array, bytes).value_or(Places::kNowhere);
  };
  const Places mine{place(call.in, d.bytes() * (d.collective == Collective::reduce_scatter ? parts : 1)),
                    place(call.out, call.out_bytes(world_)), membership_->reads_peers(), call.factor};
  Symmetric<RealMemory> job(membership_->group(), call, peers_, scratch_);
  if (!job.enter(mine, [this](int peer) { return membership_->window(peer); })) {
    if (insists) throw BadArgument(job.objection());
    return std::nullopt;
  }
  const Plan plan = this->plan(d);
  job.run(plan);
  return plan;
}

void Communicator::run_plan(const Call& call, Plan& plan) {
  auto& group = membership_->group();
  if (plan.algorithm == Algorithm::inline_payload) return run_inline(group, call, scratch_.sources);
  const Staged<RealMemory> job{group, call, plan.chunk, scratch_};
  switch (call.descriptor.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      if (plan.algorithm == Algorithm::one_shot)
        return run_pipeline(OneShotReduce<RealMemory>{job}, plan.chunks);
      return run_pipeline(TwoShotReduce<RealMemory>{job}, plan.chunks);
    case Collective::all_gather:
    case Collective::gather:
      return run_pipeline(OneShotGather<RealMemory>{job}, plan.chunks);
    case Collective::reduce_scatter:
      return run_pipeline(TwoShotReduceScatter<RealMemory>{job}, plan.chunks);
    case Collective::broadcast:
      return run_pipeline(OneShotBroadcast<RealMemory>{job}, plan.chunks);
    case Collective::scatter:
      return run_pipeline(Scatter<RealMemory>{job}, plan.chunks);
    case Collective::all_to_all:
      return run_all_to_all(job, plan.chunks);
    case Collective::all_to_all_v:
      plan.chunks = run_all_to_all_v(job);
      return;
    case Collective::barrier:
    case Collective::delegated:
    case Collective::send:
    case Collective::recv:
      return;  // always inline, or refused by check()
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
  group.begin(d, timeout());
  group.refuse(reason);
}

void Communicator::check(const Call& call) const {
  const Collective c = call.descriptor.collective;
  if (c == Collective::send || c == Collective::recv)
    throw BadArgument(std::string(name(c)) + " is between two ranks: it is no collective");
  if (c == Collective::all_to_all_v && (call.send_counts == nullptr || call.recv_counts == nullptr))
    throw BadArgument("all_to_all_v needs the counts of every part, sent and received");
  if (call.timeout != 0) check_timeout(call.timeout);
}

PointToPoint& Communicator::messages(Collective side) const {
  check_usable(side);
  if (!messages_)
    throw Failure(Cause::closed, name(side), 0, {rank_}, std::string(name(side)) + ": still connecting");
  return *messages_;
}

Plan Communicator::plan(const Descriptor& d) const {
  if (reduces(d.collective) && !supports(d.dtype, d.op))
    throw BadArgument(std::string(name(d.op)) + " is not defined for " + name(d.dtype) + ", which takes " +
                      supported_ops(d.dtype));
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

double Communicator::estimate(const Call& call) const {
  const Plan plan = explain(call.descriptor);
  return collectives::estimate(call, plan, world_,
                               membership_->connected() && membership_->group().any_far());
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
  if (messages_) messages_->close();
  membership_->group().close();
  Membership::retire(membership_);
}

}  // namespace collectives
