#include "torch/backend.h"

#include <ATen/ops/from_blob.h>
#include <Python.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace collectives::torch_adapter {
namespace {

struct Live {
  std::mutex mutex;
  std::unordered_set<Backend*> backends;
};
// Never destroyed: groups may outlive static destruction.
Live& live() {
  static Live* all = new Live;
  return *all;
}

double seconds_of(std::chrono::milliseconds timeout) {
  return timeout == c10d::kUnsetTimeout ? 0 : std::chrono::duration<double>(timeout).count();
}

std::exception_ptr closed() {
  return std::make_exception_ptr(
      Failure(COLLECTIVES_CLOSED, "the process group was shut down before this call ran", "", 0, {}));
}

// Of this thread: coalescing blocks that are open.
struct Block {
  const Backend* backend;
  std::vector<c10::intrusive_ptr<Work>> parts;
};
thread_local std::vector<Block> blocks;

// Some callers come with the GIL, and a call of another thread may need it to end.
class WithoutGil {
 public:
  WithoutGil() : saved_(Py_IsInitialized() != 0 && PyGILState_Check() != 0 ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (saved_ != nullptr) PyEval_RestoreThread(saved_);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* saved_;
};

}  // namespace

Backend::Backend(int rank, int size, double timeout, c10::intrusive_ptr<GroupOptions> options)
    : c10d::Backend(rank, size),
      options_(std::move(options)),
      core_(table().create(rank, size, timeout, interrupted, nullptr)),
      queue_(std::make_shared<Queue>()) {
  if (core_ == nullptr) check(COLLECTIVES_BAD_ARGUMENT, Collective::barrier);
  const std::lock_guard lock(live().mutex);
  live().backends.insert(this);
}

Backend::~Backend() {
  if (forked()) {
    // In a forked child: the threads that may hold the locks are not here.
    new std::shared_ptr<Queue>(std::move(queue_));
    return;
  }
  {
    const std::lock_guard lock(live().mutex);
    live().backends.erase(this);
  }
  std::erase_if(blocks, [this](const Block& block) { return block.backend == this; });
  const WithoutGil released;
  shutdown();
  table().destroy(core_);
}

void Backend::release_resources() {
  if (forked()) return;
  const WithoutGil released;
  shutdown();
  make_fallback_ = nullptr;
  fallback_.reset();
}

void shutdown_all() {
  std::vector<Backend*> all;
  {
    const std::lock_guard lock(live().mutex);
    all.assign(live().backends.begin(), live().backends.end());
  }
  for (Backend* backend : all) backend->shutdown();
}

std::string Backend::announcement() const {
  std::string blob(table().announcement(core_, nullptr, 0), '\0');
  table().announcement(core_, blob.data(), blob.size());
  return blob;
}

void Backend::connect(const std::string& announcements) {
  check(table().connect(core_, announcements.data(), announcements.size()), Collective::barrier);
}

std::string Backend::flight_record(int rank) const {
  std::string records(table().flight(core_, rank, nullptr, 0), '\0');
  const size_t bytes = table().flight(core_, rank, records.data(), records.size());
  records.resize(std::min(records.size(), bytes));
  return records;
}

void Backend::run(const Described& d) {
  collectives_call call{};
  call.in = d.in;
  call.out = d.out;
  call.count = d.count;
  call.root = static_cast<uint32_t>(d.root);
  call.collective = static_cast<uint8_t>(d.collective);
  call.op = static_cast<uint8_t>(d.reduction.op);
  call.dtype = static_cast<uint8_t>(d.dtype);
  call.timeout = seconds_of(d.timeout);
  call.factor = d.reduction.factor;
  call.send_counts = d.send_counts;
  call.recv_counts = d.recv_counts;
  call.shape = d.shape.data();
  call.dims = static_cast<uint32_t>(d.shape.size());
  if (estimate_) {
    *estimate_ += table().estimate(core_, &call);
    return;
  }
  const int status = table().run(core_, &call);
  if (status == COLLECTIVES_OK) return;
  if (status != COLLECTIVES_BAD_ARGUMENT) last_failure_ = status;
  check(status, d.collective);
}

Backend::Handle Backend::enqueue(c10d::OpType type, const char* title, bool async, const Tensors& outputs,
                                 std::function<void()> body) {
  auto work =
      c10::make_intrusive<QueuedWork>(rank_, type, title, outputs, sequence_.load(), queue_, std::move(body));
  queue_->push(work);
  if (auto* block = coalesced()) {
    block->push_back(work);
    return work;
  }
  if (async) return work;
  work->wait(kNoTimeout);
  return nullptr;
}

void Backend::refuse(Collective collective, const std::string& reason) {
  auto body = [core = core_, collective, reason] {
    table().refuse(core, static_cast<uint8_t>(collective), reason.c_str());
  };
  if (queue_->try_enter()) {
    body();
    return queue_->leave();
  }
  // It takes its turn; the caller raises without waiting for it.
  queue_->push(c10::make_intrusive<QueuedWork>(rank_, c10d::OpType::UNKNOWN, nullptr, Tensors{},
                                               sequence_.load(), queue_, std::move(body)));
}

int64_t Backend::check_root(int64_t root) const {
  if (root < 0 || root >= size_)
    throw BadInput("root " + std::to_string(root) + " is not a rank of this group of " +
                   std::to_string(size_));
  return root;
}

Backend::Handle Backend::barrier(const c10d::BarrierOptions& opts) {
  return begin(Collective::barrier, c10d::OpType::BARRIER, "collectives:barrier", opts.asyncOp, {}, [&] {
    return [this, timeout = opts.timeout] {
      Described call;
      call.timeout = timeout;
      run(call);
    };
  });
}

// The core names every rank that is missing, on every rank that is there, so waiting for all or not is one.
void Backend::monitoredBarrier(const c10d::BarrierOptions& opts, bool) {
  c10d::BarrierOptions synchronous = opts;
  synchronous.asyncOp = false;
  barrier(synchronous);
}

std::vector<c10::intrusive_ptr<Work>>* Backend::coalesced() const {
  for (Block& block : blocks)
    if (block.backend == this) return &block.parts;
  return nullptr;
}

void Backend::startCoalescing() {
  if (coalesced() == nullptr) blocks.push_back({this, {}});
}

Backend::Handle Backend::endCoalescing() {
  auto* parts = coalesced();
  if (parts == nullptr) throw BadInput("endCoalescing without startCoalescing in this thread");
  auto work = c10::make_intrusive<CoalescedWork>(rank_, sequence_.load(), std::move(*parts));
  std::erase_if(blocks, [this](const Block& block) { return block.backend == this; });
  work->watch();
  return work;
}

double Backend::end_time_estimate() { return std::exchange(estimate_, std::nullopt).value_or(0) * 1e3; }

at::Tensor Backend::allocateTensor(long size, at::TensorOptions options) {
  if (!options.device().is_cpu())
    throw BadInput("allocate_tensor: this version has CPU memory only, not " + options.device().str());
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (size < 0) throw BadInput("allocate_tensor: a negative size");
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(size), c10::elementSize(type), &bytes))
    throw BadInput("allocate_tensor: " + std::to_string(size) + " elements fit into no memory");
  void* memory = table().allocate(std::max<size_t>(bytes, 1));
  if (memory == nullptr) check(COLLECTIVES_ERROR, Collective::barrier);
  return at::from_blob(
      memory, {size}, [](void* given) { table().give_back(given); }, at::TensorOptions().dtype(type));
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  if (timeout.count() <= 0) throw BadInput("the timeout must be positive");
  options_->timeout = timeout;
  table().set_timeout(core_, seconds_of(timeout));
}

c10d::ErrorType Backend::getError() {
  if (table().healthy(core_) != 0 || down_) return c10d::ErrorType::SUCCESS;
  switch (last_failure_.load()) {
    case COLLECTIVES_TIMED_OUT:
      return c10d::ErrorType::TIMEOUT;
    case COLLECTIVES_DIED:
    case COLLECTIVES_ABORTED:
    case COLLECTIVES_CLOSED:
      return c10d::ErrorType::REMOTE_ERROR;
    default:
      return c10d::ErrorType::COMM_ERROR;
  }
}

void Backend::abort() {
  if (forked()) return;
  table().abort(core_);
  if (fallback_) fallback_->abort();
}

void Backend::shutdown() {
  if (forked() || down_.exchange(true)) return;
  const WithoutGil released;
  table().close(core_);  // a call in flight ends with an exception
  queue_->stop(closed());
  if (fallback_) fallback_->shutdown();
}

}  // namespace collectives::torch_adapter
