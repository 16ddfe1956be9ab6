// Random draws that are numpy's and torch's, number for number: every plan trains on the same minibatches.
//
// A minibatch order is `numpy.random.Generator(PCG64(seed)).permutation(n)`; a dropout mask is
// `torch.rand(..., generator=Generator().manual_seed(seed))`. The tests compare them, and so does the library when it is
// loaded: if numpy ever draws otherwise, the native plan is not used.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace coterie {

// numpy's SeedSequence(seed).generate_state(8): the words from which a PCG64 starts.
inline void seed_words(uint64_t seed, uint32_t words[8]) {
    uint32_t hash = 0x43b0d7e5u;
    auto mixed = [&hash](uint32_t value) {
        value ^= hash;
        hash *= 0x931e8875u;
        value *= hash;
        return value ^ (value >> 16);
    };
    const uint32_t entropy[4] = {uint32_t(seed), uint32_t(seed >> 32), 0, 0};
    uint32_t pool[4];
    for (int i = 0; i < 4; ++i) pool[i] = mixed(entropy[i]);
    for (int from = 0; from < 4; ++from)
        for (int to = 0; to < 4; ++to)
            if (from != to) {
                const uint32_t both = pool[to] * 0xca01f9ddu - mixed(pool[from]) * 0x4973f715u;
                pool[to] = both ^ (both >> 16);
            }
    hash = 0x8b51f9ddu;
    for (int i = 0; i < 8; ++i) {
        uint32_t value = pool[i % 4] ^ hash;
        hash *= 0x58f38dedu;
        value *= hash;
        words[i] = value ^ (value >> 16);
    }
}

// numpy's PCG64: a 128-bit linear congruential generator with the XSL-RR output.
class Pcg64 {
   public:
    explicit Pcg64(uint64_t seed) {
        uint32_t w[8];
        seed_words(seed, w);
        auto wide = [&w](int i) { return (uint64_t(w[i + 1]) << 32) | w[i]; };
        const Wide start = (Wide(wide(0)) << 64) | wide(2), sequence = (Wide(wide(4)) << 64) | wide(6);
        increment_ = (sequence << 1) | 1;
        step();
        state_ += start;
        step();
    }

    // The next 32 bits: numpy hands out the low half of 64 bits, then the high one.
    uint32_t word() {
        if (half_) {
            half_ = false;
            return high_;
        }
        step();
        const uint64_t folded = uint64_t(state_ >> 64) ^ uint64_t(state_);
        const unsigned turn = unsigned(state_ >> 122);
        const uint64_t found = (folded >> turn) | (folded << ((64 - turn) & 63));
        half_ = true;
        high_ = uint32_t(found >> 32);
        return uint32_t(found);
    }

    // A number from 0 to `most`: masked bits, drawn again while they are too large.
    uint32_t up_to(uint32_t most) {
        uint32_t mask = most, value;
        for (int shift = 1; shift < 32; shift *= 2) mask |= mask >> shift;
        do value = word() & mask;
        while (value > most);
        return value;
    }

    // Fill `order` with 0 .. count - 1 in random order.
    void permute(int64_t* order, int64_t count) {
        for (int64_t i = 0; i < count; ++i) order[i] = i;
        for (int64_t i = count - 1; i > 0; --i) std::swap(order[i], order[up_to(uint32_t(i))]);
    }

   private:
    typedef unsigned __int128 Wide;
    void step() { state_ = state_ * ((Wide(0x2360ED051FC65DA4ull) << 64) | 0x4385DF649FCCF645ull) + increment_; }

    Wide state_ = 0, increment_ = 0;
    bool half_ = false;
    uint32_t high_ = 0;
};

// torch's CPU generator: a Mersenne twister, of which a uniform float takes 24 bits.
class TorchUniform {
   public:
    explicit TorchUniform(uint64_t seed) : twister_(uint32_t(seed)) {}
    float next() { return float(twister_() & 0xffffffu) * (1.0f / 16777216.0f); }

   private:
    std::mt19937 twister_;
};

// The minibatches of one client in one pass: shuffled epochs of the examples it uses, cut into minibatches.
class Order {
   public:
    // With `half` 0 or 1 only that half of the client's examples is used, with -1 all of them.
    Order(uint64_t seed, int64_t examples, int64_t batch, int half, uint64_t half_seed)
        : random_(seed), batch_(batch), seen_(half < 0 ? examples : std::max<int64_t>(1, (examples + 1 - half) / 2)) {
        epoch_.resize(size_t(seen_));
        if (half < 0) return;
        own_.resize(size_t(examples));
        Pcg64(half_seed).permute(own_.data(), examples);
        if (half == 1) own_.erase(own_.begin(), own_.end() - seen_);
    }

    // The rows of the next minibatch, and how many they are; the last of an epoch may be smaller.
    std::pair<const int64_t*, int> next() {
        if (at_ == 0) shuffle();
        const int64_t begin = at_, count = std::min(batch_, seen_ - begin);
        at_ = begin + count == seen_ ? 0 : begin + count;
        return {epoch_.data() + begin, int(count)};
    }

   private:
    void shuffle() {
        random_.permute(epoch_.data(), seen_);
        if (!own_.empty())
            for (int64_t& row : epoch_) row = own_[size_t(row)];
    }

    Pcg64 random_;
    int64_t batch_, seen_, at_ = 0;
    std::vector<int64_t> epoch_, own_;
};

}  // namespace coterie
