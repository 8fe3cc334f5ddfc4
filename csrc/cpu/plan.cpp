#include "cpu/plan.h"

#include <algorithm>

#include "core/failure.h"
#include "cpu/layout.h"

namespace collectives {
namespace {

// The limits below were measured with W = 2 on two cores (docs/performance.md); none is a matter of
// correctness.

// Up to here one exchange of flags costs more than reading every rank's whole input. One-shot moves (W + 1) n
// bytes a rank and two-shot less than 3 n, so the limit falls as the world grows.
constexpr size_t kOneShot = 64 << 10;
size_t one_shot_limit(int world) { return world <= 2 ? kOneShot : kOneShot / static_cast<size_t>(world - 1); }

// From this many bytes on, counted on the larger side, reading the peers' arrays beats staging.
size_t direct_limit(bool far) { return far ? 512 << 10 : 1 << 20; }

// all_reduce: what one exchange of flags reduces. The result of a chunk is collected while it is in the
// caches. Not measured yet.
constexpr size_t kSymmetricChunk = 1 << 20;

// From this many bytes on, counted on the larger side, the ranks ask each other whether their arrays are
// symmetric, where all have such memory. The answer costs a call that is then staged one exchange of flags, a
// microsecond or less, which is small against the copies through the slots that it may save from here on.
constexpr size_t kSymmetricBytes = 32 << 10;

// A rank stages a part for every rank.
bool stages_parts(Collective c) {
  return c == Collective::reduce_scatter || c == Collective::scatter || c == Collective::all_to_all ||
         c == Collective::all_to_all_v;
}

// Bytes that one rank's line carries if the payload rides in it.
size_t inline_bytes(const Descriptor& d, int world) {
  return d.bytes() * (stages_parts(d.collective) ? static_cast<size_t>(world) : 1);
}

// The line of premul_sum holds a factor, and that of all_to_all_v nobody can size alone.
bool fits_inline(const Descriptor& d, int world) {
  return d.count <= kPayload && inline_bytes(d, world) <= kPayload &&
         d.collective != Collective::all_to_all_v && !(d.op == Op::premul_sum && reduces(d.collective));
}

// Who serves what, inline apart.
bool serves(Algorithm a, Collective c) {
  switch (a) {
    case Algorithm::one_shot:
      return c != Collective::reduce_scatter;
    case Algorithm::two_shot:
      return reduces(c);
    case Algorithm::direct:
      return !reduces(c) && c != Collective::all_to_all_v;
    case Algorithm::symmetric:
      return serves_symmetric(c);
    default:
      return false;
  }
}

void choose(const Descriptor& d, const Circumstances& c, Plan& plan) {
  auto take = [&](Algorithm algorithm, const char* reason) {
    plan.algorithm = algorithm;
    plan.reason = reason;
  };
  const size_t whole = d.bytes() * (sharded(d.collective) ? static_cast<size_t>(c.world) : 1);
  if (fits_inline(d, c.world)) return take(Algorithm::inline_payload, "the payload rides in the flag line");
  if (c.world == 1 && reduces(d.collective))
    return take(Algorithm::two_shot, "a world of one: nothing is exchanged");
  if (c.direct && c.world > 1 && serves(Algorithm::direct, d.collective) && whole >= direct_limit(c.far))
    return take(Algorithm::direct,
                c.far ? "ranks sit behind different caches: reading their arrays costs less than staging"
                      : "beyond the caches one copy costs less than two");
  if (d.collective == Collective::reduce_scatter)
    return take(Algorithm::two_shot, "each rank reduces its own part");
  if (d.collective == Collective::all_to_all_v)
    return take(Algorithm::one_shot, "in chunks of the largest part, which the first exchange tells");
  if (!reduces(d.collective))
    return take(Algorithm::one_shot, "every byte is staged once and read by the ranks that need it");
  if (d.bytes() <= one_shot_limit(c.world))
    return take(Algorithm::one_shot,
                "small: a second exchange of flags would cost more than reading every rank's input");
  take(Algorithm::two_shot,
       "large: each rank reduces one shard, so that less moves than if one read every input");
}

void check_forced(const Descriptor& d, const Circumstances& c) {
  if (d.algorithm == Algorithm::inline_payload) {
    if (fits_inline(d, c.world)) return;
    const bool small = inline_bytes(d, c.world) <= kPayload;
    throw BadArgument("algorithm inline " +
                      (small ? std::string("does not serve ") + name(d.collective) +
                                   (reduces(d.collective) ? " with premul_sum" : "")
                             : "carries at most " + std::to_string(kPayload) + " bytes a rank, not " +
                                   std::to_string(inline_bytes(d, c.world))));
  }
  if (!serves(d.algorithm, d.collective))
    throw BadArgument(std::string("algorithm ") + name(d.algorithm) + " does not serve " +
                      name(d.collective));
  if (d.algorithm == Algorithm::direct && !c.direct)
    throw BadArgument("algorithm direct: this system does not let the ranks read each other's memory");
}

}  // namespace

bool serves_symmetric(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::all_gather || collective == Collective::broadcast;
}

bool tries_symmetric(const Descriptor& d, int world) {
  const size_t whole = d.bytes() * (sharded(d.collective) ? static_cast<size_t>(world) : 1);
  return d.algorithm == Algorithm::automatic && world > 1 && serves_symmetric(d.collective) &&
         whole >= kSymmetricBytes;
}

Plan make_plan(const Descriptor& d, const Circumstances& c) {
  Plan plan;
  plan.chunk = d.count;
  if (d.collective == Collective::barrier || d.collective == Collective::delegated) {
    plan.algorithm = Algorithm::inline_payload;
    plan.reason = "nothing moves but the flags";
    return plan;
  }
  if (d.algorithm == Algorithm::automatic) {
    choose(d, c, plan);
  } else {
    check_forced(d, c);
    plan.algorithm = d.algorithm;
    plan.reason = "forced by the caller";
  }
  const bool symmetric = plan.algorithm == Algorithm::symmetric;
  if (plan.algorithm == Algorithm::inline_payload || plan.algorithm == Algorithm::direct ||
      (symmetric && d.collective != Collective::all_reduce))
    return plan;
  const size_t item = size_of(d.dtype);
  const size_t line = std::max<size_t>(1, kCacheLine / item);
  size_t capacity = (symmetric ? kSymmetricChunk : c.slot_bytes) / item;
  if (stages_parts(d.collective)) capacity /= static_cast<size_t>(c.world);
  capacity = capacity / line * line;
  if (d.collective == Collective::all_to_all_v) {
    plan.chunk = capacity;
    return plan;
  }
  // Chunks of equal size: a short last one would leave the pipeline half empty.
  plan.chunks = std::max<size_t>(1, (d.count + capacity - 1) / capacity);
  const size_t even = (d.count + plan.chunks - 1) / plan.chunks;
  plan.chunk = std::min(capacity, round_up(std::max<size_t>(even, 1), line));
  return plan;
}

}  // namespace collectives
