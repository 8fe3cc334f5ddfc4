#include "cpu/agreement.h"

#include <algorithm>
#include <map>
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

}  // namespace collectives
