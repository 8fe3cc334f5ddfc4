// What a communicator owns while it lives, and what must outlive it until its peers have let go.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/memory.h"
#include "core/process.h"
#include "core/watch.h"
#include "cpu/group.h"

namespace collectives {

// This rank's slice, the mappings of the peers' slices, and the watch over the peers' processes.
class Membership final : public Watch {
 public:
  using Group = collectives::Group<RealMemory>;

  Membership(int rank, int world, size_t slot_bytes, std::function<bool()> interrupted);
  ~Membership() override;

  const Announcement& announcement() const { return announcement_; }
  void connect(const std::vector<Announcement>& peers, double timeout);

  // Every rank can read every other one's private memory.
  bool direct() const { return direct_; }
  bool connected() const { return group_.has_value(); }
  bool forked() const { return process_->forked(); }
  Group& group() { return *group_; }
  const Group& group() const { return *group_; }

  // Memory of this process that its peers can read in place.
  Heap& heap() { return process_->heap(); }
  bool symmetric() { return heap().base() != nullptr && reads_peers(); }
  // This process can read that of all its peers; the windows for it are opened when first asked for.
  bool reads_peers();
  // Where offset 0 of the rank's process lies in this one. Only where reads_peers(), and the rank has said
  // that it has symmetric memory.
  char* window(int peer) const {
    return links_[static_cast<size_t>(peer)] ? windows_[static_cast<size_t>(peer)] : process_->heap().base();
  }

  std::vector<int> dead() override;
  bool interrupted() override { return interrupted_(); }
  double now() const override;
  void agreed() override { calls_.start(calls_.last()); }
  std::string last_call(int rank) const override;

  // This rank's record of its calls and, apart because they do not take turns with them, of its messages.
  FlightRing& calls() { return calls_; }
  FlightRing& messages() { return messages_; }
  // What a rank has recorded, also after its death; nothing once its memory has been given back.
  std::vector<FlightRecord> flight(int rank) const;

  // True when no rank, this one included, can touch this rank's slice any more.
  bool abandoned();
  // Lets the slice go as soon as it is abandoned.
  static void retire(std::shared_ptr<Membership> membership);

 private:
  using Control = ControlBlock<RealMemory::Word>;
  using Token = Control::Token;

  static Token token(const Announcement& announcement);
  Control& control() { return *reinterpret_cast<Control*>(slice_.memory->data()); }
  bool map(const std::vector<Announcement>& peers);
  bool holds_token(size_t rank) const;
  const FlightPages& flight_pages(size_t rank) const {
    return *reinterpret_cast<const FlightPages*>(mappings_[rank]->data() + layout_.flight());
  }

  std::shared_ptr<Process> process_;
  std::function<bool()> interrupted_;
  SliceLayout layout_;
  Process::Slice slice_;
  FlightPages& pages_;
  FlightRing calls_;
  FlightRing messages_;
  Announcement announcement_{};
  std::vector<std::shared_ptr<Mapping>> mappings_;
  std::vector<std::shared_ptr<Link>> links_;
  std::vector<Token> tokens_;   // of all ranks
  std::vector<char*> windows_;  // null for the ranks of this process
  std::optional<bool> reads_peers_;
  std::optional<Group> group_;
  bool met_ = false;  // other ranks may know of the slice
  bool direct_ = false;
};

}  // namespace collectives
