#include "core/stream.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace collectives {

void stream_copy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  auto* dst = static_cast<char*>(to);
  const auto* src = static_cast<const char*>(from);
  const size_t head = std::min(bytes, (64 - reinterpret_cast<uintptr_t>(dst) % 64) % 64);
  if (head != 0) std::memcpy(dst, src, head);
  size_t done = head;
  for (; done + 64 <= bytes; done += 64) {  // whole lines, or the write-combining buffers drain half full
    __m128i line[4];
    for (int i = 0; i < 4; ++i) line[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + done) + i);
    for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(dst + done) + i, line[i]);
  }
  if (done != bytes) std::memcpy(dst + done, src + done, bytes - done);
  _mm_sfence();
#else
  if (bytes != 0) std::memcpy(to, from, bytes);
#endif
}

}  // namespace collectives
