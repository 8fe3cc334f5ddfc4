#include "cpu/agreement.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

namespace collectives {
namespace {

constexpr int kToldRanks = 3;  // whose last calls an error tells

constexpr const char* kHarmless = ". No data moved; the communicator can still be used";

std::string which_call(const Breakdown& b) {
  return describe(b.call) + ", call " + std::to_string(b.epoch) + " on rank " + std::to_string(b.rank) +
         " of " + std::to_string(b.world) + ": ";
}

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
  if (!culprits.empty()) {
    if (text.back() == '.') text.pop_back();  // of a reason that was cut
    return Failure(Cause::refused, name(mine.collective), epoch, culprits, text + kHarmless);
  }

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

Failure still_broken(const Breakdown& b, const Failure& first) {
  return Failure(first.cause, name(b.call.collective), b.epoch, first.ranks,
                 which_call(b) + "not made, since the communicator has been broken since " + first.what());
}

Failure broken(const Breakdown& b, const Watch& watch) {
  const std::string who = "rank " + std::to_string(b.standing.culprit);
  std::string text = which_call(b);
  std::vector<int> culprits = {b.standing.culprit};
  switch (b.standing.cause) {
    case Cause::died:
      text += "the process of " + who + " ended before it had done its part";
      break;
    case Cause::timed_out: {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g", b.timeout);
      if (std::find(b.late.begin(), b.late.end(), b.standing.culprit) != b.late.end()) culprits = b.late;
      if (b.expired)
        text += list_ranks(culprits) + " did not arrive within the timeout of " + seconds + " s";
      else if (b.standing.culprit == b.rank)
        text += list_ranks(culprits) + " did not arrive in time: another rank gave up waiting for this one";
      else
        text += list_ranks(culprits) +
                " did not arrive in time for another rank (the timeout of this one: " + seconds + " s)";
      break;
    }
    case Cause::aborted:
      text += "aborted by " + who;
      break;
    case Cause::interrupted:
      text += "interrupted by a signal on " + who;
      break;
    case Cause::closed:
      text += b.standing.culprit == b.rank ? "this communicator is closed" : who + " closed the communicator";
      break;
    default:
      text += "the communicator is broken";
  }
  if (b.standing.state == Standing::failed) {
    int told = 0;
    for (int culprit : culprits)
      if (culprit != b.rank && told++ < kToldRanks)
        if (const std::string last = watch.last_call(culprit); !last.empty()) text += "; " + last;
    text += ". The communicator cannot be used any more: close it and make a new one";
  }
  return Failure(b.standing.cause, name(b.call.collective), b.epoch, culprits, text);
}

}  // namespace collectives
