// One thread writes a flight record while others read it: no reader gets half of one call and half of
// another. Relaxed and release stores alone, so ThreadSanitizer sees every race.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "check.h"
#include "cpu/flight.h"

using namespace collectives;

namespace {

std::unique_ptr<FlightPages> make_pages() {
  auto pages = std::make_unique<FlightPages>();
  open_flight_pages(*pages);
  return pages;
}

// Call n has values that all follow from n.
uint64_t write(FlightRing& ring, uint64_t n) {
  const auto value = static_cast<int64_t>(n);
  const int64_t shape[] = {value, value + 1, value + 2, value + 3, value + 4, value + 5};
  const Descriptor d{n, Collective(n % 5), Op(n % 9), DType(n % 17), Algorithm::automatic, uint32_t(n)};
  return ring.begin(d, n, shape, 6, static_cast<uint32_t>(n));
}

void check_whole(const FlightRecord& r) {
  const uint64_t n = r.epoch;
  CHECK(r.serial == n && r.count == n && r.root == uint32_t(n) && r.tag == uint32_t(n));
  CHECK(r.collective == n % 5 && r.op == n % 9 && r.dtype == n % 17 && r.dims == 6);
  for (int64_t i = 0; i < 6; ++i) CHECK(r.shape[i] == static_cast<int64_t>(n) + i);
  CHECK(r.queued_at != 0);
  // The state comes with its times.
  CHECK((r.state == FlightRecord::queued) <= (r.algorithm == 0));
  if (r.state == FlightRecord::completed) {
    CHECK(r.algorithm == uint8_t(Algorithm::one_shot) && r.started_at != 0 && r.ended_at != 0);
    CHECK(r.queued_at <= r.started_at && r.started_at <= r.ended_at);
  }
}

void test_torn_reads() {
  const auto pages = make_pages();
  std::atomic<bool> done{false};
  std::atomic<int> ready{0};
  std::vector<std::thread> readers;
  std::atomic<uint64_t> seen{0};
  for (int i = 0; i < 2; ++i)
    readers.emplace_back([&] {
      ready++;
      while (!done) {
        const std::vector<FlightRecord> records = read_flight(*pages);
        CHECK(records.size() <= kFlightRecords);
        for (size_t k = 0; k < records.size(); ++k) {
          check_whole(records[k]);
          CHECK(k == 0 || records[k - 1].serial < records[k].serial);
        }
        seen += records.size();
      }
    });
  while (ready < 2) std::this_thread::yield();
  FlightRing ring(pages->calls);
  uint64_t n = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  while (std::chrono::steady_clock::now() < end || seen < 10'000) {
    const uint64_t serial = write(ring, ++n);
    CHECK(serial == n);
    ring.start(serial);
    ring.end(serial, FlightRecord::completed, Algorithm::one_shot);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(n > kFlightRecords);
  const std::vector<FlightRecord> records = read_flight(*pages);
  CHECK(records.size() == kFlightRecords && records.back().serial == n);
}

void test_states_and_words() {
  const auto pages = make_pages();
  CHECK(last_call(read_flight(*pages)) == "");
  FlightRing ring(pages->calls);
  const Descriptor d{100, Collective::all_reduce, Op::sum, DType::f32, Algorithm::two_shot, 0};
  auto last = [&] { return last_call(read_flight(*pages)); };
  const uint64_t serial = ring.begin(d, 7, nullptr, 0);
  CHECK(last().starts_with("all_reduce(sum, float32, 100 elements), call 7, waiting in it for 0."));
  CHECK(read_flight(*pages)[0].dims == kNoShape);
  ring.start(serial);
  CHECK(last().starts_with("all_reduce(sum, float32, 100 elements), call 7, in it for 0."));
  ring.end(serial, FlightRecord::completed, Algorithm::two_shot);
  CHECK(last().find("call 7, completed 0.") != std::string::npos && last().ends_with(" s ago"));
  {
    const FlightEntry entry(&ring, d, 8, nullptr, 0);
  }
  CHECK(last().find("call 8, failed 0.") != std::string::npos);
  {
    const FlightEntry entry(nullptr, d, 9, nullptr, 0);
  }
  CHECK(last().find("call 8") != std::string::npos);
  // Messages have a ring of their own. One on its way says more than a call that has ended, one that ended
  // earlier says less, and a receive from anybody gets its sender and number when the message comes.
  FlightRing messages(pages->messages);
  const Descriptor from_any{5, Collective::recv, Op::sum, DType::i8, Algorithm::automatic, kAnyRank};
  const uint64_t received = messages.begin(from_any, 0, nullptr, 0, 42);
  CHECK(last().starts_with("recv(int8, 5 elements, from any rank, tag 42), message 0, waiting in it for 0."));
  messages.match(received, 3, 42, 6);
  messages.start(received);
  CHECK(last().starts_with("recv(int8, 5 elements, from rank 3, tag 42), message 6, in it for 0."));
  messages.end(received, FlightRecord::completed, Algorithm::automatic);
  CHECK(last().find("message 6, completed 0.") != std::string::npos);
  const uint64_t tenth = ring.begin(d, 10, nullptr, 0);
  CHECK(last().find("call 10, waiting in it") != std::string::npos);
  ring.end(tenth, FlightRecord::completed, Algorithm::two_shot);
  CHECK(last().find("call 10, completed") != std::string::npos);
  messages.begin({5, Collective::send, Op::sum, DType::i8, Algorithm::automatic, 3}, 1, nullptr, 0, 42);
  CHECK(last().starts_with("send(int8, 5 elements, to rank 3, tag 42), message 1, waiting in it for 0."));
  const FlightRecord message = read_flight(*pages).back();
  CHECK(message.collective == uint8_t(Collective::send) && message.root == 3 && message.tag == 42);
}

void test_overwritten_and_unfinished() {
  const auto pages = make_pages();
  FlightRing ring(pages->calls);
  const uint64_t first = write(ring, 1);
  for (uint64_t n = 2; n <= kFlightRecords + 1; ++n) write(ring, n);
  ring.end(first, FlightRecord::completed, Algorithm::one_shot);  // its place is another call's
  for (const FlightRecord& record : read_flight(*pages)) CHECK(record.state == FlightRecord::queued);
  // A writer that died in the middle of a record leaves an odd word: the record is passed over.
  pages->calls[(kFlightRecords + 1) % kFlightRecords].words[0].store(2 * (kFlightRecords + 1) - 1);
  CHECK(read_flight(*pages).size() == kFlightRecords - 1);
  // What cannot be a record is none.
  pages->calls[2].words[13].store(~uint64_t{0});
  CHECK(read_flight(*pages).size() == kFlightRecords - 2);
}

void test_clock() {
  const Moment first{1000, 5'000'000'000}, second{3000, 5'000'002'000};
  CHECK(wall_at(1000, first, second) == 5'000'000'000);
  CHECK(wall_at(2000, first, second) == 5'000'001'000);
  CHECK(wall_at(500, first, second) == 5'000'000'000 && wall_at(9000, first, second) == 5'000'002'000);
  const uint64_t before = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK(ticks() > before);
}

}  // namespace

int main() {
  test_states_and_words();
  test_overwritten_and_unfinished();
  test_clock();
  test_torn_reads();
  std::puts("ok");
}
