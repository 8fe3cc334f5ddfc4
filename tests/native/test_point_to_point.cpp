// Messages with ranks as threads of one process. They share one mapping, so ThreadSanitizer sees every race.
// Long, because all parts use the same patterns of values; to be split by subject, as the Python tests are.
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/communicator.h"
#include "rank_threads.h"

using namespace collectives;

namespace {

using Ints = std::vector<uint32_t>;

PointToPoint& messages(Communicator& comm) { return comm.messages(Collective::send); }

Message message(Ints& x, int peer, uint32_t tag, double timeout = 60) {
  return {x.data(), x.size(), DType::u32, peer, tag, timeout};
}

void pause_for(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

template <class Body>
Failure failure_of(Body body) {
  try {
    body();
  } catch (const Failure& failure) {
    return failure;
  }
  std::fprintf(stderr, "nothing failed\n");
  std::abort();
}

// The i-th element of the k-th message from one rank to another with a tag.
uint32_t value(int from, int to, uint32_t tag, uint32_t k, size_t i) {
  return (static_cast<uint32_t>(from * 31 + to) * 2654435761u) ^ (tag * 40503u + k * 69069u) ^
         static_cast<uint32_t>(i * 2246822519u);
}

void fill(Ints& x, int from, int to, uint32_t tag, uint32_t k) {
  for (size_t i = 0; i < x.size(); ++i) x[i] = value(from, to, tag, k, i);
}

void check(const Ints& x, int from, int to, uint32_t tag, uint32_t k) {
  for (size_t i = 0; i < x.size(); ++i) CHECK(x[i] == value(from, to, tag, k, i));
}

// The ring by itself: images of all sizes through a small ring, across its end and across the wrap of 2^32.
void test_ring() {
  constexpr size_t kBytes = 4096;
  std::vector<char> data(kBytes);
  constexpr uint32_t kBegin = ~uint32_t{0} - (1 << 20) + 1;
  RealMemory::Word written{kBegin}, taken{kBegin};
  Doorbell<RealMemory::Word> bell{};
  RingWriter<RealMemory> writer(data.data(), kBytes, written, taken, bell);
  RingReader<RealMemory> reader(data.data(), kBytes, taken, written, bell);
  std::mt19937 random(5);
  for (uint32_t k = 0; k < 2000; ++k) {
    const size_t bytes = random() % 9000;
    std::vector<char> out(bytes), in(bytes);
    for (size_t i = 0; i < bytes; ++i) out[i] = static_cast<char>(k * 7 + i * 13);
    const MessageHeader header{bytes, bytes, k, 0, {}};
    MessageHeader seen{};
    CHECK(!reader.next(seen));
    size_t put = 0, got = 0;
    const size_t whole = image_bytes(bytes);
    while (got < whole) {
      const size_t step = writer.put(header, out.data(), put, 4096);
      put += step;
      if (got == 0) CHECK(reader.next(seen) && seen.tag == k && seen.bytes == bytes);
      const size_t taken_now = reader.take(seen, in.data(), got, 4096);
      CHECK(step + taken_now > 0);
      got += taken_now;
    }
    CHECK(put == whole && got == whole);
    CHECK(out == in);
  }
  CHECK(written == taken && written < kBegin);
}

// Every rank exchanges random messages with every other one and itself, sent and received in orders of its
// own, blocking or not, with collectives among them.
void test_stress(int world, unsigned seed, int rounds) {
  with_ranks(world, 120, [&](Communicator& comm) {
    PointToPoint& p2p = messages(comm);
    const int rank = comm.rank();
    std::mt19937 own(seed * 1000 + static_cast<unsigned>(rank));
    for (int round = 0; round < rounds; ++round) {
      // What goes from whom to whom: all ranks agree.
      struct Planned {
        int from, to;
        uint32_t tag, k;
        size_t count;
      };
      std::mt19937 agreed(seed + static_cast<unsigned>(round) * 7919);
      std::vector<Planned> plan;
      for (uint32_t k = 0; k < 6 * static_cast<uint32_t>(world); ++k) {
        const size_t size = agreed() % 8 == 0 ? agreed() % 200'000 : agreed() % 300;
        plan.push_back({static_cast<int>(agreed() % static_cast<unsigned>(world)),
                        static_cast<int>(agreed() % static_cast<unsigned>(world)),
                        static_cast<uint32_t>(agreed() % 3), k, size});
      }
      struct Job {
        Planned what;
        Ints data;
        std::shared_ptr<Request> request;
      };
      std::vector<Job> sends, receives;
      for (const Planned& p : plan) {
        if (p.from == rank) sends.push_back({p, Ints(p.count), nullptr});
        if (p.to == rank) receives.push_back({p, Ints(p.count), nullptr});
      }
      // Receives keep their order per sender and tag; between those anything goes.
      for (size_t i = 0; i + 1 < receives.size(); ++i) {
        Job &a = receives[i], &b = receives[i + 1];
        if (own() % 2 == 0 && (a.what.from != b.what.from || a.what.tag != b.what.tag)) std::swap(a, b);
      }
      const bool receives_first = own() % 2 == 0;
      auto post_receives = [&] {
        for (Job& job : receives) job.request = p2p.post_recv(message(job.data, job.what.from, job.what.tag));
      };
      if (receives_first) post_receives();
      for (Job& job : sends) {
        fill(job.data, rank, job.what.to, job.what.tag, job.what.k);
        job.request = p2p.post_send(message(job.data, job.what.to, job.what.tag));
        if (own() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own() % 200));
      }
      if (!receives_first) post_receives();
      if (round % 4 == 0) {
        Call call;
        call.descriptor.collective = Collective::barrier;
        comm.run(call);
      }
      std::vector<std::shared_ptr<Request>> all;
      for (const Job& job : sends) all.push_back(job.request);
      for (const Job& job : receives) all.push_back(job.request);
      std::shuffle(all.begin(), all.end(), own);
      for (const auto& request : all)
        if (own() % 3 != 0) p2p.wait(request);
      for (const auto& request : all) p2p.wait(request);
      for (const Job& job : receives) {
        check(job.data, job.what.from, rank, job.what.tag, job.what.k);
        CHECK(job.request->source() == job.what.from);
      }
    }
  });
}

void test_any_source(int world) {
  with_ranks(world, 60, [&](Communicator& comm) {
    constexpr uint32_t kEach = 200;
    if (comm.rank() != 0) {
      for (uint32_t k = 0; k < kEach; ++k) {
        Ints x(10);
        fill(x, comm.rank(), 0, 1, k);
        messages(comm).send(message(x, 0, 1));
      }
      return;
    }
    std::vector<uint32_t> seen(static_cast<size_t>(world));
    for (uint32_t i = 0; i < kEach * static_cast<uint32_t>(world - 1); ++i) {
      Ints x(10);
      const int from = messages(comm).recv(message(x, kAnySource, 1));
      check(x, from, 0, 1, seen[static_cast<size_t>(from)]++);
    }
    for (int rank = 1; rank < world; ++rank) CHECK(seen[static_cast<size_t>(rank)] == kEach);
  });
}

// Several threads of each rank, each with a tag of its own, and one that makes collectives.
void test_threads() {
  with_ranks(3, 60, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3, before = (comm.rank() + 2) % 3;
    std::vector<std::thread> threads;
    for (uint32_t tag = 0; tag < 3; ++tag)
      threads.emplace_back([&, tag] {
        for (uint32_t k = 0; k < 60; ++k) {
          Ints out(k % 10 == 0 ? 100'000 : 20), in(out.size());
          fill(out, comm.rank(), next, tag, k);
          const auto request = messages(comm).post_send(message(out, next, tag));
          messages(comm).recv(message(in, before, tag));
          check(in, before, comm.rank(), tag, k);
          messages(comm).wait(request);
        }
      });
    Call call;
    call.descriptor.collective = Collective::barrier;
    for (int i = 0; i < 60; ++i) comm.run(call);
    for (std::thread& thread : threads) thread.join();
  });
}

// A send that nobody waits for goes on while its rank is in a collective.
void test_send_then_collective() {
  for (int round = 0; round < 10; ++round)
    with_ranks(2, 60, [&](Communicator& comm) {
      Ints x(1'000'000);
      std::shared_ptr<Request> request;
      if (comm.rank() == 0) {
        fill(x, 0, 1, 5, 0);
        request = messages(comm).post_send(message(x, 1, 5));
        CHECK(!request->finished());
      } else {
        messages(comm).recv(message(x, 0, 5));
        check(x, 0, 1, 5, 0);
      }
      Call call;
      call.descriptor.collective = Collective::barrier;
      comm.run(call);
      if (request) messages(comm).wait(request);
    });
}

void test_mismatch() {
  with_ranks(2, 60, [](Communicator& comm) {
    PointToPoint& p2p = messages(comm);
    for (int round = 0; round < 20; ++round) {
      Ints x(round % 2 == 0 ? 8 : 300'000), small(7), right(x.size());
      if (comm.rank() == 0) {
        fill(x, 0, 1, 0, 0);
        p2p.send(message(x, 1, 0));
        p2p.send(message(x, 1, 0));
        continue;
      }
      const Failure failure = failure_of([&] { p2p.recv(message(small, 0, 0)); });
      CHECK(failure.cause == Cause::mismatched && failure.ranks == std::vector<int>{0});
      CHECK(std::string(failure.what()).find("7 elements") != std::string::npos);
      CHECK(std::string(failure.what()).find(std::to_string(x.size())) != std::string::npos);
      p2p.recv(message(right, 0, 0));
      check(right, 0, 1, 0, 0);
    }
    CHECK(comm.healthy());
    // To the rank itself, both ways round.
    Ints x(5), y(6);
    auto request = p2p.post_recv(message(y, comm.rank(), 9));
    p2p.send(message(x, comm.rank(), 9));
    CHECK(failure_of([&] { p2p.wait(request); }).cause == Cause::mismatched);
    p2p.send(message(x, comm.rank(), 9));
    CHECK(failure_of([&] { p2p.recv(message(y, kAnySource, 9)); }).cause == Cause::mismatched);
  });
}

void test_timeouts() {
  std::atomic<bool> done = false;
  with_ranks(2, 60, [&](Communicator& comm) {
    if (comm.rank() == 1) {
      while (!done) pause_for(5);
      return;
    }
    Ints x(10);
    auto request = messages(comm).post_recv(message(x, 1, 3));
    const Failure pending = failure_of([&] { messages(comm).wait(request, 0.05); });
    CHECK(pending.cause == Cause::timed_out && comm.healthy() && !request->finished());
    const Failure late = failure_of([&] { messages(comm).recv(message(x, 1, 4, 0.1)); });
    CHECK(late.cause == Cause::timed_out && late.ranks == std::vector<int>{1} && !comm.healthy());
    // The other one ended with it.
    CHECK(failure_of([&] { messages(comm).wait(request); }).cause == Cause::timed_out);
    CHECK(failure_of([&] { messages(comm).send(message(x, 1, 4)); }).cause == Cause::timed_out);
    done = true;
  });
}

// What a rank sent before it closed is received; what it did not send fails, at once.
void test_send_and_close() {
  for (int round = 0; round < 30; ++round)
    with_ranks(2, 60, [&](Communicator& comm) {
      Ints x(round % 3 == 0 ? 60'000 : 40);
      if (comm.rank() == 0) {
        for (uint32_t tag : {1u, 2u}) {
          fill(x, 0, 1, tag, 0);
          if (x.size() > 1000 && tag == 1) continue;
          messages(comm).send(message(x, 1, tag));
        }
        comm.close();
        return;
      }
      if (round % 2 == 0) pause_for(10);
      for (uint32_t tag : {2u, 1u}) {
        if (x.size() > 1000 && tag == 1) continue;
        messages(comm).recv(message(x, round % 2 == 0 ? 0 : kAnySource, tag));
        check(x, 0, 1, tag, 0);
      }
      const Failure failure = failure_of([&] { messages(comm).recv(message(x, 0, 3)); });
      CHECK(failure.cause == Cause::closed && failure.ranks == std::vector<int>{0});
    });
}

struct Tally {
  std::atomic<int> calls = 0, failures = 0;
  static void done(void* self, const Failure* failure) {
    ++static_cast<Tally*>(self)->calls;
    if (failure != nullptr) ++static_cast<Tally*>(self)->failures;
  }
};

// abort() and close() end what is pending, in whichever thread somebody waits, and `done` is called once.
void test_abort_and_close(bool aborts) {
  for (int round = 0; round < 20; ++round) {
    Tally tally;
    std::atomic<bool> over = false;
    with_ranks(2, 60, [&](Communicator& comm) {
      if (comm.rank() == 1) {
        while (!over) pause_for(1);
        return;
      }
      Ints x(1'000'000), y(10);
      const auto sent = messages(comm).post_send(message(x, 1, 0), Tally::done, &tally);
      const auto received = messages(comm).post_recv(message(y, 1, 0), Tally::done, &tally);
      PointToPoint& p2p = messages(comm);
      const auto kept = p2p.shared_from_this();
      std::thread waiter([&] {
        const Failure failure = failure_of([&] { p2p.wait(received); });
        CHECK(failure.cause == (aborts ? Cause::aborted : Cause::closed));
      });
      if (round % 2 == 0) pause_for(round);
      aborts ? comm.abort() : comm.close();
      CHECK(failure_of([&] { p2p.wait(sent); }).ranks == std::vector<int>{0});
      waiter.join();
      CHECK(failure_of([&] { p2p.send(message(y, 1, 0)); }).cause ==
            (aborts ? Cause::aborted : Cause::closed));
      over = true;
    });
    CHECK(tally.calls == 2 && tally.failures == 2);
  }
}

// `done` may begin the next message, and close the communicator; nobody waits for these.
void test_done_goes_on() {
  struct Chain {
    PointToPoint* p2p;
    int peer;
    Ints x = Ints(50'000);
    std::atomic<int> left = 40;
    static void done(void* context, const Failure* failure) {
      auto* self = static_cast<Chain*>(context);
      CHECK(failure == nullptr);
      if (--self->left > 0) self->begin();
    }
    void begin() {
      const Message m = message(x, peer, 0);
      peer == 1 ? p2p->post_send(m, done, this) : p2p->post_recv(m, done, this);
    }
  };
  std::barrier both(2);
  with_ranks(2, 60, [&](Communicator& comm) {
    Chain chain{&messages(comm), 1 - comm.rank()};
    chain.begin();
    while (chain.left > 0) pause_for(1);
    both.arrive_and_wait();
    static std::atomic<int> closed = 0;
    Ints x(1);
    auto close = [](void* context, const Failure*) {
      static_cast<Communicator*>(context)->close();
      ++closed;
    };
    messages(comm).post_recv(message(x, comm.rank(), 1), close, &comm);
    messages(comm).send(message(x, comm.rank(), 1));
    CHECK(comm.closed());
    both.arrive_and_wait();
    CHECK(closed == 2);
  });
}

// A rank that leaves must not disturb those that use its memory next.
void test_many_short_lives() {
  for (int round = 0; round < 60; ++round)
    with_ranks(3, 60, [&](Communicator& comm) {
      const int next = (comm.rank() + 1) % 3;
      Ints out(round % 5 == 0 ? 200'000 : 100), in(out.size());
      fill(out, comm.rank(), next, 0, 0);
      const auto received = messages(comm).post_recv(message(in, kAnySource, 0));
      const auto sent = messages(comm).post_send(message(out, next, 0));
      messages(comm).wait(received);
      check(in, (comm.rank() + 2) % 3, comm.rank(), 0, 0);
      messages(comm).wait(sent);
      comm.close();
    });
}

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = argc > 1 ? static_cast<unsigned>(std::atoi(argv[1])) : 1;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  test_ring();
  for (int world : {1, 2, 3, 4, 5, 8}) test_stress(world, seed, rounds);
  for (int world : {2, 5}) test_any_source(world);
  test_threads();
  test_send_then_collective();
  test_mismatch();
  test_timeouts();
  test_send_and_close();
  test_abort_and_close(true);
  test_abort_and_close(false);
  test_done_goes_on();
  test_many_short_lives();
  std::puts("ok");
}
