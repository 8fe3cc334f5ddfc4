#include "core/descriptor.h"

#include <array>

namespace collectives {
namespace {

constexpr std::array<const char*, kCollectiveCount> kCollectives = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "reduce", "gather",
    "scatter",    "all_to_all", "all_to_all_v",   "delegated", "send",    "recv"};
constexpr std::array<const char*, kAlgorithmCount> kAlgorithms = {"automatic", "inline", "one_shot",
                                                                  "two_shot",  "direct", "symmetric"};

template <class Enum, size_t N>
bool find(const std::array<const char*, N>& names, std::string_view text, Enum& found) {
  for (size_t i = 0; i < N; ++i)
    if (text == names[i]) {
      found = static_cast<Enum>(i);
      return true;
    }
  return false;
}

// A peer's bytes may be anything: a word out of range is printed as a number, never used as an index.
template <size_t N>
const char* at(const std::array<const char*, N>& names, size_t index) {
  return index < N ? names[index] : "?";
}

}  // namespace

const char* name(Collective c) { return at(kCollectives, static_cast<size_t>(c)); }
const char* name(Algorithm a) { return at(kAlgorithms, static_cast<size_t>(a)); }
bool parse(std::string_view text, Collective& c) { return find(kCollectives, text, c); }
bool parse(std::string_view text, Algorithm& a) { return find(kAlgorithms, text, a); }

std::string describe_message(const Descriptor& m, uint32_t tag, uint64_t number) {
  const std::string other = m.root == kAnyRank ? "any rank" : "rank " + std::to_string(m.root);
  return std::string(name(m.collective)) + "(" + name(m.dtype) + ", " + std::to_string(m.count) +
         (m.count == 1 ? " element" : " elements") +
         (m.collective == Collective::send ? ", to " : ", from ") + other + ", tag " + std::to_string(tag) +
         "), message " + std::to_string(number);
}

std::string describe(const Descriptor& d) {
  if (d.collective == Collective::barrier) return "barrier()";
  if (d.collective == Collective::delegated) return "a call that another library makes (of sparse tensors)";
  std::string text = std::string(name(d.collective)) + "(";
  if (reduces(d.collective)) text += std::string(name(d.op)) + ", ";
  text += name(d.dtype);
  if (d.collective != Collective::all_to_all_v)
    text += ", " + std::to_string(d.count) + (d.count == 1 ? " element" : " elements");
  if (rooted(d.collective)) text += ", root " + std::to_string(d.root);
  if (d.algorithm != Algorithm::automatic) text += std::string(", algorithm ") + name(d.algorithm);
  return text + ")";
}

}  // namespace collectives
