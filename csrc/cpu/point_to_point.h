// Messages between the ranks of one communicator.
#pragma once

#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cpu/membership.h"
#include "cpu/message.h"
#include "cpu/ring.h"

namespace collectives {

// Sends and receives of one rank. From any thread, also while others wait here or in a collective.
//
// Contract. Messages of one sender and tag arrive in order. A send has ended when its last byte is in the
// ring towards the receiver, a receive when the message is in its memory. A receive from any source takes the
// first message with its tag that is there. Its dtype and count must be the message's, or it fails with
// `mismatched` and the message is gone. A message that no receive asks for stays in the ring while no receive
// waits for its sender; else it moves into memory of its own, so that receives may come in any order of tags.
//
// Bytes moved: each into the ring and out of it, once more where a message came unexpected; a message to the
// rank itself goes straight from one array to the other, or once by way of memory of its own.
//
// Progress. Whoever waits moves all that can be moved, not only what it waits for. While requests are pending
// and nobody waits, a thread of its own does the same; it starts when first needed and ends after a while of
// rest.
//
// Waiting. First spin, then yield, then sleep on this rank's doorbell (ring.h says how no wake-up is lost),
// at most 20 ms at a time. `inside_` counts the threads that may touch shared memory without the mutex:
// close() waits for them, since afterwards the slice may be given to others.
//
// Failure. A request ends badly when its peer is dead or has closed and has not left the message in the ring,
// when any rank has failed, on abort(), or when nothing of it has moved for its timeout. That breaks the
// communicator, as in a collective, and ends all other requests too.
class PointToPoint : public std::enable_shared_from_this<PointToPoint> {
 public:
  // `membership` is connected.
  static std::shared_ptr<PointToPoint> make(std::shared_ptr<Membership> membership);

  // These wait. They throw BadArgument, Failure.
  void send(const Message& message);
  int recv(const Message& message);  // returns the sender

  // These do not. The memory stays in use until the request is finished, whether or not somebody keeps it.
  std::shared_ptr<Request> post_send(const Message& message, Done done = nullptr, void* context = nullptr);
  std::shared_ptr<Request> post_recv(const Message& message, Done done = nullptr, void* context = nullptr);
  // Throws the request's Failure. Where `seconds` (0: as long as it takes) are over, or a signal handler
  // raised, it throws that and the request stays pending.
  void wait(const std::shared_ptr<Request>& request, double seconds = 0);

  // Ends all requests and lets go of all shared memory, this rank's own included. Idempotent.
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Word = RealMemory::Word;
  enum class Ended { settled, late, interrupted };

  // A message that came before its receive.
  struct Unexpected {
    int source;
    uint64_t number;  // of those from this source
    MessageHeader header;
    std::unique_ptr<char[]> data;
    bool complete;
    std::shared_ptr<Request> claimed;  // by a receive that came before all of it was there
  };
  // The message that is being taken out of the ring of one peer. It goes to a request, to unexpected memory,
  // or nowhere.
  struct Incoming {
    bool active = false;
    MessageHeader header;
    size_t offset = 0;
    char* to = nullptr;
    std::shared_ptr<Request> request;
    std::list<Unexpected>::iterator unexpected;

    Request* receiver() const {
      return request ? request.get() : to != nullptr ? unexpected->claimed.get() : nullptr;
    }
  };

  explicit PointToPoint(std::shared_ptr<Membership> membership);

  std::shared_ptr<Request> make_request(Collective side, const Message& message, Done done, void* context);
  void begin(Lock& lock, const std::shared_ptr<Request>& request);
  void begin_send(const std::shared_ptr<Request>& request);
  void begin_recv(const std::shared_ptr<Request>& request);
  void send_to_self(const std::shared_ptr<Request>& request);

  bool move_all();
  bool push(int peer);
  bool pull(int peer);
  bool route(Incoming& in, int source);
  void arrive(Incoming& in);
  std::shared_ptr<Request> match(int source, uint64_t number, const MessageHeader& header);
  void hand_over(const std::list<Unexpected>::iterator& found, const std::shared_ptr<Request>& request);

  void record(Request& request);
  void recorded_match(const Request& request, int source, uint64_t number);
  void settle(const std::shared_ptr<Request>& request, std::optional<Failure> failure = {});
  void deliver(Lock& lock);
  void judge(const std::vector<int>& dead);
  void fall(Standing why, const Request* late = nullptr);
  void end_all(const Request* late = nullptr);
  Failure broken(const Request& request, Standing s, bool late) const;
  Standing standing() const;

  std::shared_ptr<Request> run(const std::shared_ptr<Request>& request);
  std::shared_ptr<Request> post(const std::shared_ptr<Request>& request);
  Ended drive(Lock& lock, const Request& request, double until);
  bool moved() const;
  void nap(Lock& lock, double until);
  void engage();
  void attend();

  const std::shared_ptr<Membership> membership_;
  Membership::Group& group_;
  const int rank_;
  const int world_;
  Doorbell<Word>& bell_;
  std::vector<RingWriter<RealMemory>> writers_;  // by peer
  std::vector<RingReader<RealMemory>> readers_;

  std::mutex mutex_;  // guards what follows
  uint64_t posted_ = 0;
  std::vector<uint64_t> sent_;                              // sends begun, by peer
  std::vector<uint64_t> asked_;                             // receives begun that name the peer
  std::vector<uint64_t> come_;                              // messages from the peer that were taken on
  std::list<std::shared_ptr<Request>> pending_;             // not settled
  std::vector<std::list<std::shared_ptr<Request>>> sends_;  // by peer, in order
  std::list<std::shared_ptr<Request>> receives_;            // no message yet, in order
  std::vector<int> wanted_;                                 // of those, how many name the peer
  int wanted_from_any_ = 0;                                 // and how many name none
  std::vector<Incoming> incoming_;                          // by peer
  std::list<Unexpected> unexpected_;                        // in the order in which they came
  int first_ = 0;                                           // whose ring is looked at first: nobody starves
  std::vector<std::shared_ptr<Request>> undelivered_;       // settled, `done` not yet called
  bool settled_some_ = false;                               // threads that sleep must look
  int waiters_ = 0;                                         // threads in drive()
  int inside_ = 0;                                          // of all threads, those asleep on the bell
  std::optional<Standing> closed_;                          // how the rank stood when it closed

  std::condition_variable quiet_;  // for close()
  std::condition_variable work_;   // for the thread
  bool running_ = false;           // the thread
  bool parked_ = false;            // it waits for work
  std::thread::id attendant_;
};

}  // namespace collectives
