#include "cli/sampling_flags.h"

#include <charconv>
#include <cmath>
#include <random>

namespace cachalot {
namespace {

constexpr double kAny = 1e30;

// \n, \t, \r, \\ and \" as in a shell's double quotes or a C string; anything else stays.
std::string Unescape(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    const char* known = "n\nt\tr\r\\\\\"\"";
    const char* found = nullptr;
    for (const char* pair = known; text[i] == '\\' && *pair != '\0'; pair += 2) {
      if (*pair == next) found = pair + 1;
    }
    out += found != nullptr ? *found : text[i];
    if (found != nullptr) ++i;
  }
  return out;
}

}  // namespace

void SamplingFlags::Declare(FlagSet* flags) {
  flags->Section("Answer (defaults: the model's own where it has them)");
  flags->Int("-n,--n-predict,--predict", &max_tokens, -1, INT32_MAX, "N",
             "tokens at most (-1: until the model ends or the context is full)");
  flags->Float("--temp,--temperature", &temperature, 0, 100, "X",
               "temperature (0: always the best token; default 0.8)");
  flags->Int("--top-k", &top_k, 0, INT32_MAX, "N", "only the N best tokens (0: all; default 40)");
  flags->Float("--top-p", &top_p, 0, 1, "X",
               "only the best with this much probability together (default 0.95)");
  flags->Float("--min-p", &min_p, 0, 1, "X",
               "only tokens with this part of the best one's probability (default 0.05)");
  flags->Float("--repeat-penalty", &repeat_penalty, 0.01, 100, "X", "of tokens seen before (1: off)");
  flags->Float("--presence-penalty", &presence_penalty, -100, 100, "X",
               "of tokens generated before (0: off)");
  flags->Float("--frequency-penalty", &frequency_penalty, -100, 100, "X",
               "for each time generated before (0: off)");
  flags->Strings("-l,--logit-bias", &logit_bias, "ID+X",
                 "adds X to the logit of a token (ID-X subtracts); repeats");
  flags->Int("-s,--seed", &seed, -1, INT64_MAX, "N", "same seed, same text (-1: random; --stats shows it)");
  flags->Strings("-r,--stop,--reverse-prompt", &stop, "TEXT", "ends the answer before this text; repeats");
  flags->Switch("--ignore-eos", &ignore_eos, "does not end where the model would");
  flags->Int("--logprobs", &logprobs, 0, 1000, "N",
             "prints each token's log-probability and the N best\nto standard error");
}

void SamplingFlags::TakeDefaults(const FlagSet& flags, const GenerationDefaults& model) {
  const auto from_model = [&](const char* flag, auto* value, auto own) {
    if (!flags.Given(flag) && own >= 0) *value = own;
  };
  from_model("--temp", &temperature, model.temperature);
  from_model("--top-k", &top_k, model.top_k);
  from_model("--top-p", &top_p, model.top_p);
  from_model("--min-p", &min_p, model.min_p);
  from_model("--repeat-penalty", &repeat_penalty, model.repetition_penalty);
}

Status SamplingFlags::Resolve() {
  for (const auto& text : logit_bias) {
    ASSIGN_OR_RETURN(const TokenBias bias, ParseLogitBias(text));
    biases_.push_back(bias);
  }
  for (auto& text : stop) {
    text = Unescape(text);
    if (text.empty()) return InvalidArgument("--stop: an empty text would end every answer");
  }
  if (seed < 0) seed = static_cast<int64_t>(std::random_device{}());
  return Status::Ok();
}

Request SamplingFlags::MakeRequest() const {
  Request request;
  request.sampling = {.temperature = temperature,
                      .top_k = top_k,
                      .top_p = top_p,
                      .min_p = min_p,
                      .repetition_penalty = repeat_penalty,
                      .presence_penalty = presence_penalty,
                      .frequency_penalty = frequency_penalty,
                      .seed = static_cast<uint64_t>(seed),
                      .logit_bias = biases_,
                      .suppressed_ids = {}};
  request.stop_strings = stop;
  request.ignore_eos = ignore_eos;
  request.num_top_logprobs = logprobs;
  return request;
}

Result<TokenBias> ParseLogitBias(const std::string& text) {
  TokenBias bias;
  const char* end = text.data() + text.size();
  const auto [after_id, id_error] = std::from_chars(text.data(), end, bias.token_id);
  const char* number = after_id;
  if (number < end && (*number == '+' || *number == '=')) ++number;
  const auto [after, error] = std::from_chars(number, end, bias.bias);
  if (id_error != std::errc() || bias.token_id < 0 || error != std::errc() || after != end ||
      after_id == end || !(std::abs(bias.bias) < kAny)) {
    return InvalidArgument("--logit-bias: '{}' is not like 15043+1.5 or 15043-2 (token id, sign, number)",
                           text);
  }
  return bias;
}

}  // namespace cachalot
