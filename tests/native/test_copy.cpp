// Both copies move every byte and touch no other, at any size and alignment.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/copy.h"

using namespace collectives;

namespace {

constexpr size_t kGuard = 128;

void check(void (*function)(void*, const void*, size_t), size_t bytes, size_t to_offset, size_t from_offset) {
  std::vector<unsigned char> from(bytes + 2 * kGuard), to(bytes + 2 * kGuard + 64, 0xA5);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 131 + i / 251);
  unsigned char* at = to.data() + kGuard + to_offset;
  function(at, from.data() + from_offset, bytes);
  for (size_t i = 0; i < to.size(); ++i) {
    const size_t inside = i - kGuard - to_offset;  // wraps for what lies before
    const unsigned char expected = inside < bytes ? from[from_offset + inside] : 0xA5;
    if (to[i] == expected) continue;
    std::fprintf(stderr, "%zu bytes to +%zu from +%zu: byte %zu is %d, not %d\n", bytes, to_offset,
                 from_offset, i, to[i], expected);
    std::abort();
  }
}

}  // namespace

int main() {
  for (auto* function : {copy, stream_copy}) {
    for (size_t bytes : {0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 2111, 4096, 70'001, 1 << 20})
      for (size_t to : {0, 1, 16, 31, 63})
        for (size_t from : {0, 1, 16, 63}) check(function, bytes, to, from);
    function(nullptr, nullptr, 0);
  }
  std::puts("ok");
}
