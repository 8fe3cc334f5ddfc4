#include "cpu/membership.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <new>

namespace collectives {
namespace {

constexpr char kMagic[8] = {'c', 'o', 'l', 'l', '-', 'v', '0', '1'};

// 0: a rank of this process. Negative: one in a pid namespace that this process cannot see into.
pid_t pid_of(const std::shared_ptr<Link>& link) {
  if (!link) return 0;
  return link->pid > 0 ? link->pid : -1;
}

void check(const std::vector<Announcement>& all, const Announcement& mine) {
  std::map<std::string, std::vector<int>> hosts;
  if (all.size() != mine.world)
    throw BadArgument("the rendezvous gave " + std::to_string(all.size()) + " announcements for a world of " +
                      std::to_string(mine.world));
  for (size_t i = 0; i < all.size(); ++i) {
    const Announcement& peer = all[i];
    const std::string who = "rank " + std::to_string(i);
    if (std::memcmp(peer.magic, kMagic, sizeof kMagic) != 0)
      throw BadArgument(who + " runs another version of collectives: install one version for all ranks");
    if (peer.world != mine.world || peer.rank != i)
      throw BadArgument(who + " takes itself for rank " + std::to_string(peer.rank) + " of " +
                        std::to_string(peer.world) + ", rank " + std::to_string(mine.rank) + " counts " +
                        std::to_string(mine.world) + " ranks");
    if (peer.bytes != mine.bytes || peer.slot_bytes != mine.slot_bytes)
      throw BadArgument(who + " has staging slots of another size than rank " + std::to_string(mine.rank));
    hosts[std::string(reinterpret_cast<const char*>(peer.host), sizeof peer.host)].push_back(
        static_cast<int>(i));
  }
  if (hosts.size() == 1) return;
  std::string text = "the ranks are on " + std::to_string(hosts.size()) + " hosts or network namespaces (";
  bool first = true;
  for (const auto& [_, ranks] : hosts) {
    text += (first ? "" : "; ") + list_ranks(ranks);
    first = false;
  }
  throw BadArgument(text + "): this version connects the ranks of one host");
}

}  // namespace

Membership::Membership(int rank, int world, size_t slot_bytes, std::function<bool()> interrupted)
    : process_(Process::current()),
      interrupted_(std::move(interrupted)),
      layout_(slot_bytes, world),
      slice_(process_->allocate(layout_.total())),
      pages_(*new (slice_.memory->data() + layout_.flight()) FlightPages),
      calls_(pages_.calls),
      messages_(pages_.messages) {
  open_flight_pages(pages_);
  std::memcpy(announcement_.magic, kMagic, sizeof kMagic);
  announcement_.process = process_->identity().id;
  announcement_.secret = process_->identity().secret;
  std::memcpy(announcement_.host, Process::host(), sizeof announcement_.host);
  announcement_.address = reinterpret_cast<uint64_t>(slice_.memory->data());
  announcement_.offset = slice_.offset;
  announcement_.bytes = layout_.total();
  announcement_.slot_bytes = slot_bytes;
  announcement_.rank = static_cast<uint32_t>(rank);
  announcement_.world = static_cast<uint32_t>(world);
  announcement_.pid = getpid();
  announcement_.serial = slice_.serial;
  new (slice_.memory->data()) Control;
  control().standing = Standing{}.word();
  control().token = token(announcement_);
}

Membership::~Membership() {
  if (!process_->forked()) {
    // After a failed connect some peer may still look at it.
    if (connected() || !met_) process_->release(slice_);
    return;
  }
  // The mappings are not in a forked child; something else may lie at their addresses by now.
  new std::shared_ptr<Mapping>(slice_.memory);
  new std::vector<std::shared_ptr<Mapping>>(std::move(mappings_));
}

Membership::Token Membership::token(const Announcement& a) {
  Token token{};
  std::memcpy(token.process, a.process.data(), sizeof token.process);
  token.rank = a.rank;
  token.world = a.world;
  token.serial = a.serial;
  return token;
}

void Membership::connect(const std::vector<Announcement>& peers, double timeout) {
  check(peers, announcement_);
  try {
    met_ = true;
    process_->meet(peers, timeout, interrupted_);
    bool direct = map(peers);
    std::vector<char*> slices;
    std::vector<pid_t> pids;
    for (size_t i = 0; i < peers.size(); ++i) {
      slices.push_back(mappings_[i]->data());
      pids.push_back(pid_of(links_[i]));
    }
    group_.emplace(static_cast<int>(announcement_.rank), std::move(slices), std::move(pids), layout_, *this);
    // The first exchange: all ranks are there, and tell whether they may read each other's memory.
    const unsigned bank = group_->next_bank();
    group_->begin(Descriptor{}, timeout);
    group_->enter(&direct, sizeof direct);
    group_->reset_epoch();
    for (size_t i = 0; i < peers.size(); ++i)
      direct &= group_->line(static_cast<int>(i), bank).payload[0] == 1;
    direct_ = direct;
  } catch (...) {
    // Peers that have mapped this rank's slice must not wait for it.
    if (!group_)
      control().standing =
          Standing{Standing::closed, Cause::closed, static_cast<uint16_t>(announcement_.rank)}.word();
    throw;
  }
}

// Maps every slice and reads its token back, through the mapping and, where the kernel lets us (ptrace rules,
// seccomp, containers), out of the peer's own memory. Returns whether the latter worked for all.
bool Membership::map(const std::vector<Announcement>& peers) {
  bool direct = true;
  for (const Announcement& peer : peers) {
    mappings_.push_back(process_->map(peer));
    links_.push_back(process_->link(peer));
    const Token& expected = tokens_.emplace_back(token(peer));
    if (std::memcmp(mappings_.back()->data() + offsetof(Control, token), &expected, sizeof expected) != 0)
      throw std::runtime_error("the memory that rank " + std::to_string(peer.rank) +
                               " passed does not hold its token: the ranks do not share memory");
    Token pulled{};
    direct &= RealMemory::pull(pid_of(links_.back()), &pulled, peer.address + offsetof(Control, token),
                               sizeof pulled) &&
              std::memcmp(&pulled, &expected, sizeof pulled) == 0;
  }
  return direct;
}

bool Membership::reads_peers() {
  if (!reads_peers_) {
    for (const auto& link : links_) windows_.push_back(link ? process_->window(*link) : nullptr);
    reads_peers_ = true;
    for (size_t i = 0; i < links_.size(); ++i) *reads_peers_ &= !links_[i] || windows_[i] != nullptr;
  }
  return *reads_peers_;
}

std::vector<int> Membership::dead() {
  std::vector<pollfd> polled;
  for (const auto& link : links_) {
    const DeathSign sign = link ? death_sign(*link) : DeathSign{-1, 0};
    polled.push_back({sign.fd, sign.events, 0});
  }
  std::vector<int> ranks;
  if (poll(polled.data(), polled.size(), 0) > 0)
    for (size_t i = 0; i < polled.size(); ++i)
      if (polled[i].revents != 0) ranks.push_back(static_cast<int>(i));
  return ranks;
}

double Membership::now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// False once the slice is zero, or another communicator's.
bool Membership::holds_token(size_t rank) const {
  return std::memcmp(mappings_[rank]->data() + offsetof(Control, token), &tokens_[rank], sizeof(Token)) == 0;
}

std::string Membership::last_call(int rank) const {
  const std::string last = collectives::last_call(read_flight(flight_pages(static_cast<size_t>(rank))));
  const std::string who = "rank " + std::to_string(rank);
  return last.empty() ? who + " has made no call" : who + "'s last call: " + last;
}

std::vector<FlightRecord> Membership::flight(int rank) const {
  const auto index = static_cast<size_t>(rank);
  if (!connected() || forked() || rank < 0 || index >= mappings_.size() || !holds_token(index)) return {};
  std::vector<FlightRecord> records = read_flight(flight_pages(index));
  return holds_token(index) ? records : std::vector<FlightRecord>{};
}

bool Membership::abandoned() {
  const std::vector<int> gone = dead();
  for (size_t i = 0; i < mappings_.size(); ++i) {
    const int peer = static_cast<int>(i);
    // A peer that found all closed before we did has given its slice back.
    if (holds_token(i) && !group_->has_left(peer) && std::find(gone.begin(), gone.end(), peer) == gone.end())
      return false;
  }
  return true;
}

void Membership::retire(std::shared_ptr<Membership> membership) {
  if (membership->forked() || !membership->connected()) return;
  const std::shared_ptr<Process> process = membership->process_;
  process->retire([membership = std::move(membership)] { return membership->abandoned(); });
}

}  // namespace collectives
