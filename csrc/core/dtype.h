#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace collectives {

// Element types. The values travel between ranks: append, never renumber.
enum class DType : uint8_t {
  f32,
  f64,
  f16,
  bf16,
  f8e4m3,
  f8e5m2,
  i8,
  i16,
  i32,
  i64,
  u8,
  u16,
  u32,
  u64,
  b8,
  c64,
  c128,
};

inline constexpr int kDTypeCount = 17;

struct DTypeInfo {
  const char* name;  // the spelling of the Python API
  size_t size;       // bytes per element
};

inline constexpr DTypeInfo kDTypes[kDTypeCount] = {
    {"float32", 4},     {"float64", 8},     {"float16", 2}, {"bfloat16", 2}, {"float8_e4m3fn", 1},
    {"float8_e5m2", 1}, {"int8", 1},        {"int16", 2},   {"int32", 4},    {"int64", 8},
    {"uint8", 1},       {"uint16", 2},      {"uint32", 4},  {"uint64", 8},   {"bool", 1},
    {"complex64", 8},   {"complex128", 16},
};

constexpr size_t size_of(DType dtype) { return kDTypes[static_cast<int>(dtype)].size; }
constexpr const char* name(DType dtype) { return kDTypes[static_cast<int>(dtype)].name; }

constexpr bool is_floating(DType dtype) { return dtype <= DType::f8e5m2; }
constexpr bool is_integer(DType dtype) { return dtype >= DType::i8 && dtype <= DType::u64; }
constexpr bool is_complex(DType dtype) { return dtype >= DType::c64; }

// Sets `dtype` and returns true where `text` names an element type.
constexpr bool parse(std::string_view text, DType& dtype) {
  for (int i = 0; i < kDTypeCount; ++i) {
    if (text == kDTypes[i].name) {
      dtype = static_cast<DType>(i);
      return true;
    }
  }
  return false;
}

}  // namespace collectives
