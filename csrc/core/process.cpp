#include "core/process.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "core/failure.h"

namespace collectives {
namespace {

std::mutex instance_mutex;
std::shared_ptr<Process>* instance = nullptr;  // never destroyed: threads may outlive static destructors

void before_fork() {
  instance_mutex.lock();
  if (instance != nullptr) (*instance)->mutex().lock();
}
void after_fork_in_parent() {
  if (instance != nullptr) (*instance)->mutex().unlock();
  instance_mutex.unlock();
}
void after_fork_in_child() {
  if (instance != nullptr) {
    (*instance)->abandon();
    (*instance)->mutex().unlock();
    instance = nullptr;  // leaked: communicators of the parent may still point to it
  }
  instance_mutex.unlock();
}

template <class Bytes>
void fill_random(Bytes& bytes) {
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
}

}  // namespace

std::shared_ptr<Process> Process::current() {
  std::lock_guard lock(instance_mutex);
  static const int registered = pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (registered != 0) throw std::system_error(registered, std::generic_category(), "pthread_atfork");
  if (instance == nullptr) instance = new std::shared_ptr<Process>(std::make_shared<Process>());
  return *instance;
}

void Process::give_back(void* memory) noexcept {
  std::shared_ptr<Process> process;
  {
    std::lock_guard lock(instance_mutex);
    if (instance == nullptr) return;
    process = *instance;
  }
  process->heap().give_back(memory);
}

Process::Process() {
  fill_random(identity_.id);
  fill_random(identity_.secret);
  listener_ = listen_at(identity_.id);
}

// The kernel's boot id and the network namespace, which abstract sockets do not cross. That memory is really
// shared is proved later by reading a token back; this tells early, and in words, that it cannot be.
const unsigned char* Process::host() {
  static const std::array<unsigned char, 16> id = [] {
    std::array<unsigned char, 16> bytes{};
    uint64_t hash[2] = {14695981039346656037u, 1099511628211u};  // FNV-1a, offset and prime
    auto mix = [&](const void* data, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        hash[0] = (hash[0] ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
        hash[1] = (hash[1] + static_cast<const unsigned char*>(data)[i]) * 6364136223846793005u;
      }
    };
    char text[64];
    if (File file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC)); file)
      if (const ssize_t n = read(file.get(), text, sizeof text); n > 0) mix(text, static_cast<size_t>(n));
    struct stat status{};
    if (stat("/proc/self/ns/net", &status) == 0) mix(&status.st_ino, sizeof status.st_ino);
    std::memcpy(bytes.data(), hash, sizeof hash);
    return bytes;
  }();
  return id.data();
}

Process::Slice Process::allocate(size_t bytes) {
  std::unique_lock lock(mutex_);
  sweep(lock);
  Slice slice{arena_.allocate(bytes), ++slices_, nullptr};
  slice.memory = std::make_shared<Mapping>(arena_.fd(), slice.offset, bytes);
  own_[slice.offset] = slice.memory;
  return slice;
}

void Process::release(const Slice& slice) {
  std::lock_guard lock(mutex_);
  own_.erase(slice.offset);
  arena_.release(slice.offset, slice.memory->bytes());
}

void Process::retire(std::function<bool()> finish) {
  std::unique_lock lock(mutex_);
  retired_.push_back(std::move(finish));
  sweep(lock);
}

// The work may call release(), so it runs without the lock. Links to the dead go too; a communicator that
// still has one keeps it.
void Process::sweep(std::unique_lock<std::mutex>& lock) {
  std::vector<std::function<bool()>> waiting;
  waiting.swap(retired_);
  lock.unlock();
  std::vector<std::function<bool()>> left;
  for (auto& finish : waiting)
    if (!finish()) left.push_back(std::move(finish));
  waiting.clear();
  lock.lock();
  std::move(left.begin(), left.end(), std::back_inserter(retired_));
  for (auto it = links_.begin(); it != links_.end();) {
    const DeathSign sign = death_sign(*it->second);
    pollfd polled{sign.fd, sign.events, 0};
    it = poll(&polled, 1, 0) == 1 ? links_.erase(it) : std::next(it);
  }
}

bool Process::linked(const ProcessId& id) {
  std::lock_guard lock(mutex_);
  return id == identity_.id || links_.count(id) != 0;
}

void Process::meet(const std::vector<Announcement>& peers, double seconds,
                   const std::function<bool()>& stop) {
  std::lock_guard one_at_a_time(meeting_);
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  struct Pending {
    Identity peer;
    Link link;
  };
  std::vector<Pending> pending;  // asked, not yet answered
  auto is_pending = [&](const ProcessId& id) {
    return std::any_of(pending.begin(), pending.end(), [&](const Pending& p) { return p.peer.id == id; });
  };
  while (true) {
    std::vector<uint32_t> missing;
    for (const Announcement& peer : peers) {
      if (linked(peer.process)) continue;
      missing.push_back(peer.rank);
      // One connection a pair: the process with the larger id asks.
      if (identity_.id > peer.process && !is_pending(peer.process))
        if (Link link = connect_to({peer.process, peer.secret}, identity_, arena_.fd()); link.socket)
          pending.push_back({{peer.process, peer.secret}, std::move(link)});
    }
    if (missing.empty()) return;
    if (stop()) throw Failure(Cause::interrupted, "rendezvous", 0, {}, "interrupted while the ranks met");
    if (Clock::now() > deadline) {
      std::string text = "no connection with rank";
      for (uint32_t rank : missing) text += " " + std::to_string(rank);
      throw std::runtime_error(text + ": its process ended while the ranks met, or it cannot be reached");
    }
    std::vector<pollfd> polled = {{listener_.get(), POLLIN, 0}};
    for (const Pending& p : pending) polled.push_back({p.link.socket.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), 10) <= 0) continue;
    std::vector<Pending> unanswered;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (polled[i + 1].revents == 0) {
        unanswered.push_back(std::move(pending[i]));
        continue;
      }
      finish_connect(pending[i].link, pending[i].peer, identity_);
      std::lock_guard lock(mutex_);
      links_[pending[i].peer.id] = std::make_shared<Link>(std::move(pending[i].link));
    }
    pending.swap(unanswered);
    if (polled[0].revents != 0) {
      ProcessId from;
      if (Link link = accept_one(listener_.get(), identity_, arena_.fd(), from); link.socket) {
        std::lock_guard lock(mutex_);
        links_[from] = std::make_shared<Link>(std::move(link));
      }
    }
  }
}

std::shared_ptr<Mapping> Process::map(const Announcement& peer) {
  std::lock_guard lock(mutex_);
  if (peer.process == identity_.id) {
    const auto own = own_.find(peer.offset);
    std::shared_ptr<Mapping> memory = own == own_.end() ? nullptr : own->second.lock();
    if (!memory)
      throw std::runtime_error("a rank of this process closed its communicator while the ranks met");
    return memory;
  }
  return std::make_shared<Mapping>(links_.at(peer.process)->memory.get(), peer.offset, peer.bytes);
}

std::shared_ptr<Link> Process::link(const Announcement& peer) {
  std::lock_guard lock(mutex_);
  return peer.process == identity_.id ? nullptr : links_.at(peer.process);
}

char* Process::window(Link& link) {
  std::lock_guard lock(mutex_);
  if (!link.window) link.window = Window::open(link.memory.get(), Window::Of::peer);
  return link.window ? link.window->data() : nullptr;
}

void Process::abandon() {
  forked_.store(true, std::memory_order_relaxed);
  listener_.reset();
  arena_.close();
  for (auto& [_, link] : links_) {
    // Windows are not in the child; something else may lie at their addresses by now.
    new std::shared_ptr<Window>(std::move(link->window));
    *link = {};
  }
}

}  // namespace collectives
