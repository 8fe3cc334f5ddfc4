// What a waiting rank asks between two sleeps, and what becomes known to the process around it.
#pragma once

#include <string>
#include <vector>

namespace collectives {

class Watch {
 public:
  virtual ~Watch() = default;
  // Ranks whose process has ended. Cheap enough to be asked a few hundred times a second.
  virtual std::vector<int> dead() = 0;
  // True if a signal handler of this process raised (Ctrl-C); the call must end.
  virtual bool interrupted() = 0;
  virtual double now() const = 0;  // seconds, monotone

  // All ranks have described the same call. Not told of calls that end with it anyway.
  virtual void agreed() {}
  // "rank 3's last call: ..., completed 2.0 s ago" as that rank has recorded it, alive or dead; for messages.
  virtual std::string last_call(int) const { return ""; }
};

}  // namespace collectives
