#include "cpu/message.h"

#include <cstdio>

namespace collectives {
namespace {

std::string elements(uint8_t dtype, uint64_t count) {
  return std::string(dtype < kDTypeCount ? name(static_cast<DType>(dtype)) : "?") + ", " +
         std::to_string(count) + (count == 1 ? " element" : " elements");
}

}  // namespace

std::string Request::describe() const {
  Descriptor d = message_.descriptor(side_);
  d.root = static_cast<uint32_t>(peer());
  return describe_message(d, message_.tag, number_);
}

Failure Request::fail(Cause cause, const std::vector<int>& culprits, const std::string& why) const {
  return Failure(cause, name(side_), number_, culprits, describe() + ": " + why);
}

Failure Request::mismatched(const MessageHeader& theirs, int source) const {
  return fail(Cause::mismatched, {source},
              "rank " + std::to_string(source) + " sent (" + elements(theirs.dtype, theirs.count) + ", tag " +
                  std::to_string(theirs.tag) + "). That message is gone; the communicator stays usable");
}

Failure Request::broken(Standing s, int rank, bool late, const std::string& last) const {
  const std::string who = "rank " + std::to_string(s.culprit);
  std::vector<int> culprits = {s.culprit};
  const Cause cause = late ? Cause::timed_out : s.cause;
  std::string why;
  switch (cause) {
    case Cause::died:
      why = "the process of " + who + " ended before it had done its part";
      break;
    case Cause::timed_out: {
      char seconds[32];
      std::snprintf(seconds, sizeof seconds, "%g", message_.timeout);
      if (!late)
        why = s.culprit == rank ? "another rank gave up waiting for this one" : who + " was late elsewhere";
      else if (peer() == kAnySource) {
        why = std::string("no rank sent it within ") + seconds + " s";
        culprits = {};
      } else if (offset_ > 0)
        why = who + (sends() ? " took" : " sent") + " only a part of it and nothing for " + seconds + " s";
      else
        why = who + (sends() ? " did not take it within " : " did not send it within ") + seconds + " s";
      break;
    }
    case Cause::aborted:
      why = "aborted by " + who;
      break;
    case Cause::interrupted:
      why = "interrupted by a signal on " + who;
      break;
    case Cause::closed:
      why = s.culprit == rank ? "this communicator is closed" : who + " closed the communicator";
      break;
    default:
      why = "the communicator is broken";
  }
  if (s.state == Standing::failed && !last.empty()) why += "; " + last;
  if (s.state == Standing::failed)
    why += ". The communicator cannot be used any more: close it and make a new one";
  return fail(cause, culprits, why);
}

void Request::finish() {
  if (done_ != nullptr) done_(context_, failure_ ? &*failure_ : nullptr);
  finished_.store(true, std::memory_order_release);
  finished_.notify_all();
}

}  // namespace collectives
