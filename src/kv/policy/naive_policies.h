// For tests: the cache policies once more, as short as their papers' pseudocode, over plain lists: O(n) and
// allocating. What the fast ones must equal, victim by victim.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "kv/policy/eviction_policy.h"
#include "kv/policy/frequency_sketch.h"

namespace cachalot {

class NaivePolicy : public EvictionPolicy {
 public:
  explicit NaivePolicy(int32_t num_blocks) : num_blocks_(num_blocks) {}
  void SetTime(int64_t now_us) override { now_s_ = static_cast<double>(now_us) * 1e-6; }
  void Release(int32_t block) override {}
  void AddCandidate(int32_t block) override { candidates_.insert(block); }
  void RemoveCandidate(int32_t block) override { candidates_.erase(block); }

 protected:
  using List = std::vector<int32_t>;  // oldest first
  bool Can(int32_t block) const { return candidates_.count(block) == 1; }
  int32_t First(const List& list) const {
    for (int32_t block : list) {
      if (Can(block)) return block;
    }
    return -1;
  }
  static bool Drop(List* list, int32_t block) {
    const auto at = std::find(list->begin(), list->end(), block);
    if (at == list->end()) return false;
    list->erase(at);
    return true;
  }
  static void ToNewest(List* list, int32_t block) {
    Drop(list, block);
    list->push_back(block);
  }
  struct Ghosts {
    std::deque<std::pair<uint64_t, double>> entries;
    bool Take(uint64_t key, double* value = nullptr) {
      for (auto at = entries.begin(); at != entries.end(); ++at) {
        if (at->first != key) continue;
        if (value != nullptr) *value = at->second;
        entries.erase(at);
        return true;
      }
      return false;
    }
    void Add(uint64_t key, double value, size_t most) {
      Take(key);
      entries.emplace_back(key, value);
      while (entries.size() > most) entries.pop_front();
    }
  };

  const int32_t num_blocks_;
  std::set<int32_t> candidates_;
  std::map<int32_t, uint64_t> keys_;
  double now_s_ = 0;
};

class NaiveLru : public NaivePolicy {
 public:
  using NaivePolicy::NaivePolicy;
  void Insert(int32_t block, uint64_t key, int32_t) override { ToNewest(&list_, block); }
  void Reference(int32_t block) override { ToNewest(&list_, block); }
  void Release(int32_t block) override { ToNewest(&list_, block); }
  void Erase(int32_t block, bool) override { Drop(&list_, block); }
  int32_t Victim() override { return First(list_); }

 protected:
  List list_;
};

class NaiveLfu final : public NaiveLru {
 public:
  using NaiveLru::NaiveLru;
  void Insert(int32_t block, uint64_t key, int32_t c) override {
    NaiveLru::Insert(block, key, c);
    count_[block] = 1;
  }
  void Reference(int32_t block) override {
    NaiveLru::Reference(block);
    ++count_[block];
  }
  int32_t Victim() override {
    int32_t victim = -1;
    for (int32_t block : list_) {
      if (Can(block) && (victim < 0 || count_[block] < count_[victim])) victim = block;
    }
    return victim;
  }

 private:
  std::map<int32_t, int> count_;
};

// By the definition of the score, not by a key.
class NaiveLruK final : public NaiveLru {
 public:
  NaiveLruK(int32_t num_blocks, std::vector<double> tau_s) : NaiveLru(num_blocks), tau_s_(std::move(tau_s)) {}
  void Insert(int32_t block, uint64_t key, int32_t c) override {
    NaiveLru::Insert(block, key, c);
    double before_s = -1e300;
    ghosts_.Take(key, &before_s);
    keys_[block] = key;
    uses_[block] = {now_s_, before_s, tau_s_[static_cast<size_t>(c)]};
  }
  void Reference(int32_t block) override {
    NaiveLru::Reference(block);
    uses_[block] = {now_s_, uses_[block].last_s, uses_[block].tau_s};
  }
  void Release(int32_t block) override {
    NaiveLru::Release(block);
    uses_[block].last_s = now_s_;
  }
  void Erase(int32_t block, bool evicted) override {
    NaiveLru::Erase(block, evicted);
    if (evicted) ghosts_.Add(keys_[block], uses_[block].last_s, 4 * static_cast<size_t>(num_blocks_));
  }
  int32_t Victim() override {
    int32_t victim = -1;
    for (int32_t block : list_) {
      if (Can(block) && (victim < 0 || Score(block) < Score(victim))) victim = block;
    }
    return victim;
  }

 private:
  struct Uses {
    double last_s = 0, before_s = 0, tau_s = 1;
  };
  double Score(int32_t block) {
    const Uses& uses = uses_[block];
    return std::exp((uses.last_s - now_s_) / uses.tau_s) + std::exp((uses.before_s - now_s_) / uses.tau_s);
  }
  const std::vector<double> tau_s_;
  std::map<int32_t, Uses> uses_;
  Ghosts ghosts_;
};

class NaiveSieve final : public NaivePolicy {
 public:
  using NaivePolicy::NaivePolicy;
  void Insert(int32_t block, uint64_t key, int32_t) override {
    queue_.push_back(block);
    newest_ = block;
    visited_[block] = false;
  }
  void Reference(int32_t block) override { visited_[block] = true; }
  void Erase(int32_t block, bool evicted) override {
    const auto at = static_cast<size_t>(std::find(queue_.begin(), queue_.end(), block) - queue_.begin());
    queue_.erase(queue_.begin() + static_cast<ptrdiff_t>(at));
    if (at < hand_) --hand_;
    if (evicted && block == newest_) hand_ = 0;
  }
  int32_t Victim() override {
    for (;;) {
      for (size_t at = hand_; at < queue_.size(); ++at) {
        if (!Can(queue_[at])) continue;
        hand_ = at;
        if (!visited_[queue_[at]]) return queue_[at];
        visited_[queue_[at]] = false;
        ++hand_;
      }
      hand_ = 0;
    }
  }

 private:
  List queue_;
  std::map<int32_t, bool> visited_;
  size_t hand_ = 0;
  int32_t newest_ = -1;
};

class NaiveS3Fifo final : public NaivePolicy {
 public:
  using NaivePolicy::NaivePolicy;
  void Insert(int32_t block, uint64_t key, int32_t) override {
    keys_[block] = key;
    count_[block] = 0;
    (ghosts_.Take(key) ? main_ : small_).push_back(block);
  }
  void Reference(int32_t block) override { count_[block] = std::min(3, count_[block] + 1); }
  void Erase(int32_t block, bool evicted) override {
    if (Drop(&small_, block) && evicted) ghosts_.Add(keys_[block], 0, static_cast<size_t>(num_blocks_));
    Drop(&main_, block);
  }
  int32_t Victim() override {
    for (;;) {
      const bool large = static_cast<int32_t>(small_.size()) > std::max(1, num_blocks_ / 10);
      const int32_t in_small = First(small_), in_main = First(main_);
      const bool from_small = in_small >= 0 && (large || in_main < 0);
      const int32_t block = from_small ? in_small : in_main;
      if (count_[block] < (from_small ? 2 : 1)) return block;
      count_[block] = from_small ? 0 : count_[block] - 1;
      Drop(from_small ? &small_ : &main_, block);
      main_.push_back(block);
    }
  }

 private:
  List small_, main_;
  std::map<int32_t, int> count_;
  Ghosts ghosts_;
};

class NaiveArc final : public NaivePolicy {
 public:
  using NaivePolicy::NaivePolicy;
  void Insert(int32_t block, uint64_t key, int32_t) override {
    keys_[block] = key;
    const double b1 = static_cast<double>(b1_.entries.size()), b2 = static_cast<double>(b2_.entries.size());
    const bool in_b1 = b1_.Take(key), in_b2 = !in_b1 && b2_.Take(key);
    if (in_b1) p_ = std::min<double>(num_blocks_, p_ + std::max(1.0, b2 / b1));
    if (in_b2) p_ = std::max(0.0, p_ - std::max(1.0, b1 / b2));
    (in_b1 || in_b2 ? t2_ : t1_).push_back(block);
    Trim();
  }
  void Reference(int32_t block) override {
    Drop(&t1_, block);
    ToNewest(&t2_, block);
  }
  void Release(int32_t block) override {
    const bool once = std::find(t1_.begin(), t1_.end(), block) != t1_.end();
    ToNewest(once ? &t1_ : &t2_, block);
  }
  void Erase(int32_t block, bool evicted) override {
    const bool once = Drop(&t1_, block);
    if (!once) Drop(&t2_, block);
    if (evicted) (once ? b1_ : b2_).Add(keys_[block], 0, 2 * static_cast<size_t>(num_blocks_));
    Trim();
  }
  int32_t Victim() override {
    const int32_t once = First(t1_), again = First(t2_);
    if (again < 0) return once;
    return once >= 0 && static_cast<double>(t1_.size()) > p_ ? once : again;
  }

 private:
  void Trim() {
    const auto c = static_cast<size_t>(num_blocks_);
    while (!b1_.entries.empty() && t1_.size() + b1_.entries.size() > c) b1_.entries.pop_front();
    while (!b2_.entries.empty() && t1_.size() + t2_.size() + b1_.entries.size() + b2_.entries.size() > 2 * c)
      b2_.entries.pop_front();
  }
  List t1_, t2_;
  Ghosts b1_, b2_;
  double p_ = 0;
};

class NaiveWTinyLfu final : public NaivePolicy {
 public:
  explicit NaiveWTinyLfu(int32_t num_blocks)
      : NaivePolicy(num_blocks),
        window_most_(static_cast<size_t>(std::max(1, num_blocks / 100))),
        main_most_(static_cast<size_t>(num_blocks) - window_most_),
        sketch_(num_blocks) {}
  void Insert(int32_t block, uint64_t key, int32_t) override {
    keys_[block] = key;
    sketch_.Add(key);
    window_.push_back(block);
    if (window_.size() > window_most_ && probation_.size() + protected_.size() < main_most_) {
      probation_.push_back(window_.front());
      window_.erase(window_.begin());
    }
  }
  void Reference(int32_t block) override {
    sketch_.Add(keys_[block]);
    if (std::find(window_.begin(), window_.end(), block) != window_.end()) return ToNewest(&window_, block);
    Drop(&probation_, block);
    ToNewest(&protected_, block);
    if (protected_.size() > main_most_ * 4 / 5) {
      probation_.push_back(protected_.front());
      protected_.erase(protected_.begin());
    }
  }
  void Release(int32_t block) override {
    for (List* list : {&window_, &probation_, &protected_}) {
      if (std::find(list->begin(), list->end(), block) != list->end()) ToNewest(list, block);
    }
  }
  void Erase(int32_t block, bool) override {
    for (List* list : {&window_, &probation_, &protected_}) Drop(list, block);
  }
  int32_t Victim() override {
    const int32_t newcomer = First(window_);
    const int32_t oldest = First(probation_) >= 0 ? First(probation_) : First(protected_);
    if (oldest < 0) return newcomer;
    if (newcomer < 0 || window_.size() < window_most_) return oldest;
    if (sketch_.Estimate(keys_[newcomer]) <= sketch_.Estimate(keys_[oldest])) return newcomer;
    Drop(&window_, newcomer);
    probation_.push_back(newcomer);
    return oldest;
  }

 private:
  const size_t window_most_, main_most_;
  List window_, probation_, protected_;
  FrequencySketch sketch_;
};

}  // namespace cachalot
