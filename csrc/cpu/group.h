// The flag exchange of one group of ranks: publishing, waiting for all, and what makes a wait end badly.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "core/failure.h"
#include "core/watch.h"
#include "cpu/agreement.h"
#include "cpu/layout.h"

namespace collectives {

// Modular: sequence numbers wrap, and two ranks are never 2^31 exchanges apart.
inline bool reached(uint32_t seen, uint32_t target) { return static_cast<int32_t>(seen - target) >= 0; }

// The exchange. Each rank counts its exchanges; exchange s is: publish one line with sequence number s, then
// wait until every rank's line says s. All ranks make the same exchanges: how many a call makes follows from
// its descriptor, the far and symmetric bits of the exchange before, and a rank whose descriptor differs is
// found by the first.
//
// Memory order. publish() releases the publisher's earlier writes (payload, descriptor, staging slots) and
// the wait acquires every peer's; so an exchange is a barrier for the data too.
//
// Reuse. Lines and slots come in two banks, by parity of s. A rank that has waited for all of exchange s-1
// knows that every rank has published s-1, and so has finished everything that it did between s-2 and s-1, in
// program order. So the bank of s-2 is free to be written for s. begin() establishes this before anything is
// staged.
//
// Failure. A wait ends with an exception when a rank that has not arrived is dead, closed or failed, when
// abort() is called, when the timeout is over, or when a signal handler raised.
template <class Memory>
class Group {
 public:
  using Word = typename Memory::Word;
  using Control = ControlBlock<Word>;
  using Line = FlagLine<Word>;

  // `pids`: of the peers as this process sees them; 0 for ranks of this very process, negative where it
  // cannot see them.
  Group(int rank, std::vector<char*> slices, std::vector<pid_t> pids, SliceLayout layout, Watch& watch)
      : rank_(rank), slices_(std::move(slices)), pids_(std::move(pids)), layout_(layout), watch_(watch) {}

  int rank() const { return rank_; }
  int world() const { return static_cast<int>(slices_.size()); }
  const SliceLayout& layout() const { return layout_; }
  uint64_t epoch() const { return epoch_; }  // calls begun; from any thread

  char* slice(int peer) const { return slices_[peer]; }
  char* staging(int peer, unsigned bank) const { return slices_[peer] + layout_.staging(bank); }
  char* result(int peer, unsigned bank) const { return slices_[peer] + layout_.result(bank); }
  const Line& line(int peer, unsigned bank) const { return control(peer).banks[bank].line; }
  unsigned next_bank() const { return (sequence_ + 1) & 1; }
  // Some peer sits behind another cache than this rank: what it is to read is better written past the caches.
  bool far() const { return publish_seconds_ > kFarSeconds; }

  // The same of any rank, as all ranks said it in the last exchange: all ranks get the same answer.
  bool any_far() const { return any_far_; }
  // This rank's process has symmetric memory and reads its peers'. It says so in every line from now on.
  void offer_symmetric(bool able) { symmetric_ = able; }
  // All ranks said so in the last exchange.
  bool all_symmetric() const { return all_symmetric_; }
  // Reads the private memory of a peer that is in the same call and has told where; false where that cannot
  // be done.
  bool pull(int peer, void* to, uint64_t from, size_t bytes) const {
    return Memory::pull(pids_[static_cast<size_t>(peer)], to, from, bytes);
  }

  // The exchange that proves a new group is no call of the user's.
  void reset_epoch() { epoch_ = 0; }

  Standing standing(int peer) const { return Standing::from(Memory::load(control(peer).standing)); }
  bool healthy() const { return standing(rank_).state == Standing::open; }
  bool closed() const { return standing(rank_).state == Standing::closed; }

  // Opens the next call, in which every wait ends after `timeout` seconds: afterwards any_far() is what all
  // ranks see, and the slots of next_bank() may be written. Waits only if the call before was refused, for
  // the peers' lines of that one.
  void begin(const Descriptor& descriptor, double timeout) {
    current_ = descriptor;
    epoch_.store(epoch_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (!healthy()) throw broken();
    timeout_ = timeout;
    settle();
    // A late rank must not get a result that the others gave up on.
    if (std::optional<Failure> failure = failed_peer(sequence_ + 1)) throw *failure;
  }

  // The first exchange of a call: all ranks must have described the same call.
  void enter(const void* payload = nullptr, size_t bytes = 0) {
    publish(Line::call, true, payload, bytes);
    settle();
    check_agreement();
    if (current_.bytes() > kPayload) watch_.agreed();
  }

  // A later exchange of the same call.
  void exchange(const void* payload = nullptr, size_t bytes = 0) {
    publish(Line::call, false, payload, bytes);
    settle();
  }

  // Takes this rank's part in a call that it opened and will not make: the peers raise at once. Does not wait
  // for them.
  void refuse(const std::string& reason) {
    std::string said = reason;
    if (said.size() > kPayload) {
      size_t end = kPayload - 3;
      while (end > 0 && (static_cast<unsigned char>(said[end]) & 0xC0) == 0x80)
        --end;  // not within a character
      said.replace(end, std::string::npos, "...");
    }
    publish(Line::refused, true, said.data(), said.size());
  }

  // Throws where a peer has failed or left in the middle of the call.
  void check_peers() {
    if (std::optional<Failure> failure = failed_peer(sequence_)) throw *failure;
  }

  // From any thread, also while another one waits.
  void abort() { record({Standing::failed, Cause::aborted, static_cast<uint16_t>(rank_)}); }
  // Records why this rank stops, for itself and for its peers; the first reason stays.
  void record(Standing s) {
    if (healthy()) set_standing(s);
  }
  void close() {
    if (standing(rank_).state == Standing::open)
      set_standing({Standing::closed, Cause::closed, uint16_t(rank_)});
    else
      set_standing({Standing::closed, standing(rank_).cause, standing(rank_).culprit});
  }

  // The rank has closed, and so will touch nobody's slice any more.
  bool has_left(int peer) const { return standing(peer).state == Standing::closed; }

 private:
  static constexpr int kYields = 200;            // looks of about a microsecond each before the first sleep
  static constexpr double kYieldSeconds = 2e-3;  // on a crowded machine a single one may take 50 ms
  // A flag line that a peer has read must be taken back from its cache to be written. Measured: 60 ns where
  // the two cores share an L3, 150 ns where they do not. Where ranks run changes (virtual CPUs wander), so it
  // is sampled.
  static constexpr double kFarSeconds = 100e-9;
  // A sample costs about as much as the exchange itself: small calls take one now and then.
  static constexpr size_t kSampleBytes = 32 << 10;
  static constexpr double kPauseSeconds = 100e-6;
  static constexpr uint32_t kSampleEvery = 8;
  static constexpr int kSleepMillis = 20;  // so a death is noticed within this time

  Control& control(int peer) const { return *reinterpret_cast<Control*>(slices_[peer]); }

  void publish(typename Line::Kind kind, bool first, const void* payload, size_t bytes) {
    ++sequence_;
    const bool timed = current_.bytes() >= kSampleBytes || sequence_ % kSampleEvery == 0;
    if (timed) Memory::drain();
    const double before = timed ? watch_.now() : 0;
    // After a pause, or with a peer to be woken, the time says nothing about caches.
    const bool sampled = timed && !(first && before - published_ > kPauseSeconds) &&
                         Memory::load(control(rank_).sleepers) == 0;
    Line& line = control(rank_).banks[sequence_ & 1].line;
    line.kind = kind;
    line.far = far();
    line.symmetric = symmetric_;
    line.payload_bytes = static_cast<uint8_t>(bytes);
    Memory::write(&line.descriptor, &current_, sizeof current_, false);
    Memory::write(line.payload, payload, bytes, false);
    Memory::publish(line.sequence, sequence_, control(rank_).sleepers);
    // A moving average that follows in three samples; one in which the core was lost does not sway it.
    if (timed) published_ = watch_.now();
    if (sampled) publish_seconds_ += (std::min(published_ - before, 2 * kFarSeconds) - publish_seconds_) / 4;
  }

  // Waits until every rank has published the exchange that this rank published last.
  void settle() {
    if (settled_ == sequence_) return;
    for (int peer = 0; peer < world(); ++peer) {
      if (peer == rank_) continue;
      const Word& flag = line(peer, sequence_ & 1).sequence;
      int spins = kSpins;
      while (!reached(Memory::load(flag), sequence_)) {
        if (--spins == 0) {
          wait(peer, flag);
          break;
        }
        Memory::pause();
      }
    }
    any_far_ = false;
    all_symmetric_ = true;
    for (int peer = 0; peer < world(); ++peer) {
      any_far_ |= line(peer, sequence_ & 1).far;
      all_symmetric_ &= line(peer, sequence_ & 1).symmetric;
    }
    settled_ = sequence_;
  }

  // The patient half of a wait: give the core away, then sleep, and look for reasons to stop.
  void wait(int peer, const Word& flag) {
    const double yield_until = watch_.now() + kYieldSeconds;
    for (int i = 0; i < kYields && watch_.now() < yield_until; ++i) {
      Memory::yield();
      if (reached(Memory::load(flag), sequence_)) return;
    }
    Word& sleepers = control(peer).sleepers;
    const double started = watch_.now();
    while (true) {
      if (const std::optional<Standing> reason = reason_to_stop(started)) {
        // A peer may have published and then left in peace: what it published counts. A signal handler's
        // exception must come out in any case.
        if (reached(Memory::load(flag), sequence_) && reason->cause != Cause::interrupted) return;
        throw fall(*reason);
      }
      Memory::enter_sleep(sleepers);
      const uint32_t seen = Memory::load_before_sleep(flag);
      if (!reached(seen, sequence_)) Memory::sleep(flag, seen, kSleepMillis);
      Memory::leave_sleep(sleepers);
      if (reached(Memory::load(flag), sequence_)) return;
    }
  }

  std::optional<Standing> reason_to_stop(double started) {
    if (!healthy()) return standing(rank_);
    // Standings before deaths: a peer that raised and then exited has said who was to blame.
    if (const std::optional<Standing> theirs = fallen_peer(sequence_)) return theirs;
    for (int peer : watch_.dead())
      if (!arrived(peer, sequence_))
        return Standing{Standing::failed, Cause::died, static_cast<uint16_t>(peer)};
    if (watch_.interrupted())
      return Standing{Standing::failed, Cause::interrupted, static_cast<uint16_t>(rank_)};
    if (watch_.now() - started > timeout_)
      if (const std::vector<int> late = missing(); !late.empty()) {
        expired_ = true;
        return Standing{Standing::failed, Cause::timed_out, static_cast<uint16_t>(late.front())};
      }
    return std::nullopt;
  }

  // Why a peer can take no part in exchange `sequence`: it failed, or it closed without having published it.
  std::optional<Standing> fallen_peer(uint32_t sequence) const {
    for (int peer = 0; peer < world(); ++peer) {
      const Standing s = standing(peer);
      if (s.state == Standing::open || (s.cause == Cause::closed && arrived(peer, sequence))) continue;
      return Standing{Standing::failed, s.cause == Cause::interrupted ? Cause::aborted : s.cause, s.culprit};
    }
    return std::nullopt;
  }
  std::optional<Failure> failed_peer(uint32_t sequence) {
    const std::optional<Standing> theirs = fallen_peer(sequence);
    return theirs ? std::optional<Failure>(fall(*theirs)) : std::nullopt;
  }

  bool arrived(int peer, uint32_t sequence) const {
    return reached(Memory::load(line(peer, sequence & 1).sequence), sequence);
  }

  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int peer = 0; peer < world(); ++peer)
      if (peer != rank_ && !arrived(peer, sequence_)) ranks.push_back(peer);
    return ranks;
  }

  void set_standing(Standing s) {
    Memory::publish(control(rank_).standing, s.word(), control(rank_).sleepers);
    Memory::wake(control(rank_).banks[0].line.sequence);
    Memory::wake(control(rank_).banks[1].line.sequence);
  }

  Failure fall(Standing s) {
    record(s);
    return broken();
  }

  Failure broken();
  void check_agreement() const;

  int rank_;
  std::vector<char*> slices_;
  std::vector<pid_t> pids_;
  SliceLayout layout_;
  Watch& watch_;
  double timeout_ = 0;            // of the current call; of the one that failed once one has
  bool expired_ = false;          // this rank itself gave up waiting
  std::optional<Failure> first_;  // what the first call said that found the group broken
  uint32_t sequence_ = 0;         // exchanges published
  uint32_t settled_ = 0;          // the last exchange that was waited for
  std::atomic<uint64_t> epoch_{0};
  bool any_far_ = false;
  bool symmetric_ = false;
  bool all_symmetric_ = false;
  double publish_seconds_ = 0;  // what it takes to publish a line
  double published_ = 0;        // when a line was last published, where that was timed
  Descriptor current_;
};

template <class Memory>
void Group<Memory>::check_agreement() const {
  const unsigned bank = sequence_ & 1;
  bool same = true;
  for (int peer = 0; peer < world(); ++peer) {
    const Line& theirs = line(peer, bank);
    same &= theirs.kind == Line::call && theirs.descriptor == current_;
  }
  if (same) return;
  std::vector<Said> said;
  for (int peer = 0; peer < world(); ++peer) {
    const Line& theirs = line(peer, bank);
    char reason[kPayload];
    Memory::read(reason, theirs.payload, theirs.payload_bytes, false);
    said.push_back(
        {theirs.kind == Line::refused, theirs.descriptor, std::string(reason, theirs.payload_bytes)});
  }
  throw disagreement(said, current_, epoch_);
}

template <class Memory>
Failure Group<Memory>::broken() {
  const Breakdown now{current_, epoch_, rank_, world(), standing(rank_), timeout_, expired_, missing()};
  if (now.standing.state == Standing::failed && first_) return still_broken(now, *first_);
  Failure failure = collectives::broken(now, watch_);
  if (now.standing.state == Standing::failed) first_ = failure;
  return failure;
}

}  // namespace collectives
