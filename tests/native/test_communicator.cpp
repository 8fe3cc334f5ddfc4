// The whole CPU path with ranks as threads of one process. They share one mapping, so ThreadSanitizer sees
// every race.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "cpu/communicator.h"

using namespace collectives;

namespace {

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (0)

// Runs body(communicator) on `world` threads that are connected with each other.
template <class Body>
void with_ranks(int world, double timeout, Body body) {
  std::vector<Announcement> all(static_cast<size_t>(world));
  std::barrier meeting(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank)
    threads.emplace_back([&, rank] {
      Communicator comm(rank, world, timeout, [] { return false; });
      all[static_cast<size_t>(rank)] = comm.announcement();
      meeting.arrive_and_wait();
      comm.connect(all);
      body(comm);
    });
  for (std::thread& thread : threads) thread.join();
}

Call make_call(Collective collective, const std::vector<int32_t>& in, std::vector<int32_t>& out, size_t count,
               Algorithm algorithm = Algorithm::automatic) {
  Call call;
  call.descriptor = {count, collective, Op::sum, DType::i32, algorithm, 0};
  call.in = reinterpret_cast<const char*>(in.data());
  call.out = reinterpret_cast<char*>(out.data());
  return call;
}

int32_t value(int rank, size_t i, int round) {
  return static_cast<int32_t>(static_cast<uint32_t>(i) * 2654435761u +
                              static_cast<uint32_t>(rank * 7919 + round));
}

void check_round(Communicator& comm, size_t count, int round, Algorithm algorithm) {
  const int world = comm.world();
  const size_t w = static_cast<size_t>(world);
  std::vector<int32_t> in(count * w), out(count * w);
  for (size_t i = 0; i < in.size(); ++i) in[i] = value(comm.rank(), i, round);
  auto sum = [&](size_t i) {
    uint32_t total = 0;
    for (int rank = 0; rank < world; ++rank) total += static_cast<uint32_t>(value(rank, i, round));
    return static_cast<int32_t>(total);
  };
  comm.run(make_call(Collective::all_reduce, in, out, count, algorithm));
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == sum(i));
  comm.run(make_call(Collective::reduce_scatter, in, out, count));
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == sum(static_cast<size_t>(comm.rank()) * count + i));
  const Algorithm moved = round % 2 == 0 ? Algorithm::direct : Algorithm::one_shot;
  comm.run(make_call(Collective::all_gather, in, out, count, moved));
  for (int rank = 0; rank < world; ++rank)
    for (size_t i = 0; i < count; ++i)
      CHECK(out[static_cast<size_t>(rank) * count + i] == value(rank, i, round));
  Call broadcast = make_call(Collective::broadcast, in, in, count, moved);
  broadcast.descriptor.root = static_cast<uint32_t>(round % world);
  comm.run(broadcast);
  for (size_t i = 0; i < count; ++i) CHECK(in[i] == value(round % world, i, round));
}

void test_stress(int world, int rounds) {
  with_ranks(world, 120, [&](Communicator& comm) {
    std::mt19937 agreed(17), own(static_cast<unsigned>(comm.rank()));
    for (int round = 0; round < rounds; ++round) {
      const size_t limit = round % 20 == 0 ? 300'000 : 3'000;
      const size_t count = agreed() % limit;
      const auto algorithm = static_cast<Algorithm>(round % 3 == 0 ? 0 : 1 + round % 3);
      if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 300));
      check_round(comm, count, round, algorithm);
    }
  });
}

void test_mismatch_and_refusal() {
  with_ranks(3, 60, [](Communicator& comm) {
    std::vector<int32_t> in(64, 1), out(64);
    for (int round = 0; round < 50; ++round) {
      try {
        comm.run(make_call(Collective::all_reduce, in, out, comm.rank() == 1 ? 32 : 64));
        CHECK(false);
      } catch (const Failure& failure) {
        CHECK(failure.cause == Cause::mismatched && failure.ranks == std::vector<int>{1});
      }
      // Refused twice in a row: the second must not overwrite the line that a slow peer still reads.
      for (int again = 0; again < 2; ++again) {
        try {
          if (comm.rank() == 2)
            comm.refuse(Collective::all_reduce, "no");
          else
            comm.run(make_call(Collective::all_reduce, in, out, 64));
          CHECK(comm.rank() == 2);
        } catch (const Failure& failure) {
          CHECK(failure.cause == Cause::refused && failure.ranks == std::vector<int>{2});
        }
      }
      comm.run(make_call(Collective::all_reduce, in, out, 64));
      for (int32_t x : out) CHECK(x == 3);
    }
    CHECK(comm.healthy());
  });
}

void test_timeout_names_the_late() {
  std::atomic<int> done = 0;
  with_ranks(3, 0.3, [&](Communicator& comm) {
    std::vector<int32_t> in(64, 1), out(64);
    if (comm.rank() == 1) {
      while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    } else {
      try {
        comm.run(make_call(Collective::all_reduce, in, out, 64));
        CHECK(false);
      } catch (const Failure& failure) {
        CHECK(failure.cause == Cause::timed_out && failure.ranks == std::vector<int>{1});
      }
      ++done;
    }
    try {
      comm.run(make_call(Collective::all_reduce, in, out, 64));
      CHECK(false);
    } catch (const Failure& failure) {
      CHECK(failure.cause == Cause::timed_out && failure.ranks == std::vector<int>{1});
    }
    CHECK(!comm.healthy());
  });
}

void test_abort_from_another_thread() {
  with_ranks(2, 60, [](Communicator& comm) {
    std::vector<int32_t> in(64, 1), out(64);
    std::thread aborter;
    if (comm.rank() == 0)
      aborter = std::thread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        comm.abort();
      });
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
    try {
      comm.run(make_call(Collective::all_reduce, in, out, 64));
      CHECK(false);
    } catch (const Failure& failure) {
      CHECK(failure.cause == Cause::aborted && failure.ranks == std::vector<int>{0});
    }
    if (aborter.joinable()) aborter.join();
  });
}

void test_leaving_early_harms_nobody() {
  for (int round = 0; round < 50; ++round)
    with_ranks(3, 60, [&](Communicator& comm) {
      check_round(comm, 70'000, round, Algorithm::two_shot);
      comm.close();
      CHECK(comm.closed());
    });
}

}  // namespace

int main() {
  for (int world : {1, 2, 3, 4, 5, 8}) test_stress(world, 120);
  test_mismatch_and_refusal();
  test_timeout_names_the_late();
  test_abort_from_another_thread();
  test_leaving_early_harms_nobody();
  std::puts("ok");
}
