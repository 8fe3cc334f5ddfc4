// What the arguments of all collectives have in common: options, checks, packed images of arrays that are not
// contiguous, and telling the peers of a refusal.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "cpu/communicator.h"
#include "native/array.h"

namespace collectives {

// Each throws BadType or BadArgument.
void parse_options(Call& call, nb::handle algorithm, nb::handle timeout);
void parse_reduction(Call& call, nb::handle op, nb::handle factor);
uint32_t parse_root(nb::handle object, int world);

// "(3, 4)"
std::string shape_of(const Strided& view);

void check_output(const Array& in, const Array& out);
void check_parts(size_t whole, const char* role, size_t part, size_t world);
// Only packed arrays can get into each other's way: of any other a packed image is made before the call.
void check_overlap(const Strided& in, const Strided& out, bool in_place);

// Where the rank's part of `whole` begins.
const void* part_of(const Array& whole, const Strided& part, int rank);

// An array beside `x`: of its dtype, made by its own library, of the shape of `like` but for dimension 0.
nb::object empty_beside(nb::handle x, int64_t first, const Strided& like);

// The arrays of one call, and packed images of those that are not contiguous.
class Operands {
 public:
  std::optional<Array> in;   // none: this rank gives nothing
  std::optional<Array> out;  // none: the call works in place, or writes nothing

  // Takes `out`, which must be of the shape of `in`.
  void take_like_input(nb::handle output);

  // Points `call` at packed memory. Of the argument checks this is the last: it may run out of memory.
  void stage(Call& call, bool writes = true);

  void run(Communicator& comm, const Call& call);

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  using Image = std::unique_ptr<char, Free>;

  const Strided& result() const { return (out ? *out : *in).view; }
  static void* packed(const Strided& view, Image& image);

  Image packed_in_;
  Image packed_out_;
};

// The body of every collective: whatever is wrong with the arguments is told to the peers, who raise at once.
// comm.run() does so itself for what only the plan can know.
template <class Prepare>
auto prepared(Communicator& comm, Collective collective, Prepare prepare) {
  auto refuse = [&](const std::string& why) {
    nb::gil_scoped_release released;
    try {
      comm.refuse(collective, why);
    } catch (const Failure& failure) {
      if (failure.cause == Cause::interrupted) throw;  // a signal handler's exception must come out
      // The communicator is broken already, and the peers know; the caller's own mistake is the better news.
    } catch (const std::runtime_error&) {
      // In a signal handler within a call: the peers are in that call.
    }
  };
  try {
    return prepare();
  } catch (const std::invalid_argument& bad) {
    refuse(bad.what());
    throw;
  } catch (...) {
    refuse("an exception in its arguments");
    throw;
  }
}

}  // namespace collectives
