#include "server/long_work.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "base/log.h"
#include "server/api/api_error.h"

namespace cachalot {
namespace {

HttpResponse StoppingResponse() {
  return ErrorResponse(ErrorOfStatus(503, "the server is shutting down and takes no new requests"));
}

}  // namespace

LongWork::LongWork(int32_t num_threads) {
  for (int32_t i = 0; i < std::max(num_threads, 1); ++i) threads_.emplace_back([this] { Work(); });
}

void LongWork::Run(const std::shared_ptr<Exchange>& exchange, Prepare prepare) {
  if (exchange->request().body.size() <= kShortBody) return prepare()();
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    stopping = stopping_;
    if (!stopping) {
      ++num_pending_;
      jobs_.push_back({exchange, std::move(prepare)});
    }
  }
  if (stopping) exchange->Respond(StoppingResponse());
  else wake_.notify_one();
}

void LongWork::Work() {
  for (;;) {
    Job job;
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      stopping = stopping_;
    }
    Exchange* way = job.exchange.get();
    Finish finish;
    if (stopping) {
      finish = [way] { way->Respond(StoppingResponse()); };
    } else {
      try {
        finish = job.prepare();
      } catch (const std::exception& exception) {
        finish = [exchange = job.exchange, what = std::string(exception.what())] { AnswerException(exchange, what.c_str()); };
      }
    }
    job.prepare = nullptr;
    // The exchange and all that was made for it go on its thread.
    way->Post([this, exchange = std::move(job.exchange), finish = std::move(finish)]() mutable {
      try {
        finish();
      } catch (const std::exception& exception) {
        AnswerException(exchange, exception.what());
      }
      finish = nullptr;
      --num_pending_;
    });
  }
}

void LongWork::Stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void AnswerException(const std::shared_ptr<Exchange>& exchange, const char* what) {
  LOG_ERROR("{} {}: {}", exchange->request().method, exchange->request().path, what);
  if (!exchange->responded()) exchange->Respond(ErrorResponse(ErrorOfStatus(500, "the request could not be served")));
  else exchange->Abort();
}

}  // namespace cachalot
