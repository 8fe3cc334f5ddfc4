#include "cpu/flight.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <optional>

namespace collectives {
namespace {

using Words = std::array<uint64_t, FlightSlot::kWords>;

// Where a record's fields lie in words; the last word is put together from its bytes.
constexpr size_t kEpoch = offsetof(FlightRecord, epoch) / sizeof(uint64_t);
constexpr size_t kCount = offsetof(FlightRecord, count) / sizeof(uint64_t);
constexpr size_t kQueued = offsetof(FlightRecord, queued_at) / sizeof(uint64_t);
constexpr size_t kStarted = offsetof(FlightRecord, started_at) / sizeof(uint64_t);
constexpr size_t kEnded = offsetof(FlightRecord, ended_at) / sizeof(uint64_t);
constexpr size_t kShape = offsetof(FlightRecord, shape) / sizeof(uint64_t);
constexpr size_t kRoot = offsetof(FlightRecord, root) / sizeof(uint64_t);
constexpr size_t kState = offsetof(FlightRecord, collective) / sizeof(uint64_t);
constexpr int kAlgorithmShift = 24;
constexpr int kStateShift = 32;
static_assert(std::endian::native == std::endian::little);
static_assert(offsetof(FlightRecord, algorithm) == kState * sizeof(uint64_t) + kAlgorithmShift / 8 &&
              offsetof(FlightRecord, state) == kState * sizeof(uint64_t) + kStateShift / 8 &&
              offsetof(FlightRecord, dims) == kState * sizeof(uint64_t) + 5);

// A reader tries again as long as it is overtaken; a writer that died in the middle never goes on.
constexpr int kAttempts = 100;

std::optional<FlightRecord> read_slot(const FlightSlot& slot) {
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const uint64_t sequence = slot.words[0].load(std::memory_order_acquire);
    if (sequence == 0) return std::nullopt;
    if (sequence % 2 != 0) continue;
    // Backwards: the state before the times that came with it.
    Words words;
    for (size_t i = words.size() - 1; i > 0; --i) words[i] = slot.words[i].load(std::memory_order_acquire);
    if (slot.words[0].load(std::memory_order_relaxed) != sequence) continue;
    words[0] = sequence / 2;
    return std::bit_cast<FlightRecord>(words);
  }
  return std::nullopt;
}

bool is_sane(const FlightRecord& r) {
  return r.collective < kCollectiveCount && r.op < kOpCount && r.dtype < kDTypeCount &&
         r.algorithm < kAlgorithmCount && r.state >= FlightRecord::queued &&
         r.state <= FlightRecord::failed && (r.dims <= kFlightDims || r.dims == kNoShape);
}

std::string seconds_between(uint64_t from, uint64_t to) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(to > from ? to - from : 0) / 1e9);
  return text;
}

}  // namespace

uint64_t FlightRing::begin(const Descriptor& descriptor, uint64_t epoch, const int64_t* shape, uint32_t dims,
                           uint32_t tag) {
  const bool told = shape != nullptr && dims <= kFlightDims;
  FlightSlot& slot = slots_[++serial_ % kFlightRecords];
  auto put = [&](size_t word, uint64_t value) { slot.words[word].store(value, std::memory_order_release); };
  slot.words[0].store(2 * serial_ - 1, std::memory_order_relaxed);
  put(kEpoch, epoch);
  put(kCount, descriptor.count);
  put(kQueued, ticks());
  put(kStarted, 0);
  put(kEnded, 0);
  for (uint32_t i = 0; told && i < dims; ++i) put(kShape + i, static_cast<uint64_t>(shape[i]));
  put(kRoot, descriptor.root | uint64_t{tag} << 32);
  put(kState, uint64_t(descriptor.collective) | uint64_t(descriptor.op) << 8 |
                  uint64_t(descriptor.dtype) << 16 | uint64_t(descriptor.algorithm) << kAlgorithmShift |
                  uint64_t(FlightRecord::queued) << kStateShift | uint64_t(told ? dims : kNoShape) << 40);
  put(0, 2 * serial_);
  return serial_;
}

// Null where the record has been overwritten.
FlightSlot* FlightRing::slot(uint64_t serial) const {
  FlightSlot& slot = slots_[serial % kFlightRecords];
  const bool there = serial != 0 && slot.words[0].load(std::memory_order_relaxed) == 2 * serial;
  return there ? &slot : nullptr;
}

// Readers go backwards: one that gets the new rank gets the new number too.
void FlightRing::match(uint64_t serial, uint32_t peer, uint32_t tag, uint64_t epoch) {
  FlightSlot* slot = this->slot(serial);
  if (slot == nullptr) return;
  slot->words[kEpoch].store(epoch, std::memory_order_release);
  slot->words[kRoot].store(peer | uint64_t{tag} << 32, std::memory_order_release);
}

void FlightRing::start(uint64_t serial) { follow(serial, kStarted, FlightRecord::started, std::nullopt); }

void FlightRing::end(uint64_t serial, FlightRecord::State state, Algorithm algorithm) {
  follow(serial, kEnded, state, algorithm);
}

void FlightRing::follow(uint64_t serial, size_t time, FlightRecord::State state,
                        std::optional<Algorithm> algorithm) {
  FlightSlot* slot = this->slot(serial);
  if (slot == nullptr) return;
  uint64_t word = slot->words[kState].load(std::memory_order_relaxed);
  word = (word & ~(uint64_t{0xff} << kStateShift)) | uint64_t(state) << kStateShift;
  if (algorithm)
    word = (word & ~(uint64_t{0xff} << kAlgorithmShift)) | uint64_t(*algorithm) << kAlgorithmShift;
  slot->words[time].store(ticks(), std::memory_order_release);
  slot->words[kState].store(word, std::memory_order_release);
}

void open_flight_pages(FlightPages& pages) {
  const Moment now = Moment::now();
  pages.origin_ticks.store(now.ticks, std::memory_order_relaxed);
  pages.origin_wall.store(now.wall, std::memory_order_release);
}

std::vector<FlightRecord> read_flight(const FlightPages& pages) {
  std::vector<FlightRecord> records;
  auto read_ring = [&](const FlightSlot* slots) {
    const auto first = static_cast<std::ptrdiff_t>(records.size());
    for (size_t i = 0; i < kFlightRecords; ++i)
      if (std::optional<FlightRecord> record = read_slot(slots[i]); record && is_sane(*record))
        records.push_back(*record);
    std::sort(records.begin() + first, records.end(),
              [](const FlightRecord& a, const FlightRecord& b) { return a.serial < b.serial; });
  };
  read_ring(pages.calls);
  read_ring(pages.messages);
  const Moment origin{pages.origin_ticks.load(std::memory_order_relaxed),
                      pages.origin_wall.load(std::memory_order_acquire)};
  const Moment now = Moment::now();
  for (FlightRecord& record : records)
    for (uint64_t* at : {&record.queued_at, &record.started_at, &record.ended_at})
      if (*at != 0) *at = wall_at(*at, origin, now);
  return records;
}

std::string last_call(const std::vector<FlightRecord>& records) {
  auto is_message = [](const FlightRecord& r) {
    return Collective(r.collective) == Collective::send || Collective(r.collective) == Collective::recv;
  };
  auto in_progress = [](const FlightRecord& r) { return r.ended_at == 0; };
  const FlightRecord *call = nullptr, *message = nullptr;
  for (const FlightRecord& record : records) {
    const FlightRecord*& last = is_message(record) ? message : call;
    // Messages end in any order: the last one that has not ended, if there is one.
    if (last == nullptr || in_progress(record) || !in_progress(*last)) last = &record;
  }
  const FlightRecord* last = call;
  if (message != nullptr &&
      (call == nullptr ||
       (!in_progress(*call) && (in_progress(*message) || message->ended_at > call->ended_at))))
    last = message;
  if (last == nullptr) return "";
  Descriptor called = last->descriptor();
  called.algorithm = Algorithm::automatic;
  const uint64_t now = Moment::now().wall;
  std::string text = is_message(*last) ? describe_message(called, last->tag, last->epoch) + ", "
                                       : describe(called) + ", call " + std::to_string(last->epoch) + ", ";
  switch (last->state) {
    case FlightRecord::completed:
      return text + "completed " + seconds_between(last->ended_at, now) + " ago";
    case FlightRecord::failed:
      return text + "failed " + seconds_between(last->ended_at, now) + " ago";
    case FlightRecord::started:
      return text + "in it for " + seconds_between(last->started_at, now);
    default:
      return text + "waiting in it for " + seconds_between(last->queued_at, now);
  }
}

}  // namespace collectives
