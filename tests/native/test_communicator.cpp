// The whole CPU path with ranks as threads of one process. They share one mapping, so ThreadSanitizer sees
// every race.
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/communicator.h"
#include "rank_threads.h"

using namespace collectives;

namespace {

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

// The calls that only some ranks give to or get from.
void check_rooted(Communicator& comm, size_t count, int round, Algorithm algorithm) {
  const int world = comm.world(), root = round % world;
  const size_t w = static_cast<size_t>(world), rank = static_cast<size_t>(comm.rank());
  const bool is_root = comm.rank() == root;
  std::vector<int32_t> in(count * w), out(count * w, -1);
  for (size_t i = 0; i < in.size(); ++i) in[i] = value(comm.rank(), i, round);
  auto run = [&](Collective collective, Algorithm how) {
    std::fill(out.begin(), out.end(), -1);
    Call call = make_call(collective, in, out, count, how);
    call.descriptor.root = static_cast<uint32_t>(root);
    comm.run(call);
  };
  const Algorithm moved = round % 2 == 0 ? Algorithm::direct : Algorithm::one_shot;
  run(Collective::reduce, algorithm);
  for (size_t i = 0; i < count; ++i) {
    uint32_t total = 0;
    for (int peer = 0; peer < world; ++peer) total += static_cast<uint32_t>(value(peer, i, round));
    CHECK(out[i] == (is_root ? static_cast<int32_t>(total) : -1));
  }
  run(Collective::gather, moved);
  for (int peer = 0; peer < world; ++peer)
    for (size_t i = 0; i < count; ++i)
      CHECK(out[static_cast<size_t>(peer) * count + i] == (is_root ? value(peer, i, round) : -1));
  run(Collective::scatter, moved);
  for (size_t i = 0; i < count; ++i) CHECK(out[i] == value(root, rank * count + i, round));
  run(Collective::all_to_all, moved);
  for (int peer = 0; peer < world; ++peer)
    for (size_t i = 0; i < count; ++i)
      CHECK(out[static_cast<size_t>(peer) * count + i] == value(peer, rank * count + i, round));
}

// all_to_all of uneven parts; every third time two ranks do not agree on one of them.
void check_counted(Communicator& comm, size_t count, int round) {
  const int world = comm.world(), rank = comm.rank();
  auto part = [&](int from, int to) {
    return static_cast<uint64_t>((from + 2 * to + round) % 3) * count / 2;
  };
  std::vector<uint64_t> send, receive;
  for (int peer = 0; peer < world; ++peer) {
    send.push_back(part(rank, peer));
    receive.push_back(part(peer, rank));
  }
  std::vector<int32_t> in, out(count * static_cast<size_t>(world));
  for (int peer = 0; peer < world; ++peer)
    for (size_t i = 0; i < send[static_cast<size_t>(peer)]; ++i)
      in.push_back(value(rank, i, round + 31 * peer));
  Call call = make_call(Collective::all_to_all_v, in, out, 0);
  call.send_counts = send.data();
  call.recv_counts = receive.data();
  if (round % 3 == 0) {
    if (rank == 0) ++receive.back();
    try {
      comm.run(call);
      CHECK(false);
    } catch (const Failure& failure) {
      CHECK(failure.cause == Cause::mismatched && failure.ranks.front() == 0 &&
            failure.ranks.back() == world - 1);
    }
    if (rank == 0) --receive.back();
  }
  comm.run(call);
  size_t at = 0;
  for (int peer = 0; peer < world; ++peer)
    for (size_t i = 0; i < part(peer, rank); ++i) CHECK(out[at++] == value(peer, i, round + 31 * rank));
}

// Each rank its own factor, which travels in the first line.
void check_premul(Communicator& comm, size_t count, int round) {
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = static_cast<float>(value(comm.rank(), i, round)) * 0x1p-20f;
  Call call;
  call.descriptor = {count, Collective::all_reduce, Op::premul_sum, DType::f32, Algorithm::automatic, 0};
  call.in = reinterpret_cast<const char*>(x.data());
  call.out = reinterpret_cast<char*>(x.data());
  auto factor = [&](int rank) { return 0.1 * (rank + 1 + round % 7); };
  call.factor = factor(comm.rank());
  comm.run(call);
  for (size_t i = 0; i < count; ++i) {
    volatile float total = 0;
    for (int rank = 0; rank < comm.world(); ++rank) {
      const volatile float term =
          static_cast<float>(value(rank, i, round)) * 0x1p-20f * static_cast<float>(factor(rank));
      total = rank == 0 ? term : total + term;
    }
    CHECK(x[i] == total);
  }
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
      check_rooted(comm, count, round, algorithm);
      check_counted(comm, count, round);
      check_premul(comm, count, round);
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

void test_timeout_of_one_call() {
  std::atomic<bool> gave_up = false;
  with_ranks(2, 60, [&](Communicator& comm) {
    std::vector<int32_t> in(64, 1), out(64);
    Call call = make_call(Collective::all_reduce, in, out, 64);
    call.timeout = 0.2;
    comm.run(call);
    CHECK(comm.epoch() == 1);
    try {
      if (comm.rank() == 0) comm.run(call);
      CHECK(comm.rank() == 1);
    } catch (const Failure& failure) {
      CHECK(failure.cause == Cause::timed_out && failure.ranks == std::vector<int>{1});
      CHECK(std::strstr(failure.what(), "timeout of 0.2 s") != nullptr);
    }
    if (comm.rank() == 0) gave_up = true;
    while (!gave_up) std::this_thread::sleep_for(std::chrono::milliseconds(5));
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
  test_timeout_of_one_call();
  test_abort_from_another_thread();
  test_leaving_early_harms_nobody();
  std::puts("ok");
}
