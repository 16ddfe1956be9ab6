// A chain of layers on one minibatch: images of activations and of slopes, the layers forwards and backwards.
//
// An image is stored [block][channel][row][column] with a vector of examples at every pixel. Lanes without an example
// hold numbers that nothing reads: their slopes are zero.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "draws.h"
#include "interface.h"
#include "products.h"

namespace COTERIE_TARGET {

// Zeroed memory that vectors may lie in.
template <class Item>
class Memory {
   public:
    Item* get() { return items_.get(); }
    void reserve(size_t count) {
        if (count <= count_) return;
        const size_t bytes = (count * sizeof(Item) + 63) / 64 * 64;
        void* fresh = std::aligned_alloc(64, bytes);
        if (!fresh) throw std::bad_alloc();
        std::memset(fresh, 0, bytes);
        items_.reset(static_cast<Item*>(fresh));
        count_ = count;
    }

   private:
    struct Free {
        void operator()(Item* items) const { std::free(items); }
    };
    std::unique_ptr<Item, Free> items_;
    size_t count_ = 0;
};

// The size of an image and its margins of zeros, which a convolution reads beyond the border.
struct Frame {
    int channels = 1, height = 1, width = 1, margin_height = 0, margin_width = 0;

    size_t row() const { return size_t(width + 2 * margin_width); }
    size_t plane() const { return row() * size_t(height + 2 * margin_height); }
    size_t size() const { return plane() * size_t(channels); }
    size_t at(int channel, int y, int x) const {
        return size_t(channel) * plane() + size_t(y + margin_height) * row() + size_t(x + margin_width);
    }
    int features() const { return channels * height * width; }
};

template <class Real>
struct Image {
    Frame values, slopes;
    Memory<VecOf<Real>> value_memory, slope_memory;

    VecOf<Real>* value(int block) { return value_memory.get() + size_t(block) * values.size(); }
    VecOf<Real>* slope(int block) { return slope_memory.get() + size_t(block) * slopes.size(); }
    void reserve(int blocks, bool training) {
        value_memory.reserve(size_t(blocks) * values.size());
        if (training) slope_memory.reserve(size_t(blocks) * slopes.size());
    }
};

// A minibatch: the rows of its examples, how many they are, and the vectors that they fill.
template <class Real>
struct Minibatch {
    const int64_t* rows;
    int64_t first;  // added to every row
    int count, blocks;

    Minibatch(const int64_t* its_rows, int64_t its_first, int its_count)
        : rows(its_rows), first(its_first), count(its_count), blocks((its_count + WIDTH<Real> - 1) / WIDTH<Real>) {}
    int64_t row(int example) const { return first + rows[example]; }
    int lanes(int block) const { return std::min(WIDTH<Real>, count - block * WIDTH<Real>); }
    // 1 in lanes that hold an example, 0 in the others.
    VecOf<Real> mask(int block) const {
        VecOf<Real> found{};
        for (int i = 0; i < lanes(block); ++i) found[i] = 1;
        return found;
    }
};

// How weights move: SGD with momentum and decay, or Adam.
template <class Real>
struct Step {
    Real lr, momentum, decay, first_scale, second_scale;
    bool adam;
    bool fresh;  // there is no momentum yet: what its memory holds is not read

    void sgd(Real* w, Real* m, VecOf<Real> gradient, int count) const {
        VecOf<Real> weight = load_some(w, count), move = gradient + weight * decay;
        if (m) {
            if (!fresh) move += load_some(m, count) * momentum;
            store_some(m, move, count);
        }
        store_some(w, weight - move * lr, count);
    }
    void sgd(Real* w, Real* m, VecOf<Real> gradient) const {
        VecOf<Real> weight = load(w), move = gradient + weight * decay;
        if (m) {
            if (!fresh) move += load(m) * momentum;
            store(m, move);
        }
        store(w, weight - move * lr);
    }
    // One number: the sweep over ranges is vectorised by the compiler.
    void adam_one(Real& w, Real& m, Real& v, Real gradient) const {
        const Real slope = gradient + decay * w;
        m += (slope - m) * Real(1 - 0.9);
        v = v * Real(0.999) + slope * slope * Real(1 - 0.999);
        w -= lr * (m * first_scale / (std::sqrt(v * second_scale) + Real(1e-8)));
    }
};

template <class Real>
struct Layer {
    LayerSpec spec;
    Image<Real>*in, *out;
    int mode = TRAINED | TRAINING;

    // Of a convolution: where a kernel's pixels lie, seen from an output (forwards) and from an input (backwards).
    std::vector<int32_t> offsets, back_offsets;
    std::vector<Real> packed;
    Frame spaced_frame;  // slopes spread out by the stride
    Memory<VecOf<Real>> spaced;
    // Of a linear layer: its input, one row for each example, and where its slopes are.
    std::vector<Real> rows;
    std::vector<const Real*> row_at, whole_at, tail_at;
    std::vector<size_t> places, slope_at;
    // Of a normalisation: of each channel, or of each block and group.
    std::vector<Real> mean, inverse;
    std::vector<VecOf<Real>> lane_mean, lane_inverse;
    // Of a pooling the winner of each window; of a dropout what each entry is multiplied with.
    Memory<IntOf<Real>> winner;
    Memory<VecOf<Real>> kept;
    std::unique_ptr<coterie::TorchUniform> uniform;
};

template <class Real>
class Network {
   public:
    typedef VecOf<Real> Vec;

    Network(const ChainSpec& spec, bool training);

    const ChainSpec& spec() const { return spec_; }
    std::vector<Layer<Real>>& layers() { return layers_; }
    Real *params = nullptr, *buffers = nullptr, *gradient = nullptr, *momenta = nullptr;
    const Step<Real>* fused = nullptr;  // linear weights move at once, and have no gradient
    bool fold = false;                  // running statistics in place of the minibatch's everywhere

    void seed_dropout(uint64_t seed);
    // False where a batch normalisation has a single value for each channel.
    bool can_take(int count) const;
    // Reads a minibatch, which stays readable for several models; then goes through the layers.
    void read(const Minibatch<Real>& batch, const Examples& examples);
    void forward(const Minibatch<Real>& batch, const Examples& examples);
    double loss(const Minibatch<Real>& batch, const Examples& examples, Real* each, bool slopes);
    void backward(const Minibatch<Real>& batch, const Examples& examples);
    Image<Real>& output() { return *images_.back(); }

   private:
    void gather(const Minibatch<Real>& batch, const Real* x);
    bool trains(const Layer<Real>& layer) const { return !fold && (layer.mode & TRAINING); }
    const Real* at(int64_t place) const { return place < 0 ? nullptr : params + place; }

    void prepare_convolution(Layer<Real>& layer);
    void convolve(Layer<Real>& layer, const Minibatch<Real>& batch);
    void convolve_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below);
    void apply_linear(Layer<Real>& layer, const Minibatch<Real>& batch, const Real* x);
    void linear_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below);
    void batch_norm(Layer<Real>& layer, const Minibatch<Real>& batch);
    void batch_norm_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below);
    void group_norm(Layer<Real>& layer, const Minibatch<Real>& batch);
    void group_norm_back(Layer<Real>& layer, const Minibatch<Real>& batch, bool below);
    void max_pool(Layer<Real>& layer, const Minibatch<Real>& batch);
    void max_pool_back(Layer<Real>& layer, const Minibatch<Real>& batch);
    void average_pool(Layer<Real>& layer, const Minibatch<Real>& batch, bool back);
    void drop(Layer<Real>& layer, const Minibatch<Real>& batch);
    void drop_back(Layer<Real>& layer, const Minibatch<Real>& batch);
    void flatten(Layer<Real>& layer, const Minibatch<Real>& batch, bool back);
    void activate(Layer<Real>& layer, const Minibatch<Real>& batch, bool back);

    ChainSpec spec_;
    bool training_;
    int reserved_ = 0;
    std::vector<std::unique_ptr<Image<Real>>> images_;
    std::vector<Layer<Real>> layers_;
};

}  // namespace COTERIE_TARGET
