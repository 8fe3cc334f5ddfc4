#include "native/array.h"

#include <nanobind/stl/string.h>

#include <string>

#include "core/failure.h"

namespace collectives {
namespace {

std::string kind_of(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::handle(object.type()).attr("__name__")));
}

// PEP 3118 format characters, in native byte order and of native size.
bool parse_format(const char* format, size_t item, DType& dtype) {
  if (format == nullptr) format = "B";
  if (*format == '@' || *format == '=' || *format == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>'))
    ++format;
  const bool complex = *format == 'Z';
  if (complex) ++format;
  if (format[0] == 0 || format[1] != 0) return false;
  auto integer = [&](DType byte) {
    const int step = item == 1 ? 0 : item == 2 ? 1 : item == 4 ? 2 : 3;
    dtype = static_cast<DType>(static_cast<int>(byte) + step);
    return !complex;
  };
  switch (*format) {
    case 'f':
      dtype = complex ? DType::c64 : DType::f32;
      return true;
    case 'd':
      dtype = complex ? DType::c128 : DType::f64;
      return true;
    case 'e':
      dtype = DType::f16;
      return !complex;
    case '?':
      dtype = DType::b8;
      return !complex;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return integer(DType::i8);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return integer(DType::u8);
    default:
      return false;
  }
}

bool parse_dlpack(nb::dlpack::dtype type, DType& dtype) {
  // Codes of DLPack 1.1; nanobind names only the first few.
  constexpr uint8_t kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kComplex = 5, kBool = 6, kFloat8E4M3FN = 10,
                    kFloat8E5M2 = 12;
  if (type.lanes != 1) return false;
  auto is = [&](uint8_t code, int bits) { return type.code == code && type.bits == bits; };
  const DType signed_types[] = {DType::i8, DType::i16, DType::i32, DType::i64};
  const DType unsigned_types[] = {DType::u8, DType::u16, DType::u32, DType::u64};
  for (int i = 0; i < 4; ++i) {
    if (is(kInt, 8 << i)) return dtype = signed_types[i], true;
    if (is(kUInt, 8 << i)) return dtype = unsigned_types[i], true;
  }
  if (is(kFloat, 32)) return dtype = DType::f32, true;
  if (is(kFloat, 64)) return dtype = DType::f64, true;
  if (is(kFloat, 16)) return dtype = DType::f16, true;
  if (is(kBfloat, 16)) return dtype = DType::bf16, true;
  if (is(kFloat8E4M3FN, 8)) return dtype = DType::f8e4m3, true;
  if (is(kFloat8E5M2, 8)) return dtype = DType::f8e5m2, true;
  if (is(kBool, 8)) return dtype = DType::b8, true;
  if (is(kComplex, 64)) return dtype = DType::c64, true;
  if (is(kComplex, 128)) return dtype = DType::c128, true;
  return false;
}

// `spelled`: how it is told where the object has no dtype.
std::string unknown_type(const char* role, nb::handle object, const std::string& spelled) {
  nb::object type = nb::getattr(object, "dtype", nb::none());
  const std::string told =
      type.is_none() ? spelled : nb::cast<std::string>(nb::str(nb::getattr(type, "name", type)));
  return std::string(role) + ": element type " + told + " of this " + kind_of(object) +
         " is not known; known are float32, float64, float16, bfloat16, float8_e4m3fn, float8_e5m2, "
         "int8 to int64, uint8 to uint64, bool, complex64 and complex128";
}

// Why an object may not export its memory, as far as it tells itself.
std::string because(nb::handle object) {
  auto told = [&](const char* attribute) {
    nb::object value = nb::getattr(object, attribute, nb::none());
    return value.is_none() ? std::string() : nb::cast<std::string>(nb::str(value));
  };
  if (const std::string layout = told("layout"); !layout.empty() && layout != "torch.strided")
    return ": its layout is " + layout + ", and only dense arrays are moved";
  if (const std::string device = told("device"); !device.empty() && device != "cpu")
    return ": it is on " + device + ", and this version moves CPU memory only";
  return "";
}

}  // namespace

Array::Array(nb::handle object, const char* role) : role_(role) {
  try {
    if (!PyObject_CheckBuffer(object.ptr()))
      import_dlpack(object);
    else if (!import_buffer(object))
      import_named(object);
    check_size();
  } catch (...) {
    if (has_buffer_) PyBuffer_Release(&buffer_);  // the destructor of what was never made does not run
    throw;
  }
}

Array::~Array() {
  if (has_buffer_) PyBuffer_Release(&buffer_);
}

bool Array::import_buffer(nb::handle object) {
  if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    return false;
  }
  has_buffer_ = true;
  if (!parse_format(buffer_.format, static_cast<size_t>(buffer_.itemsize), dtype) ||
      static_cast<size_t>(buffer_.itemsize) != size_of(dtype)) {
    const std::string format = buffer_.format;
    throw BadType(unknown_type(role_, object, "buffer format '" + format + "'"));
  }
  read_only = buffer_.readonly != 0;
  view.data = buffer_.buf;
  view.item = static_cast<size_t>(buffer_.itemsize);
  view.dims = buffer_.ndim;
  int64_t packed = static_cast<int64_t>(view.item);  // stride of the dimension, if the array is packed
  for (int i = view.dims - 1; i >= 0; --i) {
    view.shape[i] = buffer_.shape[i];
    view.strides[i] = buffer_.strides != nullptr ? buffer_.strides[i] : packed;  // ctypes gives no strides
    packed *= buffer_.shape[i];
  }
  return true;
}

void Array::import_named(nb::handle object) {
  nb::object type = nb::getattr(object, "dtype", nb::none());
  const std::string spelled = nb::cast<std::string>(nb::str(nb::getattr(type, "name", type)));
  DType named;
  if (!parse(spelled, named) || size_of(named) > 2) throw BadType(unknown_type(role_, object, "none"));
  viewed_ = object.attr("view")(size_of(named) == 2 ? "uint16" : "uint8");
  if (!import_buffer(viewed_))
    throw BadType(std::string(role_) + ": this " + kind_of(object) + " does not export its memory");
  dtype = named;
}

// Views that torch resolves only when they are read elementwise: their memory is not what they show.
static void check_resolved(nb::handle object, const char* role) {
  for (const char* lazy : {"is_conj", "is_neg"})
    if (nb::hasattr(object, lazy) && nb::cast<bool>(object.attr(lazy)()))
      throw BadType(std::string(role) + " is a lazy view: pass x.resolve_conj().resolve_neg()");
}

void Array::import_dlpack(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__"))
    throw BadType(std::string(role_) + ": a " + kind_of(object) +
                  " is no array; pass a NumPy array, a torch tensor or any object with __dlpack__");
  check_resolved(object, role_);
  nb::ndarray<> writable;
  if (nb::try_cast(object, writable, false)) {
    tensor_ = nb::ndarray<nb::ro>(writable);
  } else if (nb::try_cast(object, tensor_, false)) {
    read_only = true;
  } else {
    throw BadType(std::string(role_) + ": this " + kind_of(object) +
                  " does not export its memory through DLPack" + because(object));
  }
  if (tensor_.device_type() != nb::device::cpu::value)
    throw BadType(std::string(role_) + ": this " + kind_of(object) +
                  " is not in CPU memory; this version moves CPU memory only");
  if (!parse_dlpack(tensor_.dtype(), dtype)) throw BadType(unknown_type(role_, object, "a DLPack type code"));
  view.data = const_cast<void*>(tensor_.data());
  view.item = size_of(dtype);
  view.dims = static_cast<int>(tensor_.ndim());
  if (view.dims > Strided::kMaxDims) throw BadType(std::string(role_) + ": more than 64 dimensions");
  for (int i = 0; i < view.dims; ++i) {
    view.shape[i] = static_cast<int64_t>(tensor_.shape(static_cast<size_t>(i)));
    view.strides[i] = tensor_.stride(static_cast<size_t>(i)) * static_cast<int64_t>(view.item);
  }
}

// A view with strides of 0 may have more elements than any memory.
void Array::check_size() const {
  int64_t bytes = static_cast<int64_t>(view.item);
  for (int i = 0; i < view.dims; ++i)
    if (view.shape[i] == 0) return;
  for (int i = 0; i < view.dims; ++i)
    if (__builtin_mul_overflow(bytes, view.shape[i], &bytes))
      throw BadArgument(std::string(role_) + " has more elements than any memory holds");
}

void Array::check_writable() const {
  if (read_only) throw BadArgument(std::string(role_) + " is read-only");
  if (view.self_overlaps())
    throw BadArgument(
        std::string(role_) +
        " overlaps itself: two of its indices share memory (a stride of 0, or a broadcast view)");
}

}  // namespace collectives
