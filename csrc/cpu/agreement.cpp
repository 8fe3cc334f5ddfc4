#include "cpu/agreement.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace collectives {
namespace {

constexpr const char* kHarmless = ". No data moved; the communicator can still be used";

}  // namespace

Failure disagreement(const std::vector<Said>& said, const Descriptor& mine, uint64_t epoch) {
  std::string text = std::string(name(mine.collective)) + " (call " + std::to_string(epoch) + "): ";
  std::vector<int> culprits;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (!said[rank].refused) continue;
    const int who = static_cast<int>(rank);
    text +=
        (culprits.empty() ? "" : "; ") + list_ranks({who}) + " refused its own call: " + said[rank].reason;
    culprits.push_back(who);
  }
  if (!culprits.empty())
    return Failure(Cause::refused, name(mine.collective), epoch, culprits, text + kHarmless);

  std::map<std::string, std::vector<int>> calls;
  for (size_t rank = 0; rank < said.size(); ++rank)
    calls[describe(said[rank].descriptor)].push_back(static_cast<int>(rank));
  std::vector<std::pair<std::string, std::vector<int>>> by_size(calls.begin(), calls.end());
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  text += "the ranks do not agree on the call: ";
  bool first = true;
  for (const auto& [call, ranks] : by_size) {
    text += (first ? "" : "; ") + list_ranks(ranks) + (ranks.size() == 1 ? " calls " : " call ") + call;
    first = false;
    if (2 * ranks.size() <= said.size()) culprits.insert(culprits.end(), ranks.begin(), ranks.end());
  }
  std::sort(culprits.begin(), culprits.end());
  return Failure(Cause::mismatched, name(mine.collective), epoch, culprits, text + kHarmless);
}

std::optional<Failure> parts_disagreement(const std::vector<uint64_t>& counts, const Descriptor& mine,
                                          uint64_t epoch) {
  constexpr size_t kNamed = 4;  // pairs; where all are wrong, a list of all would hide what is wrong
  size_t world = 1;
  while (2 * world * world < counts.size()) ++world;
  std::string text;
  std::set<int> culprits;
  size_t wrong = 0;
  for (size_t from = 0; from < world; ++from)
    for (size_t to = 0; to < world; ++to) {
      const uint64_t sent = counts[2 * from * world + to], expected = counts[(2 * to + 1) * world + from];
      if (sent == expected) continue;
      culprits.insert({static_cast<int>(from), static_cast<int>(to)});
      if (++wrong > kNamed) continue;
      text += (wrong > 1 ? "; rank " : "rank ") + std::to_string(from) + " sends " + std::to_string(sent) +
              (sent == 1 ? " element" : " elements") + " to rank " + std::to_string(to) + ", which expects " +
              std::to_string(expected);
    }
  if (wrong == 0) return std::nullopt;
  if (wrong > kNamed) text += "; and " + std::to_string(wrong - kNamed) + " more pairs";
  return Failure(Cause::mismatched, name(mine.collective), epoch, {culprits.begin(), culprits.end()},
                 std::string(name(mine.collective)) + " (call " + std::to_string(epoch) +
                     "): the ranks do not agree on their parts: " + text + kHarmless);
}

}  // namespace collectives
