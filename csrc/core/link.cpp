#include "core/link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <system_error>

namespace collectives {
namespace {

struct Hello {
  char magic[8] = {'c', 'o', 'l', 'l', 'e', 'c', 't', '1'};
  ProcessId from{};
  Secret proof{};   // the receiver's secret
  Secret answer{};  // the sender's secret, which the reply must hold
};

socklen_t address_of(const ProcessId& id, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  char* at = address.sun_path + 1;  // a leading zero byte makes the name abstract
  at = stpcpy(at, "collectives/");
  for (unsigned char byte : id) at += snprintf(at, 3, "%02x", byte);
  return static_cast<socklen_t>(at - reinterpret_cast<char*>(&address));
}

File stream_socket() {
  File file(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!file) throw std::system_error(errno, std::generic_category(), "a Unix socket");
  return file;
}

// A peer sends its hello as soon as it is connected; a stranger who does not must not hold us up.
void limit_time(int fd) {
  const timeval limit{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

// A hello and room for one descriptor beside it.
struct Message {
  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  explicit Message(Hello& hello) : part{&hello, sizeof hello} {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

bool send_hello(int fd, Hello hello, int memory) {
  Message message(hello);
  cmsghdr* rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(rights), &memory, sizeof memory);
  return sendmsg(fd, &message.header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof hello);
}

// Small enough for one segment of a Unix stream, so it comes whole or not at all.
bool receive_hello(int fd, Hello& hello, File& memory) {
  Message message(hello);
  const ssize_t got = recvmsg(fd, &message.header, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  for (cmsghdr* h = CMSG_FIRSTHDR(&message.header); h != nullptr; h = CMSG_NXTHDR(&message.header, h))
    if (h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(h), sizeof received);
      memory = File(received);
    }
  return got == static_cast<ssize_t>(sizeof hello) && memory &&
         std::memcmp(hello.magic, Hello{}.magic, sizeof hello.magic) == 0;
}

// The peer's process, if it is a process of this user.
std::optional<pid_t> peer_pid(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.uid != geteuid())
    return std::nullopt;
  return credentials.pid;
}

File open_pidfd(pid_t pid) { return File(pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1); }

}  // namespace

File listen_at(const ProcessId& id) {
  sockaddr_un address;
  const socklen_t length = address_of(id, address);
  File file(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!file || bind(file.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(file.get(), 4096) != 0)
    throw std::system_error(errno, std::generic_category(), "listening on an abstract Unix socket");
  return file;
}

Link connect_to(const Identity& peer, const Identity& self, int memory) {
  sockaddr_un address;
  const socklen_t length = address_of(peer.id, address);
  Link link;
  link.socket = stream_socket();
  limit_time(link.socket.get());
  if (connect(link.socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) return {};
  const std::optional<pid_t> pid = peer_pid(link.socket.get());
  if (!pid) throw std::runtime_error("the socket of a rank belongs to another user");
  Hello hello;
  hello.from = self.id;
  hello.proof = peer.secret;
  hello.answer = self.secret;
  if (!send_hello(link.socket.get(), hello, memory)) return {};
  link.pid = *pid;
  link.pidfd = open_pidfd(*pid);
  return link;
}

void finish_connect(Link& link, const Identity& peer, const Identity& self) {
  Hello reply;
  if (!receive_hello(link.socket.get(), reply, link.memory))
    throw std::runtime_error("a rank closed the connection while the ranks met");
  if (reply.proof != self.secret || reply.from != peer.id)
    throw std::runtime_error("the socket of a rank is held by a stranger");
}

Link accept_one(int listener, const Identity& self, int memory, ProcessId& from) {
  Link link;
  link.socket = File(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
  if (!link.socket) return {};
  limit_time(link.socket.get());
  const std::optional<pid_t> pid = peer_pid(link.socket.get());
  Hello hello;
  if (!pid || !receive_hello(link.socket.get(), hello, link.memory) || hello.proof != self.secret) return {};
  Hello reply;
  reply.from = self.id;
  reply.proof = hello.answer;
  if (!send_hello(link.socket.get(), reply, memory)) return {};
  from = hello.from;
  link.pid = *pid;
  link.pidfd = open_pidfd(*pid);
  return link;
}

DeathSign death_sign(const Link& link) {
  if (link.pidfd) return {link.pidfd.get(), POLLIN};
  return {link.socket.get(), POLLRDHUP};
}

}  // namespace collectives
