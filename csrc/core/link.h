// The connection between two processes of one host: it proves who the other is, brings the descriptor of its
// shared memory, and tells when it dies.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "core/arena.h"
#include "core/file.h"

namespace collectives {

using ProcessId = std::array<unsigned char, 16>;  // random; names the listening socket
using Secret = std::array<unsigned char, 16>;     // random; known only through the rendezvous

struct Link {
  pid_t pid = 0;
  File socket;
  File memory;                     // the peer's memfd
  File pidfd;                      // empty where the peer lives in a pid namespace that we cannot see
  std::shared_ptr<Window> window;  // on the peer's memory, opened when first wanted
};

// A listening abstract Unix socket: leaves no file behind, and does not cross network namespaces (a path
// does, so that two containers that share a folder would take themselves for one host). Throws
// std::system_error.
File listen_at(const ProcessId& id);

// What the two ends of a link show each other.
struct Identity {
  ProcessId id;
  Secret secret;
};

// Connects to the process that listens as `peer.id` and sends this one's hello; no socket if nobody listens
// there. The listener need not have accepted: the connection and the hello wait in its queue. Throws where it
// is another user's.
Link connect_to(const Identity& peer, const Identity& self, int memory);

// Takes the listener's answer to connect_to. Throws std::runtime_error where it is not the peer's.
void finish_connect(Link& link, const Identity& peer, const Identity& self);

// Takes one waiting connection and answers it. Strangers (another user, a wrong secret, silence) are dropped
// and give no socket. `from` is set to the peer's id.
Link accept_one(int listener, const Identity& self, int memory, ProcessId& from);

// The descriptor and the poll events by which the peer's death shows: its pidfd or, where there is none,
// end-of-file. A forked child keeps a socket open long after its parent's death; a pidfd does not care.
struct DeathSign {
  int fd;
  short events;
};
DeathSign death_sign(const Link& link);

}  // namespace collectives
