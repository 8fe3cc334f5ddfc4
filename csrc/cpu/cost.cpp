#include "cpu/cost.h"

#include <algorithm>

namespace collectives {
namespace {

constexpr double kBase = 0.3e-6;  // fingerprint, plan and record of a call
// One flag line to be published and one of each peer to be read, where ranks share a last-level cache and
// where they do not.
constexpr double kExchangeNear = 0.10e-6, kExchangeFar = 0.25e-6;
// Of one rank while all copy, per byte that it reads and writes: in the caches, and beyond them.
constexpr double kCacheBandwidth = 12e9, kMemoryBandwidth = 5e9;
constexpr size_t kCached = 4 << 20;

}  // namespace

double estimate(const Call& call, const Plan& plan, int world, bool far) {
  const Descriptor& d = call.descriptor;
  const double n = static_cast<double>(d.bytes());
  const double w = world;
  double moved = 0;
  size_t exchanges = plan.chunks;
  switch (d.collective) {
    case Collective::all_reduce:
    case Collective::reduce:
      moved = plan.algorithm == Algorithm::two_shot || plan.algorithm == Algorithm::symmetric
                  ? (3 * (w - 1) / w + 1 / w) * n
                  : (w + 1) * n;
      if (plan.algorithm == Algorithm::two_shot) ++exchanges;
      break;
    case Collective::reduce_scatter:
    case Collective::all_to_all:
    case Collective::scatter:
      moved = 2 * w * n;
      break;
    case Collective::all_gather:
    case Collective::gather:
      moved = (w + 1) * n;
      break;
    case Collective::all_to_all_v:
      for (int peer = 0; peer < world; ++peer)
        moved += static_cast<double>((call.send_counts[peer] + call.recv_counts[peer]) * size_of(d.dtype));
      break;
    case Collective::broadcast:
      moved = 2 * n;
      break;
    default:
      break;
  }
  if (plan.algorithm == Algorithm::direct) exchanges = 2;
  const double flags = static_cast<double>(exchanges) * (far ? kExchangeFar : kExchangeNear) * (w - 1);
  return kBase + flags + moved / (moved < kCached ? kCacheBandwidth : kMemoryBandwidth);
}

}  // namespace collectives
