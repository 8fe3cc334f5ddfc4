// What init_process_group(pg_options=...) may say.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

namespace collectives::torch_adapter {

struct GroupOptions final : c10d::Backend::Options {
  enum class Fallback { log, silent, error };

  explicit GroupOptions(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options("collectives", timeout) {}

  Fallback fallback = Fallback::log;  // what to do where another library must make a call
};

}  // namespace collectives::torch_adapter
