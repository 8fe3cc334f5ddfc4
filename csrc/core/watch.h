// What a waiting rank asks between two sleeps.
#pragma once

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
};

}  // namespace collectives
