#include "sched/fake_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cachalot {
namespace {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

float Unit(uint64_t x) {
  return static_cast<float>(x >> 40) / static_cast<float>(1 << 24);
}

}  // namespace

uint64_t FakeModel::KvValue(int32_t token, int32_t position) {
  return Mix(static_cast<uint64_t>(token), static_cast<uint64_t>(position));
}

uint64_t FakeModel::Attend(uint64_t state, uint64_t kv_value) {
  return Mix(state, kv_value);
}

uint64_t FakeModel::Hidden(std::span<const int32_t> tokens, int32_t position) const {
  uint64_t state = 0;
  for (const Seen& seen : groups) {
    for (int32_t p = seen.First(position); p < seen.End(position); ++p) {
      state = Attend(state, KvValue(tokens[static_cast<size_t>(p)], p));
    }
  }
  return state;
}

int32_t FakeModel::Sample(uint64_t hidden, const SamplingConfig& sampling, int32_t position,
                          const FakeHistory& history) const {
  uint64_t x = hidden;
  if (sampling.temperature > 0) x = Mix(x, Mix(sampling.seed, static_cast<uint64_t>(position)));
  for (const TokenBias& bias : sampling.logit_bias) {
    x = Mix(x, static_cast<uint64_t>(bias.token_id) + std::bit_cast<uint32_t>(bias.bias));
  }
  if (sampling.has_penalties()) {
    for (const auto& [token, counts] : history) {
      x = Mix(x, Mix(static_cast<uint64_t>(token),
                     static_cast<uint64_t>(counts.in_prompt * 1000 + counts.in_output)));
    }
  }
  int32_t token = static_cast<int32_t>(x % static_cast<uint64_t>(vocab_size));
  const auto forbidden = [&] {
    const auto has = [&](const std::vector<int32_t>& ids) { return std::find(ids.begin(), ids.end(), token) != ids.end(); };
    return (position < sampling.suppressed_until && has(sampling.suppressed_ids)) ||
           std::any_of(sampling.logit_bias.begin(), sampling.logit_bias.end(),
                       [&](const TokenBias& bias) { return bias.token_id == token && std::isinf(bias.bias); });
  };
  while (forbidden()) {
    x = Mix(x, 1);
    token = static_cast<int32_t>(x % static_cast<uint64_t>(vocab_size));
  }
  return token;
}

float FakeModel::Logit(uint64_t hidden, int32_t token) const {
  return Unit(Mix(hidden, static_cast<uint64_t>(token)));
}

float FakeModel::MtpLogit(uint64_t hidden, int32_t next_token, int32_t token) const {
  return Unit(Mix(Mix(hidden, static_cast<uint64_t>(next_token)), static_cast<uint64_t>(token)));
}

float FakeModel::Logprob(uint64_t hidden, int32_t token) const {
  return -Logit(hidden, token);
}

int32_t FakeModel::TopToken(uint64_t hidden, int32_t rank) const {
  return static_cast<int32_t>(Mix(hidden, static_cast<uint64_t>(rank) + 77) %
                              static_cast<uint64_t>(vocab_size));
}

std::vector<int32_t> FakeModel::Generate(std::vector<int32_t> tokens, const SamplingConfig& sampling, int32_t max_tokens,
                                         std::span<const int32_t> stop_ids, const Banned& banned) const {
  const size_t num_prompt = tokens.size();
  FakeHistory history;
  for (const int32_t token : tokens) ++history[token].in_prompt;
  for (int32_t i = 0; i < max_tokens; ++i) {
    const int32_t last = static_cast<int32_t>(tokens.size()) - 1;
    SamplingConfig here = sampling;
    if (banned) {
      if (last + 1 >= here.suppressed_until) here.suppressed_ids.clear();
      here.suppressed_until = last + 2;
      for (const int32_t id : banned(std::span<const int32_t>(tokens).subspan(num_prompt))) here.suppressed_ids.push_back(id);
    }
    const int32_t token = Sample(Hidden(tokens, last), here, last + 1, history);
    tokens.push_back(token);
    ++history[token].in_output;
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) break;
  }
  return {tokens.begin() + static_cast<ptrdiff_t>(num_prompt), tokens.end()};
}

}  // namespace cachalot
