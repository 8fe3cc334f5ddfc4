// Every kernel of every instruction set that this CPU runs, bit for bit against a scalar reference: all
// element types and operators, several numbers of sources, counts around the vector widths, odd alignments,
// in place, two outputs.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "core/float_formats.h"
#include "cpu/reduce.h"

using namespace collectives;

namespace {

constexpr size_t kMaxCount = 1023;
constexpr size_t kGuard = 64;
constexpr int kMaxSources = 8;
// Of premul_sum: full mantissas, one that is exact, a zero, and one that the product overflows with.
constexpr double kFactors[kMaxSources] = {0.3, -1.7, 1.0, 0.0, 1e-3, -0.6, 3e38, 2.1};

int failures = 0;

// ---- The reference: one element at a time ----

template <class A>
A combine(Op op, A a, A x) {
  switch (op) {
    case Op::min:
      return a <= x || a != a ? a : x;
    case Op::max:
      return a >= x || a != a ? a : x;
    case Op::product:
      return a * x;
    default:
      return a + x;
  }
}

template <class A, class Decode, class Encode>
void reference_floating(Op op, const uint8_t* const* src, int sources, size_t size, uint8_t* out,
                        Decode decode, Encode encode, size_t count = kMaxCount) {
  for (size_t i = 0; i < count; ++i) {
    // Volatile: a product that is stored is rounded, whatever the compiler may fuse.
    auto term = [&](int r) -> A {
      const volatile A x = decode(src[r] + i * size);
      const volatile A product = x * static_cast<A>(kFactors[r]);
      return op == Op::premul_sum ? product : x;
    };
    A a = term(0);
    for (int r = 1; r < sources; ++r) a = combine<A>(op, a, term(r));
    if (op == Op::avg) a /= static_cast<A>(sources);
    encode(out + i * size, a);
  }
}

template <class T>
T get(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

template <class T>
void put(uint8_t* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

template <class T>
void reference_native(Op op, const uint8_t* const* src, int sources, uint8_t* out, size_t count = kMaxCount) {
  reference_floating<T>(op, src, sources, sizeof(T), out, get<T>, put<T>, count);
}

template <class Codec, class T>
void reference_encoded(Op op, const uint8_t* const* src, int sources, uint8_t* out) {
  reference_floating<float>(
      op, src, sources, sizeof(T), out,
      [](const uint8_t* p) { return Codec::template decode<float>(get<T>(p)); },
      [](uint8_t* p, float value) { put(p, static_cast<T>(Codec::encode(value))); });
}

template <class T>
void reference_integer(Op op, const uint8_t* const* src, int sources, uint8_t* out) {
  using Wide = std::conditional_t<std::is_same_v<T, uint64_t>, uint64_t, int64_t>;
  for (size_t i = 0; i < kMaxCount; ++i) {
    T a = get<T>(src[0] + i * sizeof(T));
    uint64_t sum = static_cast<uint64_t>(a);
    for (int r = 1; r < sources; ++r) {
      const T x = get<T>(src[r] + i * sizeof(T));
      const uint64_t wide_a = static_cast<uint64_t>(a), wide_x = static_cast<uint64_t>(x);
      sum += wide_x;
      switch (op) {
        case Op::sum:
        case Op::avg:
          a = static_cast<T>(wide_a + wide_x);
          break;
        case Op::product:
          a = static_cast<T>(wide_a * wide_x);
          break;
        case Op::min:
          a = std::min(a, x);
          break;
        case Op::max:
          a = std::max(a, x);
          break;
        case Op::band:
          a = static_cast<T>(a & x);
          break;
        case Op::bor:
          a = static_cast<T>(a | x);
          break;
        case Op::bxor:
          a = static_cast<T>(a ^ x);
          break;
        case Op::premul_sum:  // not for integers
          break;
      }
    }
    if (op == Op::avg) a = static_cast<T>(static_cast<Wide>(sum) / static_cast<Wide>(sources));
    put(out + i * sizeof(T), a);
  }
}

void reference_bool(Op op, const uint8_t* const* src, int sources, uint8_t* out) {
  for (size_t i = 0; i < kMaxCount; ++i) {
    int set = 0;
    for (int r = 0; r < sources; ++r) set += src[r][i] != 0;
    switch (op) {
      case Op::sum:
      case Op::max:
      case Op::bor:
        out[i] = set > 0;
        break;
      case Op::bxor:
        out[i] = set % 2;
        break;
      default:
        out[i] = set == sources;
    }
  }
}

void reference(DType dtype, Op op, const uint8_t* const* src, int sources, uint8_t* out) {
  switch (dtype) {
    case DType::f32:
      return reference_native<float>(op, src, sources, out);
    case DType::f64:
      return reference_native<double>(op, src, sources, out);
    case DType::f16:
      return reference_encoded<Float16, uint16_t>(op, src, sources, out);
    case DType::bf16:
      return reference_encoded<BFloat16, uint16_t>(op, src, sources, out);
    case DType::f8e4m3:
      return reference_encoded<Float8E4M3FN, uint8_t>(op, src, sources, out);
    case DType::f8e5m2:
      return reference_encoded<Float8E5M2, uint8_t>(op, src, sources, out);
    case DType::i8:
      return reference_integer<int8_t>(op, src, sources, out);
    case DType::i16:
      return reference_integer<int16_t>(op, src, sources, out);
    case DType::i32:
      return reference_integer<int32_t>(op, src, sources, out);
    case DType::i64:
      return reference_integer<int64_t>(op, src, sources, out);
    case DType::u8:
      return reference_integer<uint8_t>(op, src, sources, out);
    case DType::u16:
      return reference_integer<uint16_t>(op, src, sources, out);
    case DType::u32:
      return reference_integer<uint32_t>(op, src, sources, out);
    case DType::u64:
      return reference_integer<uint64_t>(op, src, sources, out);
    case DType::b8:
      return reference_bool(op, src, sources, out);
    case DType::c64:
      return reference_native<float>(op, src, sources, out, 2 * kMaxCount);
    case DType::c128:
      return reference_native<double>(op, src, sources, out, 2 * kMaxCount);
  }
}

// ---- Inputs ----

// Half of the elements are any bits (NaN, infinities, subnormals, both zeros, any byte as a truth value);
// half have a full mantissa and magnitudes so close to each other that sums cancel, where the order and place
// of each rounding show.
void fill(DType dtype, std::vector<uint8_t>& bytes, std::mt19937& random) {
  if (is_complex(dtype)) {  // pairs
    std::vector<uint8_t> parts(bytes.size() / 2);
    for (int half = 0; half < 2; ++half) {
      fill(dtype == DType::c64 ? DType::f32 : DType::f64, parts, random);
      std::copy(parts.begin(), parts.end(), bytes.begin() + half * static_cast<ptrdiff_t>(parts.size()));
    }
    return;
  }
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  std::uniform_real_distribution<float> uniform(-4.0f, 4.0f);
  for (size_t i = 0; i < kMaxCount; ++i) {
    uint8_t* at = bytes.data() + i * size_of(dtype);
    const float value = uniform(random);
    const unsigned kind = random() % 8;
    if (kind == 7) {
      std::memset(at, 0, size_of(dtype));
      if (random() % 2) at[size_of(dtype) - 1] = dtype == DType::b8 ? 1 : 0x80;
    }
    if (kind >= 4) continue;
    switch (dtype) {
      case DType::f32:
        put(at, value);
        break;
      case DType::f64:
        put(at, static_cast<double>(value) * 1.1);
        break;
      case DType::f16:
        put(at, static_cast<uint16_t>(Float16::encode(value)));
        break;
      case DType::bf16:
        put(at, static_cast<uint16_t>(BFloat16::encode(value)));
        break;
      case DType::f8e4m3:
        put(at, static_cast<uint8_t>(Float8E4M3FN::encode(value)));
        break;
      case DType::f8e5m2:
        put(at, static_cast<uint8_t>(Float8E5M2::encode(value)));
        break;
      default:
        break;
    }
  }
}

double to_double(DType dtype, const uint8_t* at) {
  switch (dtype) {
    case DType::f32:
      return get<float>(at);
    case DType::f64:
      return get<double>(at);
    case DType::f16:
      return Float16::decode<float>(get<uint16_t>(at));
    case DType::bf16:
      return BFloat16::decode<float>(get<uint16_t>(at));
    case DType::f8e4m3:
      return Float8E4M3FN::decode<float>(*at);
    case DType::f8e5m2:
      return Float8E5M2::decode<float>(*at);
    default:
      return 0;
  }
}

// Which of two NaNs an addition returns is the compiler's choice of operand order, so any NaN will do there.
bool same(DType dtype, Op op, const uint8_t* got, const uint8_t* wanted, size_t count) {
  if (is_complex(dtype))
    return same(dtype == DType::c64 ? DType::f32 : DType::f64, op, got, wanted, 2 * count);
  const size_t size = size_of(dtype);
  if (std::memcmp(got, wanted, count * size) == 0) return true;
  const bool any_nan = is_floating(dtype) && op != Op::min && op != Op::max;
  for (size_t i = 0; i < count; ++i) {
    const uint8_t *g = got + i * size, *w = wanted + i * size;
    if (std::memcmp(g, w, size) == 0) continue;
    if (!any_nan || !std::isnan(to_double(dtype, g)) || !std::isnan(to_double(dtype, w))) return false;
  }
  return true;
}

// ---- One call ----

// A buffer whose payload starts at an odd place and is fenced by bytes that must not change.
struct Fenced {
  std::vector<uint8_t> bytes;
  size_t at;

  Fenced(size_t payload, size_t offset) : bytes(payload + 2 * kGuard, 0xa5), at(kGuard + offset - 16) {}
  uint8_t* data() { return bytes.data() + at; }
  bool intact(size_t payload) const {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if ((i < at || i >= at + payload) && bytes[i] != 0xa5) return false;
    }
    return true;
  }
};

struct Case {
  const char* isa;
  DType dtype;
  Op op;
  int sources;
  size_t count;
  int in_place;  // the source that is also the output, or -1
  bool also;
};

void check(const Case& c, const std::vector<uint8_t>* inputs, const std::vector<uint8_t>& wanted,
           std::mt19937& random) {
  const size_t bytes = c.count * size_of(c.dtype);
  std::vector<Fenced> copies;
  const void* src[kMaxSources];
  for (int r = 0; r < c.sources; ++r) {
    copies.emplace_back(bytes, random() % 16);
    std::copy_n(inputs[r].data(), bytes, copies[r].data());
  }
  for (int r = 0; r < c.sources; ++r) src[r] = copies[r].data();
  Fenced separate(bytes, random() % 16), also(bytes, random() % 16);
  Fenced& dst = c.in_place < 0 ? separate : copies[c.in_place];

  const ReduceFn kernel = reduce_function(c.dtype, c.op, c.isa);
  kernel(dst.data(), c.also ? also.data() : nullptr, src, c.sources, c.count,
         c.op == Op::premul_sum ? kFactors : nullptr);

  bool right = same(c.dtype, c.op, dst.data(), wanted.data(), c.count) && dst.intact(bytes);
  right = right &&
          (c.also ? std::memcmp(also.data(), dst.data(), bytes) == 0 && also.intact(bytes) : also.intact(0));
  for (int r = 0; r < c.sources; ++r) {
    if (r == c.in_place) continue;
    right = right && copies[r].intact(bytes) && std::memcmp(copies[r].data(), inputs[r].data(), bytes) == 0;
  }
  if (!right && ++failures <= 20) {
    std::printf("%s %s %s: sources %d, count %zu, in place %d, also %d\n", c.isa, name(c.dtype), name(c.op),
                c.sources, c.count, c.in_place, c.also);
  }
}

void check_kernel(const char* isa, DType dtype, Op op) {
  std::mt19937 random(static_cast<unsigned>(dtype) * kOpCount + static_cast<unsigned>(op));
  std::vector<uint8_t> inputs[kMaxSources];
  const uint8_t* src[kMaxSources];
  for (int r = 0; r < kMaxSources; ++r) {
    inputs[r].resize(kMaxCount * size_of(dtype));
    fill(dtype, inputs[r], random);
    src[r] = inputs[r].data();
  }
  std::vector<size_t> counts(68);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = i;
  counts.push_back(kMaxCount);
  for (const int sources : {1, 2, 3, 5, 8}) {
    std::vector<uint8_t> wanted(kMaxCount * size_of(dtype));
    reference(dtype, op, src, sources, wanted.data());
    for (const size_t count : counts) {
      for (int in_place = -1; in_place < sources; ++in_place) {
        for (const bool also : {false, true})
          check({isa, dtype, op, sources, count, in_place, also}, inputs, wanted, random);
      }
    }
  }
}

}  // namespace

int main() {
  std::string tested;
  for (const char* isa : {"baseline", "x86-64-v3", "x86-64-v4", "neon"}) {
    if (reduce_function(DType::f32, Op::sum, isa) == nullptr) continue;
    tested += std::string(" ") + isa;
    for (int d = 0; d < kDTypeCount; ++d) {
      for (int o = 0; o < kOpCount; ++o) {
        const DType dtype = static_cast<DType>(d);
        const Op op = static_cast<Op>(o);
        if ((reduce_function(dtype, op, isa) != nullptr) != supports(dtype, op)) {
          std::printf("%s %s %s: kernel and supports() disagree\n", isa, name(dtype), name(op));
          ++failures;
        } else if (supports(dtype, op)) {
          check_kernel(isa, dtype, op);
        }
      }
    }
  }
  if (tested.find(instruction_set()) == std::string::npos) ++failures;
  std::printf("%s:%s, chosen %s\n", failures == 0 ? "ok" : "FAILED", tested.c_str(), instruction_set());
  return failures != 0;
}
