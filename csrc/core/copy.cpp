#include "core/copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace collectives {
namespace {

constexpr size_t kLineBytes = 64;
constexpr size_t kVectorBytes = 2 << 10;  // glibc takes REP MOVSB from here on, or later
constexpr size_t kStreamBytes = 1 << 10;  // below this a fence costs more than what it fences
constexpr size_t kPrefetchBytes = 512;

#if defined(__x86_64__)

// Whole lines between a head and a tail, with `lines` copying what is in between to an aligned destination.
template <class Lines>
void by_lines(void* to, const void* from, size_t bytes, Lines lines) {
  auto* dst = static_cast<char*>(to);
  const auto* src = static_cast<const char*>(from);
  const size_t head =
      std::min(bytes, (kLineBytes - reinterpret_cast<uintptr_t>(dst) % kLineBytes) % kLineBytes);
  const size_t body = (bytes - head) / kLineBytes * kLineBytes;
  std::memcpy(dst, src, head);
  lines(dst + head, src + head, body);
  std::memcpy(dst + head + body, src + head + body, bytes - head - body);
}

__attribute__((target("avx2"))) void copy_lines(char* dst, const char* src, size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLineBytes) {
    // Hardware prefetchers stop at the end of a page of 4 KB.
    _mm_prefetch(src + i + kPrefetchBytes, _MM_HINT_T0);
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src + i + 32));
    _mm256_store_si256(reinterpret_cast<__m256i*>(dst + i), a);
    _mm256_store_si256(reinterpret_cast<__m256i*>(dst + i + 32), b);
  }
}

void stream_lines(char* dst, const char* src, size_t bytes) {
  for (size_t i = 0; i < bytes;
       i += kLineBytes) {  // whole lines, or the write-combining buffers drain half full
    __m128i line[4];
    for (int k = 0; k < 4; ++k) line[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i) + k);
    for (int k = 0; k < 4; ++k) _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i) + k, line[k]);
  }
  _mm_sfence();
}

#endif

}  // namespace

void copy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (bytes >= kVectorBytes && avx2) return by_lines(to, from, bytes, copy_lines);
#endif
  if (bytes != 0) std::memcpy(to, from, bytes);
}

void stream_copy(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kStreamBytes) return by_lines(to, from, bytes, stream_lines);
#endif
  copy(to, from, bytes);
}

}  // namespace collectives
