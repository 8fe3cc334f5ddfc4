#include "cpu/plan.h"

#include <algorithm>

#include "core/failure.h"
#include "cpu/layout.h"

namespace collectives {
namespace {

// Above this many bytes two_shot is faster than one_shot: measured with W = 2 on two cores of one L3
// (bench/results). One-shot moves (W + 1) * n bytes a rank and two-shot about 4 * n, but two-shot pays one
// more exchange of flags; so the limit falls as the world grows.
constexpr size_t kOneShotLimit = 64 << 10;

size_t one_shot_limit(int world) {
  return world <= 2 ? kOneShotLimit : kOneShotLimit / static_cast<size_t>(world - 1);
}

// Bytes that one rank's line carries if the payload rides in it.
size_t inline_bytes(const Descriptor& d, int world) {
  return d.bytes() * (d.collective == Collective::reduce_scatter ? static_cast<size_t>(world) : 1);
}

bool fits_inline(const Descriptor& d, int world) {
  return d.count <= kPayload && inline_bytes(d, world) <= kPayload;
}

Algorithm choose(const Descriptor& d, int world) {
  if (fits_inline(d, world)) return Algorithm::inline_payload;
  switch (d.collective) {
    case Collective::all_reduce:
      return d.bytes() <= one_shot_limit(world) ? Algorithm::one_shot : Algorithm::two_shot;
    case Collective::reduce_scatter:
      return Algorithm::two_shot;
    default:
      return Algorithm::one_shot;
  }
}

void check_forced(const Descriptor& d, int world) {
  const bool reduce_scatter = d.collective == Collective::reduce_scatter;
  const bool all_reduce = d.collective == Collective::all_reduce;
  if (d.algorithm == Algorithm::inline_payload && !fits_inline(d, world))
    throw BadArgument("algorithm inline carries at most " + std::to_string(kPayload) +
                      " bytes a rank, but this call has " + std::to_string(inline_bytes(d, world)) +
                      "; use algorithm=None");
  if ((d.algorithm == Algorithm::two_shot && !all_reduce && !reduce_scatter) ||
      (d.algorithm == Algorithm::one_shot && reduce_scatter))
    throw BadArgument(std::string("algorithm ") + name(d.algorithm) + " does not serve " +
                      name(d.collective) +
                      (reduce_scatter ? "; it has inline and two_shot" : "; it has inline and one_shot"));
}

}  // namespace

Plan make_plan(const Descriptor& d, int world, size_t slot_bytes) {
  if (d.collective == Collective::barrier) return {Algorithm::inline_payload, 0, 1};
  if (d.algorithm != Algorithm::automatic) check_forced(d, world);
  Plan plan;
  plan.algorithm = d.algorithm == Algorithm::automatic ? choose(d, world) : d.algorithm;
  if (plan.algorithm == Algorithm::inline_payload) {
    plan.chunk = d.count;
    return plan;
  }
  const size_t item = size_of(d.dtype);
  const size_t line = std::max<size_t>(1, 64 / item);
  size_t capacity = slot_bytes / item;
  if (d.collective == Collective::reduce_scatter) capacity /= static_cast<size_t>(world);
  capacity = capacity / line * line;
  // Chunks of equal size: a short last one would leave the pipeline half empty.
  plan.chunks = std::max<size_t>(1, (d.count + capacity - 1) / capacity);
  const size_t even = (d.count + plan.chunks - 1) / plan.chunks;
  plan.chunk = std::min(capacity, round_up(std::max<size_t>(even, 1), line));
  return plan;
}

std::string reason(const Descriptor& d, const Plan& plan, int world) {
  if (d.algorithm != Algorithm::automatic) return "forced by the caller";
  switch (plan.algorithm) {
    case Algorithm::inline_payload:
      return d.collective == Collective::barrier
                 ? "nothing moves but the flags"
                 : "at most " + std::to_string(kPayload) + " bytes a rank ride in the flag line";
    case Algorithm::one_shot:
      if (d.collective != Collective::all_reduce)
        return "every byte is staged once and read by the ranks that need it";
      return "at most " + std::to_string(one_shot_limit(world)) +
             " bytes: one exchange of flags costs more than reading every rank's input";
    default:
      if (d.collective == Collective::reduce_scatter) return "each rank reduces its own shard";
      return "above " + std::to_string(one_shot_limit(world)) +
             " bytes: each rank reduces one shard, so that less moves than if every rank read every input";
  }
}

}  // namespace collectives
