#include "server/response_cache.h"

#include <cstring>
#include <type_traits>
#include <utility>

#include "kv/policy/eviction_policies.h"

namespace cachalot {
namespace {

constexpr int64_t kLargestShare = 16;

// All that it is told, so that no two lists of values give the same bytes.
class KeyText {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  void Add(T value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void Add(const std::string& text) {
    Add(text.size());
    text_ += text;
  }
  void Add(const TokenBias& bias) {
    Add(bias.token_id);
    Add(bias.bias);
  }
  template <typename T>
  void Add(const std::vector<T>& values) {
    Add(values.size());
    for (const T& value : values) Add(value);
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

void Add(const SamplingConfig& sampling, KeyText* key) {
  key->Add(sampling.temperature);
  key->Add(sampling.top_k);
  key->Add(sampling.top_p);
  key->Add(sampling.min_p);
  key->Add(sampling.repetition_penalty);
  key->Add(sampling.presence_penalty);
  key->Add(sampling.frequency_penalty);
  if (sampling.temperature > 0) key->Add(sampling.seed);  // a greedy answer has none
  key->Add(sampling.logit_bias);
  key->Add(sampling.suppressed_ids);
  key->Add(sampling.suppressed_until);
}

void Add(const ReasoningLimits& reasoning, KeyText* key) {
  key->Add(reasoning.inside);
  key->Add(reasoning.budget);
  key->Add(reasoning.close_ids);
  key->Add(reasoning.then_ids);
}

void Add(const CallRule& call, KeyText* key) {
  key->Add(call.on);
  key->Add(call.in_prompt);
  key->Add(call.names);
  key->Add(call.middle);
  key->Add(call.close);
}

int64_t BytesOf(const ResponseCache::Response& response) {
  int64_t bytes = 0;
  for (const TokenEvent& event : response) {
    bytes += static_cast<int64_t>(sizeof(event) + event.text.size() + 4 * (event.token_ids.size() + event.logprobs.size() + event.prompt_logprobs.size()) +
                                  sizeof(TopLogprob) * event.prompt_top_logprobs.size());
    for (const auto& top : event.top_logprobs) bytes += static_cast<int64_t>(sizeof(top) + sizeof(TopLogprob) * top.size());
  }
  return bytes;
}

}  // namespace

std::optional<BlockKey> ResponseKey(const Request& request, bool seeded) {
  if (request.sampling.temperature > 0 && !seeded) return std::nullopt;
  if (request.all_logits || request.mtp_logits) return std::nullopt;
  KeyText key;
  key.Add(request.prompt_ids);
  Add(request.sampling, &key);
  key.Add(request.max_tokens);
  key.Add(request.stop_ids);
  key.Add(request.stop_strings);
  key.Add(request.ignore_eos);
  key.Add(request.min_tokens);
  key.Add(request.bad_words);
  key.Add(request.include_stop);
  key.Add(request.skip_special);
  key.Add(request.num_top_logprobs);
  key.Add(request.prompt_logprobs);
  key.Add(request.num_prompt_top_logprobs);
  key.Add(request.n);
  Add(request.reasoning, &key);
  Add(request.call, &key);
  key.Add(request.shown_ids);
  return RootKey(key.text(), request.cache_salt);
}

Result<std::unique_ptr<ResponseCache>> ResponseCache::Create(int32_t max_responses, const std::string& policy,
                                                             MetricRegistry* registry, int64_t max_bytes) {
  ASSIGN_OR_RETURN(const MakeEvictionPolicy make, FindEvictionPolicy(policy));
  return std::unique_ptr<ResponseCache>(new ResponseCache(max_responses, make(max_responses), registry, max_bytes));
}

ResponseCache::ResponseCache(int32_t max_responses, std::unique_ptr<EvictionPolicy> policy, MetricRegistry* registry, int64_t max_bytes)
    : max_bytes_(max_bytes),
      queries_(registry->AddCounter("cachalot:response_cache_queries_total", "Requests that can have only one answer.")),
      hits_(registry->AddCounter("cachalot:response_cache_hits_total", "Of them, those whose answer was kept.")),
      evictions_(registry->AddCounter("cachalot:response_cache_evictions_total", "Kept answers that gave way.")),
      entries_gauge_(registry->AddGauge("cachalot:response_cache_entries", "Answers that are kept.")),
      bytes_gauge_(registry->AddGauge("cachalot:response_cache_bytes", "Bytes of them, roughly.")),
      policy_(std::move(policy)),
      entries_(static_cast<size_t>(max_responses)) {
  for (int32_t place = max_responses; place-- > 0;) free_.push_back(place);
}

std::shared_ptr<const ResponseCache::Response> ResponseCache::Find(const BlockKey& key) {
  queries_->Add();
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  const int32_t place = found->second;
  policy_->SetTime(SteadyNowUs());
  policy_->RemoveCandidate(place);
  policy_->Reference(place);
  policy_->Release(place);
  policy_->AddCandidate(place);
  hits_->Add();
  return entries_[static_cast<size_t>(place)].response;
}

void ResponseCache::Insert(const BlockKey& key, Response response) {
  const int64_t num_bytes = BytesOf(response);
  if (num_bytes > max_bytes_ / kLargestShare) return;
  auto shared = std::make_shared<const Response>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (places_.contains(key)) return;  // another request was answered meanwhile
  policy_->SetTime(SteadyNowUs());
  while (free_.empty() || num_bytes_ + num_bytes > max_bytes_) {
    Remove(policy_->Victim(), /*evicted=*/true);
    evictions_->Add();
  }
  const int32_t place = free_.back();
  free_.pop_back();
  entries_[static_cast<size_t>(place)] = {.key = key, .response = std::move(shared), .num_bytes = num_bytes};
  places_.emplace(key, place);
  num_bytes_ += num_bytes;
  policy_->Insert(place, key.low, 0);
  policy_->Release(place);
  policy_->AddCandidate(place);
  ShowSize();
}

void ResponseCache::Clear() {
  const std::lock_guard lock(mutex_);
  for (size_t place = 0; place < entries_.size(); ++place) {
    if (entries_[place].response != nullptr) Remove(static_cast<int32_t>(place), /*evicted=*/false);
  }
  ShowSize();
}

void ResponseCache::Remove(int32_t place, bool evicted) {
  Entry& entry = entries_[static_cast<size_t>(place)];
  policy_->RemoveCandidate(place);
  policy_->Erase(place, evicted);
  places_.erase(entry.key);
  num_bytes_ -= entry.num_bytes;
  entry = {};
  free_.push_back(place);
}

void ResponseCache::ShowSize() {
  entries_gauge_->Set(static_cast<double>(places_.size()));
  bytes_gauge_->Set(static_cast<double>(num_bytes_));
}

}  // namespace cachalot
