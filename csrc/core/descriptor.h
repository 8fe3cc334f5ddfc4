// What a call is: the words that every rank publishes, compares with its peers' and puts into messages.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/op.h"

namespace collectives {

// The values travel between ranks: append, never renumber.
enum class Collective : uint8_t {
  all_reduce,
  all_gather,
  reduce_scatter,
  broadcast,
  barrier,
  reduce,
  gather,
  scatter,
  all_to_all,
  all_to_all_v,  // with a count of its own for every pair of ranks
  delegated,     // all ranks agree to have another library make this call
  send,          // point to point: never in a flag line, only in messages and records
  recv,
};
enum class Algorithm : uint8_t { automatic, inline_payload, one_shot, two_shot, direct, symmetric };

inline constexpr int kCollectiveCount = 13;
inline constexpr int kAlgorithmCount = 6;

const char* name(Collective);
const char* name(Algorithm);
constexpr bool reduces(Collective c) {
  return c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::reduce;
}
// One side of the call (all_to_all: both) holds a part for each rank.
constexpr bool sharded(Collective c) {
  return c == Collective::all_gather || c == Collective::reduce_scatter || c == Collective::gather ||
         c == Collective::scatter || c == Collective::all_to_all;
}
// One rank gives, or gets, what the others do not.
constexpr bool rooted(Collective c) {
  return c == Collective::broadcast || c == Collective::reduce || c == Collective::gather ||
         c == Collective::scatter;
}
bool parse(std::string_view, Collective&);
bool parse(std::string_view, Algorithm&);

// The call's fingerprint. Sixteen bytes, compared whole: a hash could collide, and could not be printed.
// `count` is the number of elements of one part: what a rank puts in, or gets out where it puts in a part for
// each rank (broadcast: what the root sends; all_to_all: what one rank sends to one other; all_to_all_v: 0).
struct Descriptor {
  uint64_t count = 0;
  Collective collective = Collective::barrier;
  Op op = Op::sum;
  DType dtype = DType::u8;
  Algorithm algorithm = Algorithm::automatic;
  uint32_t root = 0;

  bool operator==(const Descriptor& other) const { return std::memcmp(this, &other, sizeof *this) == 0; }
  size_t bytes() const { return static_cast<size_t>(count) * size_of(dtype); }
};
static_assert(sizeof(Descriptor) == 16 && std::is_trivially_copyable_v<Descriptor>);

// Such as "all_reduce(sum, float32, 100 elements)"; the algorithm is named only where it was forced.
std::string describe(const Descriptor&);
// The root of the descriptor of a receive that takes a message from anybody.
inline constexpr uint32_t kAnyRank = 0xffffffff;
// Of a message: "recv(float32, 100 elements, from rank 2, tag 7), message 3". `root` is the other rank.
std::string describe_message(const Descriptor& message, uint32_t tag, uint64_t number);

}  // namespace collectives
