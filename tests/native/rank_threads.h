// Ranks as threads of one process: they share one mapping, so ThreadSanitizer sees every race.
#pragma once

#include <barrier>
#include <thread>
#include <vector>

#include "cpu/communicator.h"

namespace collectives {

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

}  // namespace collectives
