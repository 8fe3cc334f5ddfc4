// Symmetric memory: the heap alone, and the algorithm with ranks as threads of one process, so that
// ThreadSanitizer sees both sides of every access.
#include "core/heap.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "core/process.h"
#include "rank_threads.h"

using namespace collectives;

namespace {

constexpr size_t kMega = 1 << 20;

struct OwnHeap {
  Arena arena;
  std::mutex mutex;
  Heap heap{arena, mutex};
};

void test_find() {
  OwnHeap own;
  Heap& heap = own.heap;
  CHECK(heap.base() == nullptr && !heap.find(&own, 1) && !heap.find(nullptr, 0));
  char* a = static_cast<char*>(heap.allocate(10'000));
  char* b = static_cast<char*>(heap.allocate(1));
  CHECK(reinterpret_cast<uintptr_t>(a) % 4096 == 0 && reinterpret_cast<uintptr_t>(b) % 4096 == 0);
  const auto offset = static_cast<uint64_t>(a - heap.base());
  CHECK(heap.find(a, 12'288) == offset && heap.find(a + 5, 100) == offset + 5);
  CHECK(!heap.find(a, 12'289) && !heap.find(a - 1, 2));
  CHECK(!heap.find(a, SIZE_MAX) && !heap.find(a + 8, SIZE_MAX - 4));
  CHECK(heap.find(a + 12'288, 0));  // nothing, at the end of it
  int elsewhere;
  CHECK(!heap.find(&elsewhere, sizeof elsewhere) && !heap.find(heap.base() + kWindowBytes, 1));
  // Two blocks side by side are not one.
  CHECK(b == a + 12'288 && !heap.find(a, 12'289) && heap.find(b, 4096));
  CHECK(heap.give_back(a) && !heap.find(a, 1) && heap.find(b, 1));
  CHECK(!heap.give_back(a) && !heap.give_back(b + 1) && !heap.give_back(nullptr) && !heap.give_back(&own));
}

void test_reuse() {
  OwnHeap own;
  Heap& heap = own.heap;
  void* a = heap.allocate(kMega);
  void* b = heap.allocate(2 * kMega);
  std::memset(a, 7, kMega);
  heap.give_back(a);
  heap.give_back(b);
  CHECK(heap.usage().kept_blocks == 2 && heap.usage().kept_bytes == 3 * kMega &&
        heap.usage().live_bytes == 0);
  // The best fit, with its pages.
  CHECK(heap.allocate(kMega - 5000) == a && static_cast<char*>(a)[5] == 7);
  // What would waste more than a fifth is not taken; it goes, so that no more is held than before.
  void* c = heap.allocate(kMega + kMega / 2);
  CHECK(c != b || heap.usage().kept_blocks == 0);
  CHECK(heap.usage().live_bytes + heap.usage().kept_bytes <= 3 * kMega);
  heap.give_back(a);
  heap.give_back(c);
  CHECK(heap.usage().live_bytes == 0);
  // New memory is used where the old went.
  for (int i = 0; i < 1000; ++i) {
    void* d = heap.allocate(4096 * (1 + static_cast<size_t>(i) % 300));
    CHECK(static_cast<char*>(d) - heap.base() <= static_cast<ptrdiff_t>(6 * kMega));
    heap.give_back(d);
  }
}

void test_limits() {
  OwnHeap own;
  Heap& heap = own.heap;
  std::vector<void*> blocks;
  for (size_t i = 0; i < 2 * Heap::kKeptBlocks; ++i) blocks.push_back(heap.allocate(1));
  for (void* block : blocks) heap.give_back(block);
  CHECK(heap.usage().kept_blocks == Heap::kKeptBlocks);
  void* large = heap.allocate(Heap::kKeptBytes + 4096);
  heap.give_back(large);
  CHECK(heap.usage().kept_bytes <= Heap::kKeptBytes && heap.usage().live_bytes == 0);
  for (const size_t bytes : {kWindowBytes + 1, SIZE_MAX, SIZE_MAX - 4096}) try {
      heap.allocate(bytes);
      CHECK(false);
    } catch (const NoSymmetricMemory& full) {
      CHECK(std::strstr(full.what(), "64 GB") != nullptr);
    }
  void* half = heap.allocate(kWindowBytes / 2);
  try {
    heap.allocate(kWindowBytes / 2 + 4096);
    CHECK(false);
  } catch (const NoSymmetricMemory&) {
  }
  CHECK(heap.give_back(half));
  CHECK(heap.allocate(kWindowBytes / 2) != nullptr);
}

// Against a simple model: no two live blocks meet, contents stay, find() knows what is live.
void test_random(unsigned seed) {
  OwnHeap own;
  Heap& heap = own.heap;
  std::mt19937 random(seed);
  struct Live {
    char* at;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Live> live;
  size_t most = 0;
  for (int step = 0; step < 3000; ++step) {
    if (live.size() < 20 && random() % 2 == 0) {
      const size_t bytes = 1 + random() % (random() % 8 == 0 ? 500'000 : 20'000);
      Live block{static_cast<char*>(heap.allocate(bytes)), bytes, static_cast<unsigned char>(step)};
      for (const Live& other : live)
        CHECK(block.at + bytes <= other.at || other.at + other.bytes <= block.at);
      block.at[0] = block.at[bytes - 1] = static_cast<char>(block.mark);
      live.push_back(block);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const Live block = live.back();
      live.pop_back();
      CHECK(static_cast<unsigned char>(block.at[0]) == block.mark &&
            static_cast<unsigned char>(block.at[block.bytes - 1]) == block.mark);
      CHECK(heap.find(block.at, block.bytes) && heap.give_back(block.at) && !heap.find(block.at, 1));
    }
    const Heap::Usage usage = heap.usage();
    size_t asked = 0;
    for (const Live& block : live) asked += block.bytes;
    CHECK(usage.live_bytes >= asked && usage.live_bytes <= asked + asked / 4 + live.size() * 2 * 4096);
    most = std::max(most, usage.live_bytes);
    CHECK(usage.live_bytes + usage.kept_bytes <= most);
  }
}

void test_threads() {
  OwnHeap own;
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id)
    threads.emplace_back([&, id] {
      std::mt19937 random(static_cast<unsigned>(id));
      for (int i = 0; i < 500; ++i) {
        const size_t bytes = 1 + random() % 50'000;
        char* block = static_cast<char*>(own.heap.allocate(bytes));
        block[0] = block[bytes - 1] = static_cast<char>(id);
        CHECK(own.heap.find(block, bytes));
        CHECK(block[0] == id && block[bytes - 1] == id);
        CHECK(own.heap.give_back(block));
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(own.heap.usage().live_bytes == 0);
}

void test_forked_child() {
  auto* block = static_cast<int*>(Process::current()->heap().allocate(4096));
  *block = 5;
  const pid_t child = fork();
  if (child == 0) {
    CHECK(*block == 5);
    *block = 6;
    Process::give_back(block);  // before the child has a heap of its own, and after
    auto* mine = static_cast<int*>(Process::current()->heap().allocate(4096));
    CHECK(mine != block);
    *mine = 7;
    Process::give_back(block);
    Process::give_back(mine);
    CHECK(*block == 6);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(*block == 6 && Process::current()->heap().find(block, 4096));
  Process::give_back(block);
  CHECK(!Process::current()->heap().find(block, 4096));
}

// An array of ints in symmetric memory, at any address that fits ints.
struct Ints {
  explicit Ints(size_t count, size_t offset)
      : block(static_cast<int32_t*>(Process::current()->heap().allocate((count + offset) * 4))),
        data(block + offset) {}
  ~Ints() { Process::give_back(block); }
  Ints(const Ints&) = delete;
  Ints& operator=(const Ints&) = delete;

  int32_t* block;
  int32_t* data;
};

int32_t value(int rank, size_t i, int round) {
  return static_cast<int32_t>(i % 1009) * 31 + rank * 7919 + round;
}

void check_round(Communicator& comm, size_t count, int round, bool in_place, size_t offset) {
  const auto w = static_cast<size_t>(comm.world()), rank = static_cast<size_t>(comm.rank());
  auto run = [&](Collective collective, const int32_t* in, int32_t* out, uint32_t root) {
    Call call;
    call.descriptor = {count, collective, Op::sum, DType::i32, Algorithm::symmetric, root};
    call.in = reinterpret_cast<const char*>(in);
    call.out = reinterpret_cast<char*>(out);
    comm.run(call);
    CHECK(comm.last_receipt()->descriptor.algorithm == Algorithm::symmetric);
    CHECK(comm.last_receipt()->staged_bytes == 0);
  };
  auto sum = [&](size_t i) {
    int32_t total = 0;
    for (int r = 0; r < comm.world(); ++r) total += value(r, i, round);
    return total;
  };
  Ints in(count * w, offset), apart(count * w, offset);
  auto fill = [&] {
    for (size_t i = 0; i < count * w; ++i) in.data[i] = value(comm.rank(), i, round);
  };
  fill();
  int32_t* out = in_place ? in.data : apart.data;
  run(Collective::all_reduce, in.data, out, 0);
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == sum(i));
  fill();
  out = in_place ? in.data + rank * count : apart.data;
  run(Collective::reduce_scatter, in.data, out, 0);
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == sum(rank * count + i));
  fill();
  const int32_t* own = in.data;
  if (in_place) {
    std::copy_n(in.data, count, apart.data + rank * count);
    own = apart.data + rank * count;
  }
  run(Collective::all_gather, own, apart.data, 0);
  for (size_t r = 0; r < w; ++r)
    for (size_t i = 0; i < count; ++i)
      CHECK(apart.data[r * count + i] == value(static_cast<int>(r), i, round));
  const int root = round % comm.world();
  run(Collective::broadcast, in.data, in.data, static_cast<uint32_t>(root));
  for (size_t i = 0; i < count; ++i) CHECK(in.data[i] == value(root, i, round));
}

void test_algorithm(int world, int rounds) {
  with_ranks(world, 120, [&](Communicator& comm) {
    std::mt19937 agreed(23), own(static_cast<unsigned>(comm.rank()));
    for (int round = 0; round < rounds; ++round) {
      const size_t count = agreed() % (round % 10 == 0 ? 600'000 / static_cast<size_t>(world) : 3'000);
      check_round(comm, count, round, agreed() % 2 == 0, own() % 40);
    }
  });
}

}  // namespace

int main() {
  test_find();
  test_reuse();
  test_limits();
  for (unsigned seed = 0; seed < 3; ++seed) test_random(seed);
  test_threads();
  for (int world : {1, 2, 3, 5, 8}) test_algorithm(world, 30);
  test_forked_child();
  std::puts("ok");
}
