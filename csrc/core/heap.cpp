#include "core/heap.h"

#include <algorithm>
#include <iterator>

namespace collectives {
namespace {

constexpr size_t kUnit = 4096;  // what the arena's offsets are multiples of
constexpr const char* kFull = "symmetric memory: a process can have 64 GB of it, communicators included";
constexpr const char* kNoWindow =
    "symmetric memory: the address space of this process is limited (ulimit -v) or full";

}  // namespace

void* Heap::allocate(size_t bytes) {
  if (bytes > kWindowBytes) throw NoSymmetricMemory(kFull);
  const size_t wanted = (std::max<size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
  std::lock_guard lock(mutex_);
  if (!window_) {
    window_ = Window::open(arena_.fd(), Window::Of::self);
    if (!window_) throw NoSymmetricMemory(kNoWindow);
    base_.store(window_->data(), std::memory_order_release);
  }
  const Block block = take(wanted);
  live_[block.offset] = block.bytes;
  live_bytes_ += block.bytes;
  return window_->data() + block.offset;
}

Heap::Block Heap::take(size_t bytes) {
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it)
    if (it->bytes >= bytes && it->bytes - bytes <= bytes / 4 &&
        (best == kept_.end() || it->bytes < best->bytes))
      best = it;
  if (best != kept_.end()) {
    const Block block = *best;
    kept_bytes_ -= block.bytes;
    kept_.erase(best);
    most_bytes_ = std::max(most_bytes_, live_bytes_ + block.bytes);
    return block;
  }
  // What goes makes room for what comes.
  most_bytes_ = std::max(most_bytes_, live_bytes_ + bytes);
  trim(most_bytes_ - bytes);
  const Block block{arena_.allocate(bytes), bytes};
  if (block.offset + bytes <= kWindowBytes) return block;
  arena_.release(block.offset, bytes);
  throw NoSymmetricMemory(kFull);
}

bool Heap::give_back(void* pointer) {
  const uint64_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base());
  std::lock_guard lock(mutex_);
  const auto block = live_.find(offset);
  if (block == live_.end()) return false;
  kept_.push_back({block->first, block->second});
  kept_bytes_ += block->second;
  live_bytes_ -= block->second;
  live_.erase(block);
  trim(most_bytes_);
  return true;
}

void Heap::trim(size_t most) {
  while (!kept_.empty() &&
         (live_bytes_ + kept_bytes_ > most || kept_bytes_ > kKeptBytes || kept_.size() > kKeptBlocks)) {
    arena_.release(kept_.front().offset, kept_.front().bytes);
    kept_bytes_ -= kept_.front().bytes;
    kept_.pop_front();
  }
}

std::optional<uint64_t> Heap::find(const void* pointer, size_t bytes) const {
  const char* base = this->base();
  const uint64_t offset = reinterpret_cast<uintptr_t>(pointer) - reinterpret_cast<uintptr_t>(base);
  if (base == nullptr || offset >= kWindowBytes) return std::nullopt;
  std::lock_guard lock(mutex_);
  const auto after = live_.upper_bound(offset);
  if (after == live_.begin()) return std::nullopt;
  const auto& [start, size] = *std::prev(after);
  const uint64_t within = offset - start;
  if (within > size || bytes > size - within) return std::nullopt;
  return offset;
}

Heap::Usage Heap::usage() const {
  std::lock_guard lock(mutex_);
  return {live_bytes_, kept_bytes_, kept_.size()};
}

}  // namespace collectives
