// A byte ring from one rank to one other, through which messages of any size are streamed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "cpu/layout.h"

namespace collectives {

// What goes before the elements of a message.
struct MessageHeader {
  uint64_t count;
  uint64_t bytes;
  uint32_t tag;
  uint8_t dtype;
  uint8_t reserved[11];
};
static_assert(sizeof(MessageHeader) == 32 && std::is_trivially_copyable_v<MessageHeader>);

// A message's image in the ring: header, elements, padding up to a whole cache line. So images begin at
// lines, a header never wraps around, and a small message is one line.
inline constexpr size_t image_bytes(size_t payload) {
  return round_up(sizeof(MessageHeader) + payload, kCacheLine);
}

// One writer, one reader. The writer counts the bytes that it has written, the reader those that it has
// taken; both counters are monotone modulo 2^32 and the ring is no larger than 2^31 bytes, so that their
// difference is what lies in the ring. Both ends move images in pieces of whole lines, a quarter of the ring
// at most, so that they work at the same time.
//
// Memory order. `written` is published after the bytes were written, and read before they are read: a release
// and an acquire. `taken` is published after the bytes were read, and read before they are overwritten: the
// same the other way round, which is what makes reuse safe.
//
// Sleepers. Each end publishes by a sequentially consistent store and then looks whether the other rank
// sleeps; that one announces itself and then looks at the counters once more (`moved()`). One of the two sees
// the other.
//
// Failure. A ring has none: neither call waits, and both leave all as it is where there is no room or no
// data.
template <class Memory>
class RingEnd {
 public:
  using Word = typename Memory::Word;

  // `own` is this end's counter, `other` the other end's; `bell` the doorbell of the other end's rank.
  RingEnd(char* data, size_t bytes, Word& own, const Word& other, Doorbell<Word>& bell)
      : data_(data), bytes_(static_cast<uint32_t>(bytes)), own_(own), other_(other), bell_(bell) {}

  // The other end has moved since this one last looked. For the last look before a sleep.
  bool moved() const { return Memory::load_before_sleep(other_) != seen_; }

 protected:
  // Calls body(place in the ring, image offset, bytes) for the parts of [offset, offset + bytes) that hold
  // elements; two where they wrap around.
  template <class Body>
  void for_elements(size_t payload, size_t offset, size_t bytes, Body body) {
    size_t at = std::max(offset, sizeof(MessageHeader));
    const size_t end = std::min(offset + bytes, sizeof(MessageHeader) + payload);
    while (at < end) {
      const uint32_t place = (position_ + static_cast<uint32_t>(at - offset)) & (bytes_ - 1);
      const size_t run = std::min<size_t>(end - at, bytes_ - place);
      body(data_ + place, at - sizeof(MessageHeader), run);
      at += run;
    }
  }
  char* front() const { return data_ + (position_ & (bytes_ - 1)); }
  void look() { seen_ = Memory::load(other_); }
  void advance(size_t bytes) {
    position_ += static_cast<uint32_t>(bytes);
    Memory::publish(own_, position_, bell_.sleepers, bell_.rings);
  }
  size_t piece() const { return bytes_ / 4; }

  char* data_;
  uint32_t bytes_;
  uint32_t position_ = 0;  // what `own_` says
  uint32_t seen_ = 0;      // what `other_` said last

 private:
  Word& own_;
  const Word& other_;
  Doorbell<Word>& bell_;
};

template <class Memory>
class RingWriter : private RingEnd<Memory> {
  using End = RingEnd<Memory>;

 public:
  using End::End;
  using End::moved;

  // Writes as much of the image from `offset` on as there is room for, at most `limit` bytes; returns how
  // much. Offsets and limits are whole lines.
  size_t put(const MessageHeader& header, const char* payload, size_t offset, size_t limit) {
    const size_t whole = image_bytes(header.bytes);
    size_t done = 0;
    while (offset + done < whole && done < limit) {
      const size_t wanted = std::min({whole - offset - done, limit - done, this->piece()});
      if (room() < wanted) this->look();
      const size_t step = std::min(wanted, room());
      if (step == 0) break;
      if (offset + done == 0) Memory::write(this->front(), &header, sizeof header, false);
      this->for_elements(header.bytes, offset + done, step, [&](char* place, size_t from, size_t bytes) {
        Memory::write(place, payload + from, bytes, false);
      });
      this->advance(step);
      done += step;
    }
    return done;
  }

 private:
  size_t room() const { return this->bytes_ - (this->position_ - this->seen_); }
};

template <class Memory>
class RingReader : private RingEnd<Memory> {
  using End = RingEnd<Memory>;

 public:
  using End::End;
  using End::moved;

  // The header of the next message, if there is one. Only between two messages.
  bool next(MessageHeader& header) {
    if (ready() == 0) this->look();
    if (ready() == 0) return false;
    Memory::read(&header, this->front(), sizeof header, false);
    return true;
  }

  // Takes as much of the image from `offset` on as is there, at most `limit` bytes; returns how much. The
  // elements go to `payload`, or nowhere where that is null.
  size_t take(const MessageHeader& header, char* payload, size_t offset, size_t limit) {
    const size_t whole = image_bytes(header.bytes);
    size_t done = 0;
    while (offset + done < whole && done < limit) {
      const size_t wanted = std::min({whole - offset - done, limit - done, this->piece()});
      if (ready() < wanted) this->look();
      const size_t step = std::min(wanted, ready());
      if (step == 0) break;
      if (payload != nullptr)
        this->for_elements(header.bytes, offset + done, step, [&](char* place, size_t to, size_t bytes) {
          Memory::read(payload + to, place, bytes, false);
        });
      this->advance(step);
      done += step;
    }
    return done;
  }

 private:
  size_t ready() const { return this->seen_ - this->position_; }
};

}  // namespace collectives
